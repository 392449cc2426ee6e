"""Messages about a user's mistake: the option or the file, and what to do."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

import torch
import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ..console import first_line, pip_install
from ..io.atomic import NO_ROOM
from . import target as targets
from .base import unknown_key

OUT_OF_MEMORY = "out of memory"
# Messages of out-of-memory errors without a separate class: torch's CPU allocator (by platform), C++'s operator new,
# and CUDA and its libraries, which allocate some memory themselves.
_ALLOCATOR_ERRORS = (
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)
USER_ERRORS = (ValueError, OSError, MemoryError, HydraException, OmegaConfBaseException, yaml.YAMLError)
# Extras of pyproject.toml by launcher.
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}


def is_user_error(error: Exception) -> bool:
    """Whether a user can correct an error, so that its message is shown without a traceback."""
    return isinstance(error, USER_ERRORS) or is_out_of_memory(error)


@contextlib.contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Raise a user's mistake in the block as a ValueError whose message begins with ``prefix``."""
    try:
        yield
    except USER_ERRORS as error:
        raise ValueError(f"{prefix}: {explain(error)}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator raised an error. Only torch's allocator on CUDA and Python's have a class for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _ALLOCATOR_ERRORS)


def explain(error: BaseException, overrides: Iterable[str] = ()) -> str:
    """Describe a user's mistake: the offending option or name and the valid ones.

    Args:
        error: error that the mistake led to.
        overrides: overrides of the command line, which are searched for a misspelt group.
    """
    # The earliest cause is the most specific: a ValueError of the suite, an unknown key, an unknown choice of a group.
    for cause in _causes(error):
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
            return _unknown_option(cause.full_key, cause.parent_node or {})
        if isinstance(cause, MissingConfigException) and cause.options:
            return _unknown_choice(cause)
        if isinstance(cause, ValueError) and not isinstance(cause, OmegaConfBaseException):
            return _explain_item(str(cause), overrides) or str(cause)

    # A full disk.
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        path = error.filename or "a file"
        return f"{path} cannot be written: {error.strerror}; make room, then the same command resumes"
    # A group that is not chosen.
    messages = [" ".join(str(cause).split()) for cause in (error, *_causes(error))]
    text = next(filter(None, messages), type(error).__name__)
    missing = re.match(r"You must specify '(.*?)'.* Available options: (.*)", text)
    if missing:
        group, choices = missing.groups()
        return _missing_choice(group, choices.split(), overrides)
    # Out of memory: the first line of torch's message has the details behind the location in its code.
    if is_out_of_memory(error):
        lines = str(error).splitlines() or [text]
        details = lines[0].rpartition("] ")[2]
        return f"{OUT_OF_MEMORY}: {details}"
    # Several values without -m; Hydra quotes the argument.
    if text.startswith("Ambiguous value for argument"):
        argument = text.split("'")[1]
        return f"{argument}: several values need -m, which starts a run for each; quote a value that contains a comma"
    # An argument without "=".
    if "missing EQUAL" in text:
        argument = text.split("'")[1]
        return f"{argument}: an option has the form <name>=<value>, such as task=listops"
    return text


def _causes(error: BaseException) -> list[BaseException]:
    """An error and the errors that led to it, the earliest first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    # An exception that was raised again can be in its own chain.
    while cause is not None and not any(cause is other for other in causes):
        causes.append(cause)
        # As in a traceback: an explicit cause, or else the error that was being handled.
        context = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or context
    return causes[::-1]


def _unknown_choice(error: MissingConfigException) -> str:
    """Describe a name that a group does not have."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and name in EXTRAS:
        return f"{group}={name} is not installed: {pip_install(EXTRAS[name])}"
    choices = error.options or ()
    # The default cutoff would offer genome for nope.
    matches = difflib.get_close_matches(name, choices, n=1, cutoff=0.7)
    hint = f"did you mean {group}={matches[0]}? " if matches else ""
    # A dotted name is a class.
    if group == "attn" and "." in name:
        hint = f"your own class is attn=custom attn._target_={name}; "
    return f"{group}={name}: no such choice; {hint}{group} is one of {', '.join(choices)}"


def _unknown_option(key: str, parent: Mapping) -> str:
    """Describe a key that a section lacks; its constructor may have an option of that name with a default."""
    section, _, name = key.rpartition(".")
    keys = {str(sibling) for sibling in parent}
    keys -= {targets.TARGET, targets.PARTIAL}
    path = parent.get(targets.TARGET)
    if path:
        # A target that cannot be imported has no further options.
        with contextlib.suppress(ValueError):
            function = targets.import_target(path, section)
            kinds, _ = targets.options_of(function)
            keys |= kinds.keys()
        if name in keys:
            return f"{key} is not in the yaml of {section} but is an option of {path}: add it with +{key}=<value>"
    return unknown_key(name, keys, section)


def _explain_item(message: str, overrides: Iterable[str]) -> str | None:
    """Explain the error of an override of one item of a list, which OmegaConf raises as an error of ``int``."""
    failed = re.fullmatch(r"invalid literal for int\(\) with base 10: '(.*)'", message)
    if failed is None:
        return None
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        option, _, item = key.rpartition(".")
        if option and item == failed[1]:
            return f"{key}: {option} is a list; set it as a whole: {option}=[...]"
    return None


def _missing_choice(group: str, choices: list[str], overrides: Iterable[str]) -> str:
    """Describe a group that the command line does not choose, or an override that looks like its misspelt name."""
    keys = [line.lstrip("+").partition("=")[0] for line in overrides]
    matches = difflib.get_close_matches(group, keys, n=1)
    if group not in keys and matches:
        return f"{matches[0]}: no such key; did you mean {group}=<name>?"
    return f"{group} is missing; it must be one of {', '.join(choices)}"


def error_status(error: BaseException) -> str:
    """Describe the error that ended a measurement."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    line = first_line(error)
    return line if isinstance(error, ValueError) else f"failed: {line}"
