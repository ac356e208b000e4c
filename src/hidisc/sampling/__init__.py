"""Store -> batches of views.

`hierarchy` (levels, and the tree of a table), `shuffle` and `sampler` (which patches a step sees), `batches` (reads
them ahead of training), `views` (random augmentations on the device).
"""
