"""File input and output: atomic replacement, locks, typed JSON."""
