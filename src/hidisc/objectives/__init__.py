"""Embedding -> loss: one objective per file, found by its name.

`objective` (what they share), `positives` (which rows are positives of each other).
"""
