"""python -m lra.studies.dropin, see ``lra.studies.dropin.__main__``."""
