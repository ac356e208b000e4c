"""Embedding -> loss: one objective a file, found by its name.

`objective` (what they share), `positives` (who belongs to whom), `gather` (across ranks).
"""
