"""Long Range Arena: tasks, attention mechanisms, training and tables. The entry point is ``lra``, see ``lra.cli``."""


def __getattr__(name: str) -> str:
    """Look up ``__version__`` when it is asked for: reading it takes as long as the rest of ``lra --help``."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("lra-suite")
    except metadata.PackageNotFoundError:  # a checkout on the path that is not installed
        return "unknown"
