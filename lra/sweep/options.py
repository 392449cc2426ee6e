"""The options of a sweep, conf/sweep.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ..config.base import Section
from ..config.compose import mechanism_overrides
from ..config.options import Options
from ..config.schema import Above, Name, Protocol, Seeds, Some
from ..options import NonNegative, Whole

# End of the message for an option that other sweeps do not have.
SEARCH_ONLY = "works only in sweeps with a learning-rate search, such as sweep=board; in other sweeps, set sweep.grids"


class Search(Section):
    """The search over learning rates of a sweep, such as sweep=board and sweep=recurrent."""

    seed: Whole
    rates: Some[Above]
    further: list[Above]
    # Class that plans the rounds of runs (``lra.sweep.plan.RoundsPlan``), by its dotted name: it imports this package.
    planner: str = "lra.board.runs.Board"


class SweepFile(Section):
    """The keys of conf/sweep/*.yaml."""

    name: Name
    tasks: Some[str]
    seeds: Seeds
    grids: dict[str, dict[str, Some[Any]]] = Field({})
    # Axes that a task's name shows already, such as task.length in the study of lengths; labels leave them out.
    shown: list[str] = Field([])
    search: Search | None = None
    mechanisms: list[str] = Field([])


# Options that a sweep sets for each of its runs.
SWEEP_KEYS = ("runs", "study", "seeds", "budget", "protocol")
# Options that a learning-rate search sets for each of its runs.
SEARCH_KEYS = ("runs", "study", "seeds", "label_keys", "optim.lr")


def override_keys(overrides: list[str]) -> list[str]:
    """List the keys that overrides set or remove."""
    return [line.lstrip("+~").partition("=")[0] for line in overrides]


class ManyRunsOptions(Options):
    """The options that commands on many runs share."""

    protocol: Protocol
    plan: bool
    seeds: Seeds
    budget: Name
    study: Name | None
    runs: Path
    overrides: list[str]
    measure: NonNegative
    minutes: Above | None

    def check(self) -> None:
        for key in override_keys(self.overrides):
            if key in SWEEP_KEYS:
                raise ValueError(f"overrides: {key}= is an option of the command itself; set it outside overrides")


class SweepOptions(ManyRunsOptions):
    conf: ClassVar[str] = "sweep"
    # Groups that name the mechanism of a learning-rate search; its planner reads them from the command line.
    unread: ClassVar[tuple[str, ...]] = ("attn", "block")

    sweep: SweepFile
    tasks: Some[str]
    mechanisms: list[str]

    @classmethod
    def check_unresolved(cls, tree: Mapping[str, Any]) -> None:
        for group in cls.unread:
            if tree.get(group) and "search" not in tree["sweep"]:
                raise ValueError(f"{group} {SEARCH_ONLY}")

    def check(self) -> None:
        super().check()
        if self.sweep.search and "optim.lr" in override_keys(self.overrides):
            raise ValueError("overrides: the search decides optim.lr; set its rates by sweep.search.rates=[...]")
        if self.sweep.search and "label_keys" in override_keys(self.overrides):
            raise ValueError("overrides: the search decides label_keys; name runs with other options by study=<name>")
        if not self.sweep.grids and not self.sweep.search:
            raise ValueError(f"sweep={self.sweep.name} defines no runs: its yaml needs grids or search")
        if self.mechanisms and not self.sweep.search:
            raise ValueError(f"mechanisms {SEARCH_ONLY}")
        if mechanism_overrides(self.command_overrides) and "mechanisms" in override_keys(self.command_overrides):
            raise ValueError("attn= replaces mechanisms=: give only one of them")
        for text in self.mechanisms:
            if not text.strip():
                raise ValueError("mechanisms must be names of conf/attn with options, not ''")
            for key in override_keys(text.split()[1:]):
                if key in SEARCH_KEYS:
                    raise ValueError(f"mechanisms: {text}: {key} is decided by the search; leave it out")
