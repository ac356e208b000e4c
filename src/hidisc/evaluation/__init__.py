"""Embeddings -> Scores: how well labels can be predicted from them, for patients not used in training.

`judge` reads from top to bottom: choose (`task`, `align`), search (`neighbours`), check (`leakage`, `duplicates`,
`labels`), predict (`probes`, `predictions`), score (`compare`: numbers, intervals, differences) and describe
(`diagnostics`). `classes` is the endpoint, with its `metrics`; `floors` are the subjects that an encoder must
beat; `cross_validation` pools folds; `scores` is the artefact.
"""
