"""Files on the disk: atomic replacement, locks, search, typed JSON."""
