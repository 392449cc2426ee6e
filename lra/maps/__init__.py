"""python -m lra.maps, see ``lra.maps.__main__``."""
