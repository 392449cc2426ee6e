"""The learning-rate search of one mechanism on one task: its runs, the rates to try next, and the best one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.compose import compose
from ..config.experiment import Experiment
from ..config.quoting import override
from ..results.lr_search import SEARCH_SUFFIX
from ..sweep.plan import PlannedRun


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One mechanism on one task.

    Args:
        mechanism: name of conf/attn with options of lra.train.
        recipe: name of conf/experiment.
        run: template with a placeholder seed and rate; ``at`` derives the runs of the search and the final seeds.
        choices: its flat choices, as in config.yaml.
        experiment: the parsed options of ``run``; its learning rate is a placeholder.
    """

    mechanism: str
    recipe: str
    run: PlannedRun
    choices: dict[str, Any]
    experiment: Experiment

    def choices_at(self, rate: float) -> dict[str, Any]:
        """Return the choices at a learning rate, which pretraining has too unless an option sets ``pretrain.lr``."""
        choices = self.choices | {"optim.lr": rate}
        if self.experiment.pretrained:
            experiment = compose(Experiment, [*self.run.overrides, f"optim.lr={rate}"])
            choices["pretrain.lr"] = experiment.pretrain.lr
        return choices

    def at(self, rate: float, seed: int, *, search: bool) -> PlannedRun:
        """Return the run of a seed at a learning rate: of the search if ``search``, else one of the final seeds."""
        # The folder of the study: a run directory is <study>/<task>/<label>/seed-<k>.
        study_dir = self.run.folder.parents[2]
        label = self.run.label
        keys = label_keys(self.mechanism)
        # Runs of the search differ in their rates, so the rate is part of the label.
        if search:
            study_dir = study_dir.with_name(f"{study_dir.name}{SEARCH_SUFFIX}")
            label = f"{label}-optim.lr={rate}"
            keys = (*keys, "optim.lr")
        # These come after the overrides of the mechanism: of several overrides of a key, the last one counts.
        overrides = (
            override("study", study_dir.name),
            f"label_keys=[{','.join(keys)}]",
            f"optim.lr={rate}",
            f"seeds=[{seed}]",
        )
        return replace(
            self.run,
            overrides=(*self.run.overrides, *overrides),
            label=label,
            seed=seed,
            folder=study_dir / self.run.task / label / f"seed-{seed}",
        )


def check_distinct(entries: Iterable[Entry]) -> None:
    """Raise ValueError if two mechanisms or tasks have the same run directories: one would get the other's results."""
    firsts: dict[Path, Entry] = {}
    for entry in entries:
        first = firsts.setdefault(entry.run.folder, entry)
        if first is not entry:
            raise ValueError(
                f"'{first.mechanism}' on {first.recipe} and '{entry.mechanism}' on {entry.recipe} have the same label "
                f"{entry.run.label} on {entry.run.task}; run one of them in another study with study=<name>"
            )


def label_keys(mechanism: str) -> tuple[str, ...]:
    """List the keys that a label shows: options outside attn, unless the group that they belong to is shown.

    Args:
        mechanism: name of conf/attn with options of lra.train: ``psf block=glu block.norm=layer`` gives ("block",).
    """
    keys = [option.lstrip("+~").split("=")[0] for option in mechanism.split()[1:]]
    # A key below a shown group is part of that group.
    groups = ("attn", *keys)
    listed_keys = []
    for key in keys:
        belongs_to_group = any(key.startswith(f"{group}.") for group in groups)
        if key != "attn" and not belongs_to_group:
            listed_keys.append(key)
    return tuple(listed_keys)


def decide(
    scores: Mapping[float, float | None], rates: Sequence[float], further: Sequence[float] = (), *, examples: int
) -> tuple[list[float], float | None]:
    """Decide what a search over learning rates does next.

    The rate with the highest validation score is chosen. Scores within one standard error of the difference from the
    highest count as equal to it. Ties go to the rate nearest the middle of ``rates``, then to the lower rate. If the
    best rate is at an end of the tried range, the next one of ``further`` is tried as well. If every run diverged or
    collapsed, lower rates are tried; if none is left, the tried rate nearest the middle is chosen.

    Args:
        scores: validation score in percent by rate of the runs that ended, None for a run that diverged or collapsed.
        rates: rates that are always tried.
        further: rates outside this range, tried one by one.
        examples: number of validation examples, for the standard error.

    Returns:
        The rates that must be run next, and the chosen rate if there are none.
    """
    # First all rates of the grid.
    missing = [rate for rate in rates if rate not in scores]
    if missing:
        return missing, None

    # The grid on the ladder of all rates, from low to high. A further rate inside the grid is never tried.
    outside = [rate for rate in further if not min(rates) <= rate <= max(rates)]
    ladder = sorted({*rates, *outside})
    top = len(ladder) - 1
    low = ladder.index(min(rates))
    high = ladder.index(max(rates))
    middle = (low + high) / 2
    # The tried rates: the grid and the neighbours that have ended.
    while low > 0 and ladder[low - 1] in scores:
        low -= 1
    while high < top and ladder[high + 1] in scores:
        high += 1
    tried = range(low, high + 1)

    # Rates whose scores are within one standard error of the difference from the highest one.
    values = {}
    for k in tried:
        score = scores[ladder[k]]
        if score is not None:
            values[k] = score
    highest = max(values.values(), default=0.0)
    equal = []
    for k, score in values.items():
        if highest - score <= _error(score, highest, examples):
            equal.append(k)

    # The best rate: the one nearest the middle, then the lower one.
    candidates = equal or tried
    best = min(candidates, key=lambda k: (abs(k - middle), k))

    # A best rate at an end of the tried ones: try the next one outside. Without any score, lower rates may help.
    if (not equal or best == low) and low > 0:
        return [ladder[low - 1]], None
    if equal and best == high and high < top:
        return [ladder[high + 1]], None
    return [], ladder[best]


def _error(a: float, b: float, examples: int) -> float:
    """The standard error of the difference between two accuracies in percent, each over ``examples`` examples."""
    variance_a = a * (100 - a)
    variance_b = b * (100 - b)
    return math.sqrt((variance_a + variance_b) / examples)
