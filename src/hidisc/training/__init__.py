"""Batches of views -> Run.

`training_set` (which patches), `build` and `learner` (encoder and objective as one module, optimiser), `fit` (the
loop), `step` (one step of it), `schedule` (learning rate), `checkpoint` (what a killed run resumes from), `log`,
`metrics` and `loggers` (metrics.csv and further loggers), `monitor` (accuracy of nearest neighbours on the way),
`sanity` (what stops a run), `processes` and `failures` (several devices), `run` (the artefact).
"""
