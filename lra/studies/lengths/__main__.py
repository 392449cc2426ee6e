"""python -m lra.studies.lengths 'mechanisms=[sdpa,psf]': the error of mechanisms over the length of a task."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ...config.entry import main
from ...console import log
from ...runs.open import scan
from ...sweep.__main__ import carry_out
from ...sweep.plan import study
from .points import measured
from .show import show


@main("lengths")
def lengths(config: DictConfig) -> None:
    """Train what is left of every length, mechanism and seed as a sweep, and draw the runs of the study.

    Raises:
        ValueError: the options do not give a run, or runs failed; the latter after the others are drawn.
    """
    failures = carry_out(asked := grid(config))
    if not config.plan:
        home = Path(config.runs) / study(asked)
        records, damaged = scan(home)
        for line in damaged:
            log(f"skipped: {line}")
        if points := measured(records.values()):
            print(f"written: {', '.join(map(str, show(points, home)))}")
    if failures:
        raise ValueError(failures)


def grid(config: DictConfig) -> DictConfig:
    """Write the study as a sweep over mechanisms and lengths, each length a task of its own."""
    axes = {"task.length": list(config.lengths), "attn": list(config.mechanisms)}  # short rows first
    return OmegaConf.create(
        {**config, "sweep": {"name": "lengths", "grids": {"lengths": axes}, "shown": ["task.length"]}}
    )


if __name__ == "__main__":
    lengths()
