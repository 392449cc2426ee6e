"""python -m lra.studies.inverses, see ``lra.studies.inverses.__main__``."""
