"""python -m lra.dropin, see ``lra.dropin.__main__``."""
