"""Patches -> vectors on disk.

`model`: whose encoder; `choose`: which patches; `extract`: the loop; `blocks`: a file that survives; `bags`: for
other tools.
"""
