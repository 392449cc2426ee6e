"""Messages about a user's mistake: the option or the file, and what to do."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Mapping

import torch
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ..console import pip_install
from ..disk.atomic import NO_ROOM
from . import target as targets
from .messages import unknown_key


class AlreadyReported(ValueError):
    """A failure that another process has explained already: the command ends without its own message."""


OUT_OF_MEMORY = "out of memory"
USER_ERRORS = (ValueError, OSError, MemoryError, HydraException, OmegaConfBaseException)
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}  # launchers that are not core


def is_user_error(error: Exception) -> bool:
    """Whether an error is one that a user can mend, so that one line is enough."""
    return isinstance(error, USER_ERRORS) or failure(error) == OUT_OF_MEMORY


def explain(error: BaseException, words: Iterable[str] = ()) -> str:
    """Describe a user's mistake: the offending option or name and the valid ones.

    Args:
        error: error that the mistake led to.
        words: overrides of the command line, among which a misspelt group is looked for.
    """
    # The first cause says most: a ValueError of the suite, an unknown key, an unknown choice of a group.
    chain = [error]
    while _cause(chain[-1]) is not None:
        chain.append(_cause(chain[-1]))
    for cause in reversed(chain):
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
            return _no_such_key(cause.full_key, cause.parent_node or {})
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = cause.missing_cfg_file.rpartition("/")
            if group == "hydra/launcher" and name in EXTRAS:
                return f"{group}={name} is not installed: {pip_install(EXTRAS[name])}"
            return f"{group}={name}: no such choice; {group} is one of {', '.join(cause.options)}"
        if isinstance(cause, ValueError) and not isinstance(cause, OmegaConfBaseException):
            return str(cause)
    # A full disk, a group that is not chosen, too little memory, several values without -m.
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or "a file"
        return f"{place} cannot be written: {error.strerror}; make room, then the same command resumes"
    text = " ".join(str(error).split()) or type(error).__name__
    missing = re.match(r"You must specify '(.*?)'.* Available options: (.*)", text)
    if missing:
        return _missing(missing[1], missing[2].split(), words)
    if failure(error) == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: {text.rpartition('] ')[2]}"
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(chr(39))[1]}: several values need -m, one run each; a comma in one value needs quotes"
    return text


def _no_such_key(key: str, parent: Mapping) -> str:
    """Describe a key that a section lacks; its constructor may have an option of that name with a default."""
    section, _, name = key.rpartition(".")
    keys = {str(key_) for key_ in parent} - {targets.TARGET, targets.PARTIAL}
    path = parent.get(targets.TARGET)
    if path:
        with contextlib.suppress(ValueError):  # raised for a target that cannot be imported
            keys |= targets.options_of(targets.import_target(path, section))[0].keys()
        if name in keys:
            return f"{key} is not in the yaml of {section}, but an option of {path}: add it by +{key}=<value>"
    return unknown_key(name, keys, section)


def _missing(group: str, choices: list[str], words: Iterable[str]) -> str:
    """Describe a group that the command line does not choose, or one of its words that looks like that."""
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    matches = difflib.get_close_matches(group, keys, n=1)
    if group not in keys and matches:
        return f"{matches[0]}: no such key; did you mean {group}=?"
    return f"{group} is missing; it must be one of {', '.join(choices)}"


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def failure(error: Exception) -> str:
    """Describe an error of a step; a full CPU allocator raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if isinstance(error, ValueError) else f"failed: {line}"
