"""Embeddings -> Audit: how far site, scanner, batch, date and colour can be predicted, and what they cost the label.

`variables`: the columns to audit; `shortcuts`: the numbers; `measure`: the audit of one encoder; `audit`: the artefact,
and the rule that turns numbers into words.
"""
