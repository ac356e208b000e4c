"""Patches -> vectors on disk.

`model`: whose encoder, and which patches; `maps`: a map of vectors likewise; `colour`: the colour floor; `extract`: the
loop; `embeddings`: the artefact; `bags`: for other tools.
"""
