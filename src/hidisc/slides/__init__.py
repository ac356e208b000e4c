"""Slide file -> patch boxes and normalised pixels.

`cohort` (which slide belongs to which patient), `reader` (one interface over every file format), `tissue`
(where there is something to see), `pen` (where ink is), `grid` (the boxes), `stain` (Macenko), `synthetic` (drawn
slides).
"""
