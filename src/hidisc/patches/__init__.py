"""Boxes -> PatchStore.

`codec` (a patch as bytes), `shard` (the patches of a slide in one memory-mapped file), `table` (one row per patch),
`store` (all of it, to read), `filters` (which boxes stay), `task` (the work of one slide), `cut` (one slide into its
folder), `record` (that folder), `commit` (folders into a store), `splits` (patients held out), `inputs` (stored pixels
as a network sees them), `pack`, `opensrh` and `folders` (patches that exist as files).
"""
