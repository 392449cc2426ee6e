"""Files on the disk: atomic replacement, locks."""
