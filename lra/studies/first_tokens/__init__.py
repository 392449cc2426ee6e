"""python -m lra.studies.lengths, see ``lra.studies.lengths.__main__``."""
