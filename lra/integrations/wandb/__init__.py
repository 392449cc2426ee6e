"""Weights & Biases: a mirror of the files on disk."""
