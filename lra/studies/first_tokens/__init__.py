"""python -m lra.studies.first_tokens, see ``lra.studies.first_tokens.__main__``."""
