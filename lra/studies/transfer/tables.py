"""Transfers as points and tables: the seeds of one configuration together, beside the run they come from."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from ...report.summary import joined, number
from ...runs.canonical import canonical
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
class Point:
    """The seeds of one mechanism with one number of fine-tuning steps. options: of the mechanism, and ``tuned``."""

    task: str
    source: str
    label: str
    options: dict[str, Any]
    records: list[TransferRecord]

    @property
    def tuned(self) -> int:
        return self.options["tuned"]

    @property
    def kept(self) -> int | None:
        return self.records[0].kept

    @property
    def order(self) -> tuple:
        """Fine-tuned ones last; the counts of one mechanism after each other, then what else was changed."""
        name, _, rest = self.label.partition("-")
        return self.tuned, name, natural(rest.replace(f"count={self.kept}", "")), self.kept or 0, self.label

    @property
    def tests(self) -> list[float]:
        """Scores of the seeds that have one."""
        return [score for score, _ in self._scored]

    @property
    def changes(self) -> list[float]:
        """The same scores less those of the exact model of each seed."""
        return [score - exact for score, exact in self._scored]

    @property
    def _scored(self) -> list[tuple[float, float]]:
        scores = [(r.tuned_test if self.tuned else r.direct_test, r.exact_test) for r in self.records]
        return [pair for pair in scores if pair[0] is not None]

    def values(self, name: str) -> list[float]:
        """One of each seed: a value of Layer, averaged over layers."""
        return [r.mean(name) for r in self.records]

    @property
    def cells(self) -> tuple[str, ...]:
        """One text for each column of HEAD."""
        lost = len(self.records) - len(self.tests)
        layer = lambda name: ", ".join(
            f"{mean(values):.3g}"
            for values in zip(*([getattr(x, name) for x in r.layers] for r in self.records), strict=True)
        )
        n = f"{len(self.tests)} (+{lost})" if lost else str(len(self.tests))
        exact = spread([r.exact_test for r in self.records])
        return (
            self.label,
            str(self.kept or ""),
            str(self.tuned),
            exact,
            spread(self.tests),
            spread(self.changes),
            n,
            layer("mean_abs"),
            layer("relative"),
            layer("stack_relative"),
        )


def _options(made: TransferRecord) -> dict[str, Any]:
    """The mechanism's options, the same for records that different versions of the suite wrote."""
    flat = canonical({f"attn.{key}": value for key, value in made.attn.items()})
    return {key.removeprefix("attn."): value for key, value in flat.items()}


def natural(text: str) -> list:
    """A key by which count=8 comes before count=16."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def spread(values: list[float]) -> str:
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return number(mean(values) if values else None) + deviation


def points(records: list[TransferRecord]) -> dict[tuple[str, str, str], list[Point]]:
    """(study, task, run's label) -> its points. A fine-tuned transfer is one before its fine-tuning too."""
    found: dict[tuple, dict[tuple, dict[int, TransferRecord]]] = {}
    for r in records:
        for tuned in {0, r.steps}:
            seeds = found.setdefault((r.study, r.task, r.source), {}).setdefault((tuned, r.label), {})
            if tuned or r.seed not in seeds or r.steps == 0:
                seeds[r.seed] = r
    return {
        group: sorted(
            (
                Point(group[1], group[2], label, _options(seeds[min(seeds)]) | {"tuned": tuned}, list(seeds.values()))
                for (tuned, label), seeds in same.items()
            ),
            key=lambda point: point.order,
        )
        for group, same in sorted(found.items())
    }


def curves(some: list[Point], axis: Callable[[Point], Any], hidden: set[str]) -> dict[str, list[tuple[Any, Point]]]:
    """Legend -> (value on the axis, point), for all sets of points that differ in nothing but the axis.

    hidden: options that the axis stands for. Only seeds that all points of a set have are in it, sets of one point or
    without such a seed are left out; a legend names the options that differ and the number of seeds.
    """
    groups: dict[tuple, list[tuple[Any, Point]]] = {}
    for point in some:
        if (value := axis(point)) is not None:
            rest = tuple(sorted((k, v) for k, v in point.options.items() if k not in hidden))
            groups.setdefault(tuple((k, str(v)) for k, v in rest), []).append((value, point))
    lines = {rest: _shared(sorted(line, key=lambda pair: pair[0])) for rest, line in groups.items()}
    lines = {rest: line for rest, line in lines.items() if len(line) > 1 and line[0][1].records}
    kind = lambda rest: dict(rest).get("_target_")
    kinds = Counter(map(kind, lines))
    shared = Counter((kind(rest), option) for rest in lines for option in rest)
    named = {}
    for rest, line in lines.items():
        # Mechanisms are told apart by their class, those of one class by the options in which they differ.
        differ = [
            o for o in rest if (len(kinds) > 1 if o[0] == "_target_" else shared[kind(rest), o] < kinds[kind(rest)])
        ]
        named[f"{legend(differ, line)} (n = {len(line[0][1].records)})"] = line
    return named


def _shared(line: list[tuple[Any, Point]]) -> list[tuple[Any, Point]]:
    """The same points with the seeds that all of them have."""
    seeds = set.intersection(*({r.seed for r in point.records} for _, point in line))
    return [(value, replace(point, records=[r for r in point.records if r.seed in seeds])) for value, point in line]


def legend(options: list[tuple[str, str]], line: list[tuple[Any, Point]]) -> str:
    """score=step, count=64; the class where mechanisms differ in more than their options."""
    shown = [f"{value.rpartition('.')[2]}" if key == "_target_" else f"{key}={value}" for key, value in options]
    return ", ".join(shown) or line[0][1].label.partition("-")[0]


def markdown(groups: dict[tuple[str, str, str], list[Point]], pictures: dict[tuple[str, str, str], list[str]]) -> str:
    out = ["# Transfers", LEGEND]
    for group, some in groups.items():
        study, task, source = group
        facts = about(some)
        rows = [HEAD, ("---",) * len(HEAD), *(point.cells for point in some)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]
        shown = [f"![{name}]({name})" for name in pictures.get(group, [])]
        out += [f"## {study}: {task}, {source}", facts, "\n".join(lines), *shown]
    return "\n\n".join(out) + "\n"


def about(some: list[Point]) -> str:
    records = [r for point in some for r in point.records]
    told = {
        "protocol {}": joined(r.protocol for r in records),
        "budget {}": joined(r.budget for r in records),
        "{}": joined(r.metric for r in records),
        "{} test examples": joined(r.n_test for r in records),
        "a constant answer scores {}": joined(float(r.constant_baseline) for r in records),
        "layers over {} dev examples": joined(r.examples for r in records),
        "on {}": joined(r.device for r in records),
        "commit {}": joined(r.git or "unknown" for r in records),
    }
    text = "; ".join(form.format(value) for form, value in told.items())
    return f"{text[0].upper()}{text[1:]}."
