"""The configurations of the measurements: conf/bench.yaml and those of the studies."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..ops.options import Positive, Range, Whole
from ..ops.selection import Pairing
from . import sections
from .convert import Many, Rule
from .sections import Device, Least, Name, Number, Precision, Some, Threads, Trust

Count = Annotated[int, Range(2)]
Pad = Annotated[
    str,
    Rule(
        "fixed, batch, none, compact or batch/<rows of a micro-batch>",
        lambda pad: bool(re.fullmatch(r"(fixed|batch|none|compact)(/[1-9]\d{0,5})?", pad)),
    ),
]


@dataclass(kw_only=True)
class Bench:
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
    cuda_graphs: bool
    repeats: Positive
    warmup: Whole
    sample_ms: Least
    clock: Literal["wall", "cpu"]
    limit: Least | None
    budget_s: Least | None
    steps: Positive
    runs: Path
    claims: dict[str, Number]


@dataclass(kw_only=True)
class Dropin:
    candidates: Some[str]
    counts: Some[Count]
    n: Count
    seed: Whole
    sources: Annotated[list[Literal["gaussian", "clustered"]], Many(0)]
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
    seed: Whole
    impl: Literal["compiled", "torch"]
    runs: Path


@dataclass(kw_only=True)
class Inverses:
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


@dataclass(kw_only=True)
class Lengths:
    tasks: Some[Literal["adding", "temporal_order"]]
    lengths: Annotated[
        Some[Count],
        Rule(
            "a list of different lengths, such as [128,256]",
            lambda lengths: len(set(lengths)) == len(lengths),
        ),
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
    seed: Whole
    device: Device
    out: Path | None

    def validate(self) -> None:
        if self.neighbours > self.train or self.batch > self.train:
            raise ValueError(f"neighbours and batch must be at most train {self.train}")
        if self.out and Path(self.out).suffix == ".png":
            raise ValueError(f"out={self.out} is the path of the figure; name a .json file")


@dataclass(kw_only=True)
class Probes:
    run: Annotated[Some[Path], Rule("a finished run, or a list of them: run=runs/<study>/<task>/<label>")]
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
