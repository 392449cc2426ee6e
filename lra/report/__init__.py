"""python -m lra.report, see ``lra.report.__main__``."""
