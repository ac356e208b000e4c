"""Embeddings -> Scores: is the diagnosis in them, for patients nobody has learned from?

`sides`: bank and queries; `labels`: what they lack; `neighbours`, `knn`, `linear`, `mil`: three opinions; `pooling`:
patches to slides and patients; `metrics`, `bootstrap`: how good, and how sure; `leakage`, `duplicates`, `diagnostics`:
why to doubt it.
"""
