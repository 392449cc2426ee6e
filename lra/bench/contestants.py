"""The options of the benchmark, conf/bench.yaml, and the experiments of its contestants by their names.

A name is a label: a file of attn in conf or in a folder of --config-dir, or of conf/attn/bench, then its changed
options, as in ``cur_step-count=32-pinv.steps=6`` and ``custom-_target_=mine.Foo``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from ..config import CONF
from ..config.compose import compose, config_dirs, mechanism_overrides
from ..config.experiment import Experiment
from ..config.options import Options
from ..config.schema import Compile, Device, Name, Number, Precision, Some, Threads, Trainer
from ..options import NonNegative, Positive, Range, Whole
from .measure import Clock

MECHANISMS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")  # mechanisms=all
BENCHMARK_ONLY = sorted(path.stem for path in (CONF / "attn" / "bench").glob("*.yaml"))
Pad = Annotated[
    str,
    Field(
        pattern=r"^(fixed|batch|none|compact)(/[1-9]\d{0,5})?$",
        description="fixed, batch, none or compact, or with micro-batches, such as batch/8",
    ),
]

# Lists of which every combination is measured.
LISTS = ("modes", "n", "batch", "heads", "head_dim", "dtype", "tasks", "pads")


class BenchOptions(Options):
    """Options of ``python -m lra.bench``, explained in conf/bench.yaml."""

    conf: ClassVar[str] = "bench"
    # Groups of a single contestant, which are not parsed: ``expand_mechanisms`` reads their overrides.
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
    sample_ms: NonNegative
    clock: Clock
    # Limits of the time, steps of a profile, and the record.
    limit: Annotated[Number, Range(above=0)] | None
    budget_s: Annotated[Number, Range(above=0)] | None
    steps: Positive
    runs: Path
    claims: dict[str, Number]

    def check(self) -> None:
        if self.batches == "random" and self.pads != ["fixed"]:
            raise ValueError("pads needs batches=data; batches=random has full sequences without padding")
        if "step" not in self.what and self.what != "profile" and self.pads != ["fixed"]:
            raise ValueError("pads needs what=step or what=profile; other measurements have no padding")
        if self.sample_ms and self.batches == "data":
            raise ValueError("sample_ms needs batches=random; batches=data would give contestants different batches")
        if any(line.lstrip("+~").startswith("trainer") for line in self.overrides):
            raise ValueError("overrides cannot set the trainer; use trainer=, dtype=, compile=, threads= or device=")

    def resolve(self) -> Self:
        """Drop repeated values, and override device, dtype, compilation and threads by the options of ``trainer=``."""
        # The growth between two rows of one length is undefined.
        lists = {key: list(dict.fromkeys(getattr(self, key))) for key in LISTS}
        if isinstance(self.what, list):
            lists["what"] = list(dict.fromkeys(self.what))
        options = self.replace(**lists)
        trainer = options.trainer
        if trainer is None:
            return options
        if trainer.devices != 1:
            raise ValueError(f"trainer.devices must be 1, not {trainer.devices}: a benchmark is one process")
        return options.replace(
            device=trainer.device,
            dtype=[trainer.precision],
            compile=trainer.compile,
            threads=trainer.threads,
        )


class Shape(NamedTuple):
    """The shape of a measurement; ``n`` None stands for the task's own length."""

    n: int | None
    batch: int
    heads: int
    head_dim: int
    dtype: str


def expand_mechanisms(options: BenchOptions) -> BenchOptions:
    """The options with the names of all contestants.

    ``attn=`` with its options becomes the only contestant; removed options and the options of ``block=`` become
    overrides of it.

    Raises:
        ValueError: a name is unknown.
    """
    arguments = mechanism_overrides(options.command_overrides)
    if arguments:
        # attn=cur_abs attn.count=32 becomes the label cur_abs-count=32; removals and block options stay overrides.
        first, *changes = arguments
        labels = [first.removeprefix("attn=")]
        extra_overrides = []
        for argument in changes:
            key = argument.lstrip("+")
            if key.startswith("attn."):
                labels.append(key.removeprefix("attn."))
            else:
                extra_overrides.append(argument)
        name = "-".join(labels)
        options = options.replace(mechanisms=[name], overrides=[*options.overrides, *extra_overrides])
    if options.reference:
        expand_names([options.reference], "reference")
    return options.replace(mechanisms=expand_names(options.mechanisms, "mechanisms"))


def expand_names(mechanisms: Sequence[str], option: str) -> list[str]:
    """Expand ``all`` and remove repetitions. Raises ValueError with the option for an unknown name."""
    expanded = []
    for name in mechanisms:
        expanded += MECHANISMS if name == "all" else [name]

    # Configuration folders of the command line may add mechanisms.
    valid = [*MECHANISMS, *BENCHMARK_ONLY]
    for folder in config_dirs():
        valid += [path.stem for path in sorted((folder / "attn").glob("*.yaml"))]
    valid.append("custom")
    unknown = [name for name in expanded if _parts(name)[0] not in valid]
    if unknown:
        raise ValueError(f"{option}: {', '.join(unknown)} is not one of all, {', '.join(valid)}")
    return list(dict.fromkeys(expanded))


def experiment(name: str, overrides: Iterable[str]) -> Experiment:
    """Parse the options of ``python -m lra.train attn=<name> *overrides``, labelled by the name.

    Args:
        name: name of the contestant.
        overrides: further overrides, in addition to the options in the name.

    Raises:
        ValueError: an option is wrong, or the class of the mechanism cannot be imported.
    """
    # cur_step-count=32 becomes attn=cur_step ++attn.count=32.
    attn, *changes = _parts(name)
    folder = "bench/" if attn in BENCHMARK_ONLY else ""
    arguments = [f"attn={folder}{attn}"]
    arguments += [f"++attn.{change}" for change in changes]
    composed = compose(Experiment, [*arguments, *overrides])
    if composed.attn.function is None:
        raise ValueError(composed.unavailable)
    return composed.replace(label=name)


def shape_overrides(options: BenchOptions, task: str, shape: Shape, pad: str | None = None) -> list[str]:
    """Write a task, a shape and a padding as overrides of lra.train.

    Args:
        options: options of the benchmark.
        task: its name.
        shape: shape of the measurement.
        pad: padding, with ``batch/8`` for padding to the batch in micro-batches of 8; None for random batches.
    """
    arguments = [
        f"task={task}",
        f"budget={options.budget}",
        f"optim.batch={shape.batch}",
        f"model.heads={shape.heads}",
        f"model.head_dim={shape.head_dim}",
        f"model.dim={shape.heads * shape.head_dim}",
    ]
    # Without n the task keeps its own length.
    if shape.n is not None:
        arguments += [f"task.length={shape.n}", f"task.limit={shape.n}"]
    # batch/8: padding to the batch, in micro-batches of 8.
    if pad is not None:
        name, _, micro = pad.partition("/")
        arguments.append(f"data.pad={name}")
        if micro:
            arguments.append(f"optim.micro_batch={micro}")
    return [*arguments, *options.overrides]


def claim(name: str, claims: Mapping[str, float]) -> float:
    """The exponent of the length in the time that the authors claim; 1 if the configuration has none."""
    return float(claims.get(_parts(name)[0], 1))


def _parts(name: str) -> list[str]:
    """Split a label into the name of a file and the changed options."""
    return re.split(r"-(?=[a-z_][\w.]*=)", name)
