"""Probes: three ways to predict labels from vectors, and the folds over patients that two of them need."""
