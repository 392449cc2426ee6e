"""python -m lra.studies.lengths 'mechanisms=[sdpa,psf]': the error of mechanisms over the length of a task."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pandas as pd
from annotated_types import Predicate
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from pydantic import Field

from ...config.entry import main
from ...config.sections import Some, distinct
from ...console import log
from ...disk import atomic
from ...options import Range
from ...report import published
from ...report.palette import COLOURS, Palette
from ...runs.reader import scan
from ...runs.record import RunRecord
from ...sweep.__main__ import carry_out
from ...sweep.options import Grid, ManyRunsOptions, SweepOptions
from ...sweep.plan import study
from ..figures import panels, save

TASKS = ("adding", "temporal_order")
FIGURE = ("PSF-Attn", "text of Section 5.2 (Fig. 5)")  # paper and table of published.csv
_NAME = re.compile(rf"({'|'.join(TASKS)})_N(\d+)(?:_to_N(\d+))?")
SAME = {"softmax": "sdpa"}  # exact attention, however it is computed
MARKERS, APART = "osv^Dph*", 0.05  # of neighbours, and their distance in powers of two, so that none hides another


class LengthsOptions(ManyRunsOptions):
    conf: ClassVar[str] = "lengths"

    tasks: Some[Literal[TASKS]]
    lengths: Annotated[
        Some[Annotated[int, Range(2)]],
        Predicate(distinct),
        Field(description="a list of different lengths, such as [128,256]"),
    ]
    mechanisms: Some[str]


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
    tasks, shared = options.tasks, {key: getattr(options, key) for key in ManyRunsOptions.model_fields}
    swept = Grid(name="lengths", tasks=tasks, seeds=options.seeds, grids={"lengths": axes}, shown=["task.length"])
    return SweepOptions(sweep=swept, tasks=tasks, mechanisms=[], **shared)


def measured(records: Iterable[RunRecord]) -> pd.DataFrame:
    """List the runs of tasks of ``TASKS`` by task, length, mechanism and seed, in this order; others are left out.

    Returns:
        A row for each run: its error is 100 less its test score, NaN if it diverged; ``constant`` is the error of the
        best constant answer on the same test examples.
    """
    rows = [
        (found[1], int(found[2]), r.label, r.seed, r.budget, r.constant_baseline, r.test)
        for r in records
        if (found := _NAME.fullmatch(r.task)) and not found[3]
    ]
    columns = ["task", "length", "mechanism", "seed", "budget", "constant", "error"]
    table = pd.DataFrame(rows, columns=columns).astype({"error": float})
    table[["constant", "error"]] = 100 - table[["constant", "error"]]
    return table.sort_values(["task", "length", "mechanism", "seed"], ignore_index=True)


def printed() -> pd.DataFrame:
    """List the numbers that the paper gives for its Figure 5 in the text, the only ones that are not read off a curve.

    Returns:
        A row for each number and length: the paper's name of the mechanism, ``attn``, the corresponding name of
        conf/attn, and the error. A number for a range of lengths counts for every power of two in it.
    """
    found = []
    for row in published.read():
        if (row.name, row.table) == FIGURE:
            task, first, last = _NAME.fullmatch(row.task).groups()
            error = row.number if row.metric == "error_percent" else round(100 - row.number, 2)
            lengths = [2**i for i in range(20) if int(first) <= 2**i <= int(last or first)]
            found += [(task, length, row.model, row.attn, error) for length in lengths]
    return pd.DataFrame(found, columns=["task", "length", "mechanism", "attn", "error"])


def show(runs: pd.DataFrame, home: Path) -> list[Path]:
    """Print the mean errors of a study's runs, and write their picture and table; returns the files."""
    ended, known = runs.dropna(subset="error"), printed()
    if len(ended):
        table = ended.pivot_table(index=["task", "mechanism"], columns="length", values="error")
        table = table.rename_axis(index=["task", "error in %"], columns=None)
        print(table.to_string(float_format="{:.2f}".format, na_rep=""))
    files = [home / "lengths.png", home / "lengths.csv"]
    ended = ended.assign(source="measured", error=ended.error.map("{:.4f}".format), seed=ended.seed.astype(str))
    table = pd.concat([ended, known.assign(source="published", error=known.error.astype(str), seed="")])
    columns = ["task", "length", "mechanism", "source", "seed", "error"]
    atomic.write(files[1], table[columns].to_csv(index=False, lineterminator="\n"))
    figure = draw(runs, known)
    legend = {"loc": "outside lower center", "ncols": 1 + 2 * len(figure.axes), "frameon": False}
    save(figure, files[0], caption(runs), **legend)
    return files


def draw(runs: pd.DataFrame, known: pd.DataFrame) -> Figure:
    """Draw a panel for each task: a line for each mechanism with the range over its seeds, published numbers hollow."""
    tasks = [task for task in TASKS if task in set(runs.task)]
    figure, grid = panels(len(tasks), width=5.5, height=5.2)
    labels = sorted(set(runs.mechanism))
    same = known.attn.replace(SAME)
    known = known.assign(attn=same.where(same.isin(labels), known.attn))  # the label whose colour a number has
    palette = Palette([*labels, *known.attn])
    for task, axes in zip(tasks, grid, strict=True):
        _panel(axes, runs[runs.task == task], known[known.task == task], labels, palette)
        axes.set_title(task.replace("_", " "))
    return figure


def caption(runs: pd.DataFrame) -> str:
    """Describe what the picture shows: seeds, budget, published numbers, and seeds that diverged."""
    counts = runs.groupby(["task", "length", "mechanism"]).error.count()
    seeds = sorted(set(counts[counts > 0])) or [0]
    n = " to ".join(dict.fromkeys(map(str, (seeds[0], seeds[-1]))))
    lost = int(runs.error.isna().sum())
    more = f"; {lost} run{'s' * (lost > 1)} diverged, without an error" if lost else ""
    budgets = ", ".join(sorted(set(runs.budget)))
    return (
        f"Test error over length: mean and range over seeds, n = {n} a point, budget {budgets}{more}\n"
        "hollow: PSF-Attn, text of section 5.2, whose models and training are others"
    )


def _panel(axes: Axes, runs: pd.DataFrame, known: pd.DataFrame, labels: list[str], palette: Palette) -> None:
    look = lambda label: (COLOURS[palette.colour(label)][0], MARKERS[palette.place[label] % len(MARKERS)])
    constant = runs.groupby("length").constant.last()
    axes.plot(constant, label="best constant answer", color="grey", linestyle=":", linewidth=1.2)
    for i, label in enumerate(labels):
        line = runs[runs.mechanism == label].dropna(subset="error").groupby("length").error.agg(["min", "mean", "max"])
        colour, marker = look(label)
        x = line.index.astype(float) * 2 ** (APART * (i - (len(labels) - 1) / 2))
        axes.plot(x, line["mean"], color=colour, marker=marker, markersize=5, linewidth=1.5, label=label)
        axes.vlines(x, line["min"], line["max"], color=colour, linewidth=2.5, alpha=0.5)
    for (model, attn, error), some in known.groupby(["mechanism", "attn", "error"], sort=False):
        colour, marker = look(attn)
        hollow = {"marker": marker, "markersize": 9, "markerfacecolor": "none", "linestyle": "none", "color": colour}
        axes.plot(some.length, [error] * len(some), label=f"{model}, published", **hollow)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({*runs.length, *known.length})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(axis="x", labelsize=8, rotation=30)
    axes.set(ylim=(-3, 103), xlabel="length, tokens", ylabel="test error, %")


if __name__ == "__main__":
    lengths()
