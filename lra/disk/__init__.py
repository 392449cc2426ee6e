"""Files on the disk: replaced as a whole, verified, held by one process at a time."""
