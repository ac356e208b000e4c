"""A cohort in a browser: its slides, a map of its patches, what is alike, and names given to patches."""
