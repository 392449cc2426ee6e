"""python -m lra.studies.lengths 'mechanisms=[sdpa,psf]': the error of mechanisms over the length of a task."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Predicate
from pydantic import Field

from ...config.entry import main
from ...config.options import Options
from ...config.sections import Least, Name, Number, Protocol, Seeds, Some, distinct
from ...console import log
from ...options import Range
from ...runs.open import scan
from ...sweep.__main__ import carry_out
from ...sweep.options import Grid, SweepOptions
from ...sweep.plan import study
from .show import measured, show


class LengthsOptions(Options):
    conf: ClassVar[str] = "lengths"

    tasks: Some[Literal["adding", "temporal_order"]]
    lengths: Annotated[
        Some[Annotated[int, Range(2)]],
        Predicate(distinct),
        Field(description="a list of different lengths, such as [128,256]"),
    ]
    mechanisms: Some[str]
    seeds: Seeds
    protocol: Protocol
    budget: Name
    study: Name | None
    overrides: list[str]
    plan: bool
    minutes: Annotated[Number, Range(above=0)] | None
    measure: Least
    runs: Path


@main(LengthsOptions)
def lengths(options: LengthsOptions) -> None:
    """Train what is left of every length, mechanism and seed as a sweep, and draw the runs of the study.

    Raises:
        ValueError: the options do not give a run, or runs failed; the latter after the others are drawn.
    """
    failures = carry_out(asked := grid(options))
    if not options.plan:
        home = options.runs / study(asked)
        records, damaged = scan(home)
        for line in damaged:
            log(f"skipped: {line}")
        if len(runs := measured(records.values())):
            print(f"written: {', '.join(map(str, show(runs, home)))}")
    if failures:
        raise ValueError(failures)


def grid(options: LengthsOptions) -> SweepOptions:
    """Write the study as a sweep over mechanisms and lengths, each length a task of its own."""
    axes = {"task.length": options.lengths, "attn": options.mechanisms}  # short rows first
    swept = Grid(
        name="lengths", tasks=options.tasks, seeds=options.seeds, grids={"lengths": axes}, shown=["task.length"]
    )
    shared = {key: getattr(options, key) for key in SweepOptions.model_fields.keys() - {"sweep", "mechanisms"}}
    return SweepOptions(sweep=swept, mechanisms=[], **shared)


if __name__ == "__main__":
    lengths()
