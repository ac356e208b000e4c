"""Image -> embedding.

`backbone` (timm by name), `encoder` (backbone and projection head, and their two files), `card` (what an encoder is,
without torch), `batch_norm` (statistics over all ranks), `linear_maps` and `vector_map` (maps of
vectors), `foreign` (encoders from elsewhere), `export` (encoders for
other tools).
"""
