"""python -m lra.studies.factorise, see ``lra.studies.factorise.__main__``."""
