"""Batches of views -> Run.

`build` (patches, encoder, objective and optimiser), `plan` (all that is built before the first step), `fit` (the
loop), `step` (one step), `checkpoint` (what a killed run resumes from), `log` (metrics.csv and other loggers),
`monitor` (accuracy of nearest neighbours during training, and what stops a run), `processes` (several devices), `run`
(the artefact), `vectors` (what is other where vectors are learned from).
"""
