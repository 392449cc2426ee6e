"""The values that every option takes, and the one place that checks them: before anything is built or written.

``entries`` has a dataclass for each ``conf/<name>.yaml``, ``sections`` for its parts. Options of a constructor call are
the constructor's keyword-only arguments, see ``calls``. Annotations say type, choices and range of one option, and the
``validate`` of a section or an entry what several options must have in common.
"""

from omegaconf import DictConfig, OmegaConf

from .convert import plain, section, typed
from .entries import ENTRIES
from .sections import Name, Optim

__all__ = ["Name", "Optim", "resolved", "section", "typed"]


def resolved(name: str, config: DictConfig) -> DictConfig:
    """The configuration of an entry point, interpolations resolved and values as their types.

    Raises ValueError for the first option that is unknown or takes no such value.
    """
    if before := getattr(ENTRIES[name], "before", None):  # what interpolations need
        before(config)
    made = OmegaConf.create(plain(section(ENTRIES[name], OmegaConf.to_container(config, resolve=True), "")))
    OmegaConf.set_struct(made, True)
    return made
