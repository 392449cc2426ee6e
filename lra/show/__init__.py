"""python -m lra.show, see ``lra.show.__main__``."""
