"""Embeddings -> Scores: is the diagnosis in them, for patients nobody has learned from?

`task`: bank and queries; `labels`: what they lack; `neighbours`, `knn`, `linear`, `mil`: three probes; `pooling`:
patches to slides and patients; `metrics`, `bootstrap`: how good, and how sure; `leakage`, `duplicates`, `diagnostics`:
why to doubt it.
"""
