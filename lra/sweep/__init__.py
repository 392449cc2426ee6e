"""python -m lra.sweep, see ``lra.sweep.__main__``."""
