"""Embedding -> loss: one objective per file, found by its name.

`objective` (what they share), `positives` (who belongs to whom), `gather` (across ranks).
"""
