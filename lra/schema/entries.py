"""The configuration of each entry point: ``conf/<name>.yaml``, and what its keys take."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from omegaconf import DictConfig, OmegaConf

from ..options import Positive, Range, Whole
from ..select import Pairing
from . import sections
from .convert import ABSENT, Many, Rule, shown
from .sections import Attn, Block, Device, Logger, Name, Number, Precision, Seeds, Source, Threads

T = TypeVar("T")
Some = Annotated[list[T], Many(1)]  # or one without brackets
Least = Annotated[Number, Range(0)]
Count = Annotated[int, Range(2)]
Pad = Annotated[
    str,
    Rule(
        "fixed, batch, none or batch/<rows of a micro-batch>",
        lambda pad: bool(re.fullmatch(r"(fixed|batch|none)(/[1-9]\d{0,5})?", pad)),
    ),
]
Place = Annotated[int, Range(0)]


def check_budget(config: DictConfig) -> None:
    """Raise ValueError for a budget that the task does not have: nearly every number of a task hangs on it."""
    plain = OmegaConf.to_container(config)
    budget, budgets = plain.get("budget"), plain.get("budgets")
    if not isinstance(budgets, dict):
        raise ValueError(f"budgets must be keys with their values, not {shown(budgets)}")
    if not isinstance(budget, str) or budget not in budgets:
        raise ValueError(f"budget must be one of {', '.join(map(str, budgets))}, not {shown(budget)}")


@dataclass(kw_only=True)
class Prepared:
    """What configurations with a task share."""

    task: sections.Task
    source: Source
    protocol: sections.Protocol
    budget: Name
    budgets: dict[str, dict[str, Number | None]] = field(default_factory=dict)

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
    trainer: sections.Trainer
    logger: dict[str, Logger] = field(default_factory=dict)

    def validate(self) -> None:
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
class ShowRun:
    run: Path | None
    split: str
    example: Whole
    layer: Whole | None
    head: Whole | None
    at: Whole | list[Whole | list[Whole]] | None
    out: Path | None
    data: sections.Root


@dataclass(kw_only=True)
class Grid:
    """What conf/sweep/*.yaml hold."""

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


@dataclass(kw_only=True)
class Bench:
    name: Name
    what: Some[Literal["attention", "block", "step"]] | Literal["profile"]
    modes: Some[Literal["inference", "training"]]
    mechanisms: Some[str]
    reference: str | None
    n: Some[Positive]
    batch: Some[Positive]
    heads: Some[Positive]
    head_dim: Some[Positive]
    dtype: Some[Precision]
    tasks: Some[str]
    budget: Name
    batches: Literal["random", "data"]
    pads: Some[Pad]
    overrides: list[str]
    device: Device
    threads: Threads | None
    compile: bool
    cuda_graphs: bool
    repeats: Positive
    warmup: Whole
    sample_ms: Least
    limit: Least | None
    budget_s: Least | None
    steps: Positive
    runs: Path
    claims: dict[str, Number]


@dataclass(kw_only=True)
class Report:
    runs: Path
    study: Name | None
    out: Path | None
    logger: dict[str, Logger] = field(default_factory=dict)


@dataclass(kw_only=True)
class Tuning:
    lr: Annotated[float, Range(above=0)] | None
    batch: sections.Rows | None
    warmup: Whole | None
    eval_every: Positive | None


@dataclass(kw_only=True)
class Moved(sections.Root):
    eval_batch: sections.Rows | None


@dataclass(kw_only=True)
class Transfer:
    run: Annotated[Path, Rule("a finished run: run=runs/<study>/<task>/<label>")]
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


@dataclass(kw_only=True)
class Dropin:
    candidates: Some[str]
    counts: Some[Count]
    n: Count
    seed: Place
    sources: Annotated[list[Literal["gaussian", "clustered"]], Many(0)]
    heads: Positive
    head_dim: Positive
    length: Positive
    run: Path | None
    data: sections.Root
    model: Path | None
    examples: Path | None
    drawn: Positive
    size: Positive
    cost: Whole
    threads: Threads
    runs: Path

    def validate(self) -> None:
        if not (self.sources or self.run or self.model):
            raise ValueError("nothing to measure: name sources, run= or model=")
        if bool(self.model) != bool(self.examples):
            raise ValueError("model= and examples= go together: an encoder, and a .tar file that it reads")


@dataclass(kw_only=True)
class Factorise:
    kinds: Some[str]
    iterations: Positive
    init: Literal["code", "paper"]
    seed: Place
    impl: Literal["compiled", "torch"]
    runs: Path


@dataclass(kw_only=True)
class Pretrained:
    model: Path
    examples: Path
    train: Positive
    test: Positive
    length: Positive
    size: Positive
    pool: Literal["mean", "cls"]
    selections: Some[str]
    counts: Some[Positive]
    pairing: Pairing
    inverse: Whole
    steps: Whole
    lr: Annotated[float, Range(above=0)]
    batch: Positive
    neighbours: Positive
    seed: Place
    device: Device
    out: Path | None

    def validate(self) -> None:
        if self.neighbours > self.train or self.batch > self.train:
            raise ValueError(f"neighbours and batch must be at most train {self.train}")
        if self.out and Path(self.out).suffix == ".png":
            raise ValueError(f"out={self.out} is where the picture would go: name a .json file")


ENTRIES = {
    "train": Train,
    "data": Prepare,
    "show": Show,
    "show_run": ShowRun,
    "sweep": Sweep,
    "bench": Bench,
    "report": Report,
    "transfer": Transfer,
    "transfer_show": TransferShow,
    "dropin": Dropin,
    "factorise": Factorise,
    "pretrained": Pretrained,
}
