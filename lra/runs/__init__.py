"""The on-disk form of runs."""
