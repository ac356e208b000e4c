"""Squares of slides, patch files and slices of volumes -> PatchStore."""
