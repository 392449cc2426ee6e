"""python -m lra.bench, see ``lra.bench.__main__``."""
