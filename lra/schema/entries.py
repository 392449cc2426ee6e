"""The configuration of each entry point, ``conf/<name>.yaml``, with the types of its keys."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf

from ..ops.options import Positive, Range, Whole
from . import sections
from .convert import ABSENT, Rule
from .sections import Attn, Block, Least, Logger, Name, Number, Seeds, Some, Source, Threads, Trust
from .studies import Bench, Dropin, Factorise, Inverses, Lengths, Pretrained, Probes
from .wording import shown


def check_budget(config: DictConfig) -> None:
    """Raise ValueError for a budget that the task does not have, since most numbers of a task are resolved from it."""
    plain = OmegaConf.to_container(config)
    budget, budgets = plain.get("budget"), plain.get("budgets")
    if not isinstance(budgets, dict):
        raise ValueError(f"budgets must be keys with their values, not {shown(budgets)}")
    if not isinstance(budget, str) or budget not in budgets:
        raise ValueError(f"budget must be one of {', '.join(map(str, budgets))}, not {shown(budget)}")


@dataclass(kw_only=True)
class Prepared:
    """The keys that configurations with a task share."""

    task: sections.Task
    source: Source
    protocol: sections.Protocol
    budget: Name
    budgets: dict[str, dict[str, Number | None]] = field(default_factory=dict)
    masking: sections.Masking = field(default_factory=sections.Masking)

    @staticmethod
    def before(config: DictConfig) -> None:
        check_budget(config)


@dataclass(kw_only=True)
class Train(Prepared):
    seeds: Seeds
    study: Name
    label_keys: list[str] = field(default_factory=list)
    runs: Path
    model: sections.Model
    optim: sections.Optim
    data: sections.Data
    block: Block
    attn: Attn
    pretrain: sections.Pretrain
    trainer: sections.Trainer
    logger: dict[str, Logger] = field(default_factory=dict)

    def validate(self) -> None:
        self.pretrain.settle(self.optim)
        if self.trainer.compile and self.data.pad == "none":
            raise ValueError(
                "data.pad=none has a shape for each batch, too many to compile; use data.pad=batch or fixed"
            )


@dataclass(kw_only=True)
class Prepare:
    """python -m data_prep, with a task or without."""

    task: sections.Task = ABSENT
    source: Source = ABSENT
    protocol: sections.Protocol
    budget: Name
    budgets: dict[str, dict[str, Number | None]] = field(default_factory=dict)
    masking: sections.Masking = field(default_factory=sections.Masking)
    data: sections.Root
    workers: Threads | None
    force: bool
    verify: bool

    @staticmethod
    def before(config: DictConfig) -> None:
        if "budgets" in config:
            check_budget(config)


@dataclass(kw_only=True)
class Show(Prepared):
    """python -m data_prep.show"""

    data: sections.Root
    split: str
    count: Positive
    out: Path


@dataclass(kw_only=True)
class Maps:
    run: Path | None
    split: str
    example: Whole
    layer: Whole | None
    head: Whole | None
    at: Whole | list[Whole | list[Whole]] | None
    out: Path | None
    trust: Trust
    data: sections.Root


@dataclass(kw_only=True)
class Grid:
    """The keys of conf/sweep/*.yaml."""

    name: Name
    tasks: Some[str]
    seeds: Seeds
    grids: dict[str, dict[str, Some[Any]]]


@dataclass(kw_only=True)
class Sweep:
    sweep: Grid
    protocol: sections.Protocol
    plan: bool
    tasks: Some[str]
    seeds: Seeds
    budget: Name
    study: Name | None
    runs: Path
    overrides: list[str]
    measure: Least
    minutes: Annotated[Number, Range(above=0)] | None


@dataclass(kw_only=True)
class Report:
    runs: Path
    published: bool
    study: Name | None
    out: Path | None
    logger: dict[str, Logger] = field(default_factory=dict)


@dataclass(kw_only=True)
class Publish:
    runs: Annotated[Path, Rule("a folder of finished runs: runs=runs/<study>")]
    weights: list[Whole]
    out: Path


@dataclass(kw_only=True)
class Tuning:
    lr: Annotated[float, Range(above=0)] | None
    batch: sections.BatchSize | None
    warmup: Whole | None
    eval_every: Positive | None


@dataclass(kw_only=True)
class Moved(sections.Root):
    eval_batch: sections.BatchSize | None


@dataclass(kw_only=True)
class Transfer:
    run: Annotated[Path, Rule("a finished run: run=runs/<study>/<task>/<label>")]
    trust: Trust
    attn: Attn
    block: Block = ABSENT
    trainer: sections.Trainer
    logger: dict[str, Logger] = field(default_factory=dict)
    steps: Whole
    examples: Positive
    spectrum: Whole
    optim: Tuning
    study: Name | None
    runs: Path
    data: Moved

    @staticmethod
    def before(config: DictConfig) -> None:
        if "task" in config:
            raise ValueError("a transfer has the task of its run; leave out task=")


@dataclass(kw_only=True)
class TransferShow:
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
