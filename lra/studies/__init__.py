"""Studies that use the suite. None imports another one. Of the suite, only the report imports any of them."""
