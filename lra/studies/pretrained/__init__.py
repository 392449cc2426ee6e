"""python -m lra.studies.pretrained, see ``lra.studies.pretrained.__main__``."""
