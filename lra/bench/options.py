"""The options of the benchmark, conf/bench.yaml."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ..config.options import Options
from ..config.schema import Compile, Device, Least, Name, Number, Precision, Some, Threads, Trainer
from ..options import Positive, Whole
from .measure import Clock

Pad = Annotated[
    str,
    Field(
        pattern=r"^(fixed|batch|none|compact)(/[1-9]\d{0,5})?$",
        description="fixed, batch, none or compact, or with micro-batches, such as batch/8",
    ),
]


class BenchOptions(Options):
    conf: ClassVar[str] = "bench"
    # Options of a single contestant, read by ``contestants.asked``.
    unread: ClassVar[tuple[str, ...]] = ("attn", "block")

    # What is measured.
    name: Name
    what: Some[Literal["attention", "block", "step", "error"]] | Literal["profile"]
    modes: Some[Literal["inference", "training"]]
    mechanisms: Some[str]
    reference: str | None
    # Shapes: every combination is measured.
    n: Some[Positive]
    batch: Some[Positive]
    heads: Some[Positive]
    head_dim: Some[Positive]
    dtype: Some[Precision]
    # Steps and profiles: their tasks and batches.
    tasks: Some[str]
    budget: Name
    batches: Literal["random", "data"]
    pads: Some[Pad]
    overrides: list[str]
    # Where and how it is measured.
    device: Device
    threads: Threads | None
    compile: Compile
    trainer: Trainer | None = None
    repeats: Positive
    warmup: Whole
    sample_ms: Least
    clock: Clock
    # Limits of the time, steps of a profile, and the record.
    limit: Least | None
    budget_s: Least | None
    steps: Positive
    runs: Path
    claims: dict[str, Number]

    def resolve(self) -> Self:
        """Override device, dtype, compilation and threads by the options of ``trainer=``."""
        trainer = self.trainer
        if trainer is None:
            return self
        return self.replace(
            device=trainer.device,
            dtype=[trainer.precision],
            compile=trainer.compile,
            threads=trainer.threads,
        )
