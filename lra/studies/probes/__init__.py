"""python -m lra.studies.probes, see ``lra.studies.probes.__main__``."""
