"""Long Range Arena: tasks, attention mechanisms, training and tables. Entry points: python -m lra.train, lra.report."""

from .startup import end_quietly, refuse_other_platforms, wait_briefly

refuse_other_platforms()
wait_briefly()
end_quietly()

from importlib import import_module, metadata  # noqa: E402 after the settings above

try:
    __version__ = metadata.version("lra-suite")
except metadata.PackageNotFoundError:  # a checkout that is on the path and not installed
    __version__ = "unknown"


def __getattr__(name: str):
    # load_dataset imports torch and hydra, which `import lra` alone must not.
    if name == "load_dataset":
        return import_module("data_prep.load").load_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
