"""The types of all options, checked in one place before anything is built or written.

``entries`` has a dataclass for each ``conf/<name>.yaml``, ``sections`` for its parts. Options of a constructor call are
the constructor's keyword-only arguments, see ``calls``. An annotation gives type, choices and range of one option; the
``validate`` of a section or an entry checks what several options must have in common.
"""

from omegaconf import DictConfig, OmegaConf

from .convert import plain, section, typed
from .entries import ENTRIES
from .sections import Name, Optim

__all__ = ["Name", "Optim", "resolved", "section", "typed"]


def resolved(name: str, config: DictConfig) -> DictConfig:
    """Resolve the interpolations of a configuration and convert its values to their types.

    Args:
        name: of the entry point, a key of ``ENTRIES``.
        config: as hydra composed it.

    Raises:
        ValueError: an option is unknown or does not take its value.
    """
    if before := getattr(ENTRIES[name], "before", None):  # checks on which the interpolations rely
        before(config)
    typed_config = OmegaConf.create(plain(section(ENTRIES[name], OmegaConf.to_container(config, resolve=True), "")))
    OmegaConf.set_struct(typed_config, True)
    return typed_config
