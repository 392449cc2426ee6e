"""A user's mistake in one line."""

import torch
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ..console import pip_install
from ..disk.atomic import NO_ROOM


class Told(ValueError):
    """A failure that another process has explained already: the command ends without a line of its own."""


OUT_OF_MEMORY = "out of memory"
REFUSALS = (ValueError, OSError, MemoryError, HydraException, OmegaConfBaseException)
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}  # launchers that are not core


def refusal(error: Exception) -> bool:
    """Whether an error is one that a user can mend, so that one line is enough."""
    return isinstance(error, REFUSALS) or failure(error) == OUT_OF_MEMORY


def explain(error: BaseException) -> str:
    """Describe a user's mistake in one line: the offending option or name and the valid ones."""
    chain = [error]
    while (cause := _cause(chain[-1])) is not None:
        chain.append(cause)
    for cause in reversed(chain):
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
            parent = cause.full_key.rpartition(".")[0] or "the configuration"
            keys = sorted(str(key) for key in cause.parent_node or [])
            return f"{cause.full_key}: no such key; {parent} has {', '.join(keys)}"
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = cause.missing_cfg_file.rpartition("/")
            if group == "hydra/launcher" and name in EXTRAS:
                return f"{group}={name} is not installed: {pip_install(EXTRAS[name])}"
            return f"{group}={name}: no such choice; {group} is one of {', '.join(cause.options)}"
        if isinstance(cause, ValueError) and not isinstance(cause, OmegaConfBaseException):
            return str(cause)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or "a file"
        return f"{place} cannot be written: {error.strerror}; make room, then the same command goes on"
    text = " ".join(str(error).split()) or type(error).__name__
    if failure(error) == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: {text.rpartition('] ')[2]}"
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(chr(39))[1]}: several values need -m, one run each"
    return text


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def failure(error: Exception) -> str:
    """Describe an error of a step in one line; a full CPU allocator raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if isinstance(error, ValueError) else f"failed: {line}"
