"""File input and output: atomic replacement, locks, search, typed JSON."""
