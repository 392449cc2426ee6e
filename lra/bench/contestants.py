"""The experiments of contestants by their names.

A name is a label: a file of attn in conf or in a folder of --config-dir, or of conf/attn/bench, then its changed
options, as in ``cur_step-count=32-pinv.steps=6`` and ``custom-_target_=mine.Foo``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..config import CONF
from ..config.compose import compose, further, mechanism
from ..config.experiment import Experiment
from .options import BenchOptions

MECHANISMS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")  # mechanisms=all
BENCHMARK_ONLY = sorted(path.stem for path in (CONF / "attn" / "bench").glob("*.yaml"))


class Shape(NamedTuple):
    """The shape of a measurement; ``n`` None stands for the task's own length."""

    n: int | None
    batch: int
    heads: int
    head_dim: int
    dtype: str


def asked(options: BenchOptions) -> BenchOptions:
    """The options with the names of all contestants.

    ``attn=`` with its options becomes the only contestant, and the options of ``block=`` become overrides of it.

    Raises:
        ValueError: a name is unknown.
    """
    arguments = mechanism(options.command_overrides)
    if arguments:
        # attn=cur_abs attn.count=32 becomes the label cur_abs-count=32; block options stay overrides.
        labels = [arguments[0].removeprefix("attn=")]
        blocks = []
        for argument in arguments:
            key = argument.lstrip("+")
            if key.startswith("attn."):
                labels.append(key.removeprefix("attn."))
            if key.startswith("block"):
                blocks.append(argument)
        name = "-".join(labels)
        options = options.replace(mechanisms=[name], overrides=[*options.overrides, *blocks])
    return options.replace(mechanisms=names(options.mechanisms))


def names(mechanisms: Sequence[str]) -> list[str]:
    """Expand ``all`` and remove repetitions. Raises ValueError for an unknown name."""
    expanded = []
    for name in mechanisms:
        expanded += MECHANISMS if name == "all" else [name]

    # Configuration folders of the command line may add mechanisms.
    valid = [*MECHANISMS, *BENCHMARK_ONLY]
    for folder in further():
        valid += [path.stem for path in sorted((folder / "attn").glob("*.yaml"))]
    valid.append("custom")
    unknown = [name for name in expanded if _parts(name)[0] not in valid]
    if unknown:
        raise ValueError(f"mechanisms: {', '.join(unknown)} is not one of all, {', '.join(valid)}")
    return list(dict.fromkeys(expanded))


def experiment(name: str, overrides: Iterable[str]) -> Experiment:
    """Parse the options of ``python -m lra.train attn=<name> *overrides``, labelled by the name.

    Args:
        name: name of the contestant.
        overrides: further overrides, in addition to the options in the name.
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


def overrides(options: BenchOptions, task: str, shape: Shape, pad: str | None = None) -> list[str]:
    """Write a task and a shape as overrides of lra.train.

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
