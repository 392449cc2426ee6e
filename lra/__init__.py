"""Long Range Arena: tasks, attention mechanisms, training and tables. The command is ``lra``."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Look up a public name when it is asked for, so that ``import lra`` does not import torch."""
    if name == "load_dataset":
        # data_prep is above this package in the dependency order, so it is imported by name and only when needed.
        return import_module("data_prep.load").load_dataset
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("lra-suite")
    except metadata.PackageNotFoundError:  # a checkout on the path that is not installed
        return "unknown"
