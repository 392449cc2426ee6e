"""python -m lra.train, see ``lra.train.run``."""
