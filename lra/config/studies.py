"""The configurations of the measurements: conf/bench.yaml and those of the studies."""

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen, Predicate
from pydantic import Field

from ..ops.options import Positive, Range, Whole
from ..ops.selection import Pairing
from . import sections
from .section import Section
from .sections import Device, Least, Name, Number, Precision, Some, Threads, Trust

Count = Annotated[int, Range(2)]
Pad = Annotated[
    str,
    Field(
        pattern=r"^(fixed|batch|none|compact)(/[1-9]\d{0,5})?$",
        description="fixed, batch, none, compact or batch/<rows of a micro-batch>",
    ),
]


class Bench(Section):
    name: Name
    what: Some[Literal["attention", "block", "step", "error"]] | Literal["profile"]
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
    repeats: Positive
    warmup: Whole
    sample_ms: Least
    clock: Literal["wall", "cpu"]
    limit: Least | None
    budget_s: Least | None
    steps: Positive
    runs: Path
    claims: dict[str, Number]


class Dropin(Section):
    candidates: Some[str]
    counts: Some[Count]
    n: Count
    seed: Whole
    sources: Annotated[list[Literal["gaussian", "clustered"]], sections.listed, MinLen(0)]
    heads: Positive
    head_dim: Positive
    length: Positive
    run: Path | None
    trust: Trust
    data: sections.Root
    model: Path | None
    examples: Path | None
    drawn: Positive
    size: Positive
    cost: Whole
    threads: Threads
    runs: Path

    def check(self) -> None:
        if not (self.sources or self.run or self.model):
            raise ValueError("nothing to measure: name sources, run= or model=")
        if bool(self.model) != bool(self.examples):
            raise ValueError("model= and examples= go together: an encoder, and a .tar file that it reads")


class Factorise(Section):
    kinds: Some[str]
    iterations: Positive
    init: Literal["code", "paper"]
    seed: Whole
    impl: Literal["compiled", "torch"]
    runs: Path


class Inverses(Section):
    run: Some[Path] | None
    trust: Trust
    n: Positive
    steps: Some[Whole]
    dtype: Literal["float32", "float64"]
    kinds: Some[Literal["gaussian", "clustered"]]
    counts: Some[Count]
    heads: Positive
    head_dim: Positive
    length: Positive
    seed: Whole
    threads: Threads | None
    runs: Path
    data: sections.Root


class Lengths(Section):
    tasks: Some[Literal["adding", "temporal_order"]]
    lengths: Annotated[
        Some[Count],
        Predicate(sections.distinct),
        Field(description="a list of different lengths, such as [128,256]"),
    ]
    mechanisms: Some[str]
    seeds: sections.Seeds
    protocol: sections.Protocol
    budget: Name
    study: Name | None
    overrides: list[str]
    plan: bool
    minutes: Annotated[Number, Range(above=0)] | None
    measure: Least
    runs: Path


class Pretrained(Section):
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
    seed: Whole
    device: Device
    out: Path | None

    def check(self) -> None:
        if self.neighbours > self.train or self.batch > self.train:
            raise ValueError(f"neighbours and batch must be at most train {self.train}")
        if self.out and self.out.suffix == ".png":
            raise ValueError(f"out={self.out} is the path of the figure; name a .json file")


class Probes(Section):
    run: Annotated[Some[Path], Field(description="a finished run, or a list of them: run=runs/<study>/<task>/<label>")]
    trust: Trust
    swaps: list[str]
    kept: Positive | None
    examples: Positive
    rows: Positive
    derived: Whole
    batch: sections.BatchSize
    device: Device
    threads: Threads | None
    runs: Path
    data: sections.Root
