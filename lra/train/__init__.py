"""python -m lra.train, see ``lra.train.__main__``."""
