"""Tables of transfers: the seeds of one configuration as a point, beside the run of their weights."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import numpy as np

from ...report.summary import joined, number
from ...report.table import Table, frame, stem
from .record import TransferRecord

HEAD = ("mechanism", "kept", "tuned", "exact", "test", "change", "n", "mean |O - O'|", "relative", "stacked")
LEGEND = (
    "Test scores in percent, mean ± sample standard deviation over n seeds. kept: rows and columns of CUR, landmarks "
    "of Nystrom; tuned: steps of fine-tuning, 0 for the weights as they are; exact: of the run itself; change: test - "
    "exact, seed by seed. mean |O - O'|, relative (Frobenius): a mechanism's output against the exact one on the exact "
    "model's queries, keys and values, layer by layer; stacked: relative, with the mechanism in the layers before as "
    "well. All three before fine-tuning, over dev examples."
)


@dataclass(frozen=True)
class TransferPoint:
    """The seeds of one mechanism with one number of fine-tuning steps.

    Args:
        label: label of the transfer.
        tuned: steps of fine-tuning.
        records: records of the seeds.
    """

    label: str
    tuned: int
    records: list[TransferRecord]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the mechanism, and ``tuned``."""
        return self.records[0].attn | {"tuned": self.tuned}

    @property
    def kept(self) -> int | None:
        """Rows and columns that CUR keeps, or Nystrom's landmarks."""
        return self.records[0].kept

    @property
    def order(self) -> tuple:
        """Sort key: steps of fine-tuning, mechanism, other changed options, count."""
        name, _, rest = self.label.partition("-")
        return self.tuned, name, natural(rest.replace(f"count={self.kept}", "")), self.kept or 0, self.label

    @property
    def scored(self) -> list[tuple[float, float]]:
        """Test score and the exact model's, for each seed that has one."""
        scores = [(r.tuned_test if self.tuned else r.direct_test, r.exact_test) for r in self.records]
        return [pair for pair in scores if pair[0] is not None]

    @property
    def tests(self) -> list[float]:
        """The test scores of the seeds that have one."""
        return [score for score, _ in self.scored]

    def values(self, name: str) -> list[float]:
        """A value of Layer for each seed, averaged over layers."""
        return [r.mean(name) for r in self.records]

    @property
    def cells(self) -> tuple[str, ...]:
        """The text for each column of HEAD."""
        lost = len(self.records) - len(self.scored)
        layer = lambda name: ", ".join(
            f"{value:.3g}" for value in np.mean([[getattr(x, name) for x in r.layers] for r in self.records], 0)
        )
        return (
            self.label,
            str(self.kept or ""),
            str(self.tuned),
            spread([r.exact_test for r in self.records]),
            spread(self.tests),
            spread([score - exact for score, exact in self.scored]),
            f"{len(self.scored)} (+{lost})" if lost else str(len(self.scored)),
            *map(layer, ("mean_abs", "relative", "stack_relative")),
        )


def natural(text: str) -> list:
    """Sort key of a text by which count=8 comes before count=16."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def spread(values: list[float]) -> str:
    """Format mean ± sample standard deviation; "-" without values."""
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return number(mean(values) if values else None) + deviation


def points(records: list[TransferRecord]) -> dict[tuple[str, str, str], list[TransferPoint]]:
    """Group transfers as points by (study, task, run's label).

    A fine-tuned transfer gives two points: before and after its fine-tuning.
    """
    groups: dict[tuple, dict[tuple, dict[int, TransferRecord]]] = {}
    for r in records:
        for tuned in {0, r.steps}:
            seeds = groups.setdefault((r.study, r.task, r.source), {}).setdefault((r.label, tuned), {})
            if tuned or r.seed not in seeds or r.steps == 0:
                seeds[r.seed] = r
    made = lambda same: [TransferPoint(*key, [seeds[k] for k in sorted(seeds)]) for key, seeds in same.items()]
    return {group: sorted(made(same), key=lambda point: point.order) for group, same in sorted(groups.items())}


def curves(
    some: list[TransferPoint], axis: Callable[[TransferPoint], Any], hidden: set[str]
) -> dict[str, list[tuple[Any, TransferPoint]]]:
    """Group points into curves, within which only the axis differs.

    A curve has the seeds that all of its points share; one with a single point or without such a seed is left out.

    Args:
        some: points.
        axis: value of a point, None if the point has none.
        hidden: options that the axis stands for.

    Returns:
        (value, point) in order, by a legend that names the options that differ and the number of seeds: the class if
        there are several, and within a class the options that not all of its curves share.
    """
    groups: dict[tuple, list[tuple[Any, TransferPoint]]] = {}
    for point in some:
        if (value := axis(point)) is not None:
            rest = tuple((k, str(v)) for k, v in sorted(point.options.items()) if k not in hidden)
            groups.setdefault(rest, []).append((value, point))
    lines = {rest: _shared(sorted(line, key=lambda pair: pair[0])) for rest, line in groups.items()}
    lines = {rest: line for rest, line in lines.items() if len(line) > 1 and line[0][1].records}
    kind = lambda rest: dict(rest).get("_target_")
    kinds = Counter(map(kind, lines))
    shared = Counter((kind(rest), option) for rest in lines for option in rest)
    named = {}
    for rest, line in lines.items():
        words = [kind(rest).rpartition(".")[2]] if len(kinds) > 1 else []
        own = [option for option in rest if option[0] != "_target_" and shared[kind(rest), option] < kinds[kind(rest)]]
        words += [f"{key}={value}" for key, value in own]
        name = ", ".join(words) or line[0][1].label.partition("-")[0]
        named[f"{name} (n = {len(line[0][1].records)})"] = line
    return named


def _shared(line: list[tuple[Any, TransferPoint]]) -> list[tuple[Any, TransferPoint]]:
    """Restrict points to the seeds that all of them have."""
    seeds = set.intersection(*({r.seed for r in point.records} for _, point in line))
    return [(value, replace(point, records=[r for r in point.records if r.seed in seeds])) for value, point in line]


def tables(groups: dict[tuple[str, str, str], list[TransferPoint]]) -> list[Table]:
    """Make a table of each group of points."""
    return [
        Table(
            name=stem(f"transfer-{study}-{task}-{source}"),
            title=f"{study}: {task}, {source}",
            about=about(some),
            cells=frame(HEAD, [point.cells for point in some]),
        )
        for (study, task, source), some in groups.items()
    ]


def about(some: list[TransferPoint]) -> str:
    """Summarise what the records of points share, in one sentence."""
    records = [r for point in some for r in point.records]
    facts = {
        "protocol {}": joined(r.protocol for r in records),
        "budget {}": joined(r.budget for r in records),
        "{}": joined(r.metric for r in records),
        "{} test examples": joined(r.n_test for r in records),
        "a constant answer scores {}": joined(float(r.constant_baseline) for r in records),
        "layers over {} dev examples": joined(r.examples for r in records),
        "on {}": joined(r.device for r in records),
        "commit {}": joined(r.git or "unknown" for r in records),
    }
    text = "; ".join(form.format(value) for form, value in facts.items())
    return f"{text[0].upper()}{text[1:]}."
