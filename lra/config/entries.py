"""The configuration of each entry point, ``conf/<name>.yaml``, with the types of its keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from ..ops.options import Positive, Range, Whole
from . import sections
from .section import Section
from .sections import Attn, Block, Least, Loggers, Name, Number, Seeds, Some, Source, Threads, Trust
from .studies import Bench, Dropin, Factorise, Inverses, Lengths, Pretrained, Probes
from .wording import shown


def check_budget(tree: Mapping[str, Any]) -> None:
    """Raise ValueError for a budget that the task does not have, since most numbers of a task are resolved from it."""
    budget, budgets = tree.get("budget"), tree["budgets"]
    if not isinstance(budgets, Mapping):
        raise ValueError(f"budgets must be keys with their values, not {shown(budgets)}")
    if not isinstance(budget, str) or budget not in budgets:
        raise ValueError(f"budget must be one of {', '.join(map(str, budgets))}, not {shown(budget)}")


class Prepared(Section):
    """The keys that configurations with a task share."""

    task: sections.Task
    source: Source
    protocol: sections.Protocol
    budget: Name
    budgets: dict[str, dict[str, Number | list[Number] | None]] = Field({})
    masking: sections.Masking = sections.Masking()


class Train(Prepared):
    seeds: Seeds
    study: Name
    label_keys: list[str] = Field([])
    runs: Path
    model: sections.Model
    optim: sections.Optim
    data: sections.Data
    block: Block
    attn: Attn
    pretrain: sections.Pretrain
    trainer: sections.Trainer
    logger: Loggers = Field({})

    def settled(self) -> Self:
        pretrain, optim = sections.settled(self.pretrain, self.optim)
        return self.changed(pretrain=pretrain, optim=optim)

    def check(self) -> None:
        if self.trainer.compile and self.data.pad == "none":
            raise ValueError(
                "data.pad=none has a shape for each batch, too many to compile; use data.pad=batch or fixed"
            )


class Prepare(Section):
    """python -m data_prep, with a task or without."""

    task: sections.Task = None
    source: Source = None
    protocol: sections.Protocol
    budget: Name
    budgets: dict[str, dict[str, Number | None]] = Field({})
    masking: sections.Masking = sections.Masking()
    data: sections.Root
    workers: Threads | None
    force: bool
    verify: bool


class Show(Prepared):
    """python -m data_prep.show"""

    data: sections.Root
    split: str
    count: Positive
    out: Path


class Maps(Section):
    run: Path | None
    split: str
    example: Whole
    layer: Whole | None
    head: Whole | None
    at: Whole | list[Whole | list[Whole]] | None
    out: Path | None
    trust: Trust
    data: sections.Root


class Search(Section):
    """The learning rates of sweep=board."""

    seed: Whole
    rates: Some[sections.Above]
    further: list[sections.Above]


class Grid(Section):
    """The keys of conf/sweep/*.yaml."""

    name: Name
    tasks: Some[str]
    seeds: Seeds
    grids: dict[str, dict[str, Some[Any]]] = Field({})
    search: Search | None = None
    mechanisms: list[str] = Field([])


class Sweep(Section):
    sweep: Grid
    protocol: sections.Protocol
    plan: bool
    tasks: Some[str]
    mechanisms: list[str]
    seeds: Seeds
    budget: Name
    study: Name | None
    runs: Path
    overrides: list[str]
    measure: Least
    minutes: Annotated[Number, Range(above=0)] | None

    def check(self) -> None:
        if self.mechanisms and not self.sweep.search:
            raise ValueError("mechanisms is an option of sweep=board; other sweeps have sweep.grids")


class Report(Section):
    runs: Path
    published: bool
    study: Name | None
    out: Path | None
    logger: Loggers = Field({})


class Publish(Section):
    runs: Annotated[Path, Field(description="a folder of finished runs: runs=runs/<study>")]
    weights: list[Whole]
    out: Path


class Tuning(Section):
    lr: Annotated[float, Range(above=0)] | None
    batch: sections.BatchSize | None
    warmup: Whole | None
    eval_every: Positive | None


class Moved(sections.Root):
    eval_batch: sections.BatchSize | None


class Transfer(Section):
    run: Annotated[Path, Field(description="a finished run: run=runs/<study>/<task>/<label>")]
    trust: Trust
    attn: Attn
    block: Block = None
    trainer: sections.Trainer
    logger: Loggers = Field({})
    steps: Whole
    examples: Positive
    spectrum: Whole
    optim: Tuning
    study: Name | None
    runs: Path
    data: Moved


class TransferShow(Section):
    runs: Path
    out: Path | None


ENTRIES = {
    "train": Train,
    "data": Prepare,
    "show": Show,
    "maps": Maps,
    "sweep": Sweep,
    "bench": Bench,
    "report": Report,
    "publish": Publish,
    "transfer": Transfer,
    "transfer_show": TransferShow,
    "dropin": Dropin,
    "factorise": Factorise,
    "pretrained": Pretrained,
    "probes": Probes,
    "lengths": Lengths,
    "inverses": Inverses,
}
