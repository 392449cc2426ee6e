"""Weights & Biases: a mirror of what is on disk."""
