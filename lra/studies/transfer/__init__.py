"""python -m lra.studies.transfer, see ``lra.studies.transfer.__main__``."""
