"""Store -> batches of views.

`hierarchy` (levels, and the tree of a table), `sampler` (which patches a step sees), `batches` (reads them ahead of
training), `views` and `operations` (random augmentations on the device), `cohort_stain` (stains of the cohort's
slides).
"""
