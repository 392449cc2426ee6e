"""python -m lra.factorise, see ``lra.factorise.__main__``."""
