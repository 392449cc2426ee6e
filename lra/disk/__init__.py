"""Files on the disk: atomic replacement, checksums, locks."""
