"""Batches of views -> Run.

`schedule` (learning rate), `learner` (encoder and objective as one module), `fit` (the loop), `checkpoint` (what a
killed run resumes from), `metrics` (metrics.csv), `loggers`, `monitor` (nearest neighbours on the way), `stop`
(Ctrl-C), `run` (the artefact), `export`.
"""
