"""Studies that use the suite. None imports another one, and the suite only reads their ``report`` modules."""
