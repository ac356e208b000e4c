"""Slide file -> squares of normalised pixels."""
