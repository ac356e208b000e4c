"""Embeddings -> Audit: what site, scanner, batch, date and colour do to encoders, and to the label's accuracy."""
