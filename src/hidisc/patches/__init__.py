"""Boxes -> PatchStore.

`codec` (a patch as bytes), `shard` (the patches of a slide in one memory-mapped file), `table` (one row a patch),
`store` (all of it, to read), `keep` (which boxes stay), `cut` (one slide into its folder), `commit` (folders into
a store), `cluster` (one task a slide), `splits` (patients held out), `inputs` (stored pixels as a network sees
them), `opensrh` and `folders` (patches that exist as files).
"""
