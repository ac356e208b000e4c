"""Embeddings -> Scores: how well the diagnosis can be predicted from them, for patients not used in training.

`task`: reference patches (bank) and test patches (queries); `units`: patches grouped by slide and patient; `labels`:
classes and what is missing; `knn` (with `neighbours`), `linear`, `mil`: three probes; `folds`: patients of a probe's
cross-validation; `pooling`: from patches to slides and patients; `metrics`, `bootstrap`, `compare`: how good, how
certain, which is better; `leakage`, `duplicates`, `diagnostics` (with `geometry`): reasons to doubt the scores.
"""
