"""The life of every output folder: begun, finished, opened and verified, with one writer at a time."""
