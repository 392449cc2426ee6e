"""python -m lra.studies.lengths 'mechanisms=[sdpa,psf]': the error of mechanisms over the length of a task."""

if __name__ == "__main__":
    from lra.startup import begin

    # Before torch is imported.
    begin()

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from annotated_types import Predicate
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from pydantic import Field

from ...config.entry import main
from ...config.schema import Some, distinct
from ...console import log
from ...io import atomic
from ...options import Range
from ...results import published
from ...results.palette import COLOURS, Palette
from ...runs.reader import scan
from ...runs.record import RunRecord
from ...sweep.__main__ import carry_out
from ...sweep.options import Grid, ManyRunsOptions, SweepOptions
from ...sweep.plan import study
from ..figures import panels, save

TASKS = ("adding", "temporal_order")
# Paper and table of published.csv.
FIGURE = ("PSF-Attn", "text of Section 5.2 (Fig. 5)")
_NAME = re.compile(rf"({'|'.join(TASKS)})_N(\d+)(?:_to_N(\d+))?")
# Two implementations of exact attention.
SAME = {"softmax": "sdpa"}
MARKERS = "osv^Dph*"
# Distance of neighbouring markers in powers of two, so that none hides another.
MARKER_DISTANCE = 0.05


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
    """Train the missing runs of every length, mechanism and seed as a sweep, and draw the runs of the study.

    Raises:
        ValueError: the options do not give a run, or runs failed; in the latter case the finished runs are drawn first.
    """
    sweep = grid(options)
    failures = carry_out(sweep)
    if not options.plan:
        home = options.runs / study(sweep)
        records, damaged = scan(home)
        for line in damaged:
            log(f"skipped: {line}")
        runs = measured(records.values())
        if len(runs):
            files = show(runs, home)
            print(f"written: {', '.join(map(str, files))}")
    if failures:
        raise ValueError(failures)


def grid(options: LengthsOptions) -> SweepOptions:
    """Write the study as a sweep over mechanisms and lengths; each length is a task."""
    # The length is the outer axis: all mechanisms of one length come before the next length.
    axes: dict[str, list[Any]] = {"task.length": options.lengths, "attn": options.mechanisms}
    sweep = Grid(
        name="lengths",
        tasks=options.tasks,
        seeds=options.seeds,
        grids={"lengths": axes},
        shown=["task.length"],
        mechanisms=[],
    )
    shared = {key: getattr(options, key) for key in ManyRunsOptions.model_fields}
    return SweepOptions(sweep=sweep, tasks=options.tasks, mechanisms=[], **shared)


def measured(records: Iterable[RunRecord]) -> pd.DataFrame:
    """List the runs of tasks of ``TASKS`` by task, length, mechanism and seed, in this order; others are left out.

    Returns:
        A row for each run: its error is 100 less its test score, NaN if it diverged; ``constant`` is the error of the
        best constant answer on the same test examples.
    """
    rows = []
    for r in records:
        match = _NAME.fullmatch(r.task)
        # Ranges of lengths exist in published tables only.
        if not match or match[3]:
            continue
        rows.append((match[1], int(match[2]), r.label, r.seed, r.budget, r.constant_baseline, r.test))
    columns = ["task", "length", "mechanism", "seed", "budget", "constant", "error"]
    table = pd.DataFrame(rows, columns=columns).astype({"error": float})
    # Scores become errors.
    table[["constant", "error"]] = 100 - table[["constant", "error"]]
    return table.sort_values(["task", "length", "mechanism", "seed"], ignore_index=True)


def printed() -> pd.DataFrame:
    """List the numbers that the paper gives for its Figure 5 in the text; all others are only points of a curve.

    Returns:
        A row for each number and length: task, length, ``mechanism`` (the paper's name), ``attn`` (its name in
        conf/attn) and error. A number for a range of lengths counts for every power of two in it.
    """
    rows = []
    for number in published.read():
        match = _NAME.fullmatch(number.task)
        if (number.name, number.table) != FIGURE or match is None or number.number is None:
            continue
        task, first, last = match.groups()
        is_error = number.metric == "error_percent"
        error = number.number if is_error else round(100 - number.number, 2)
        shortest = int(first)
        longest = int(last or first)
        for exponent in range(20):
            length = 2**exponent
            if shortest <= length <= longest:
                rows.append((task, length, number.model, number.attn, error))
    return pd.DataFrame(rows, columns=["task", "length", "mechanism", "attn", "error"])


def show(runs: pd.DataFrame, home: Path) -> list[Path]:
    """Print the mean errors of a study's runs, and write their picture and table; returns the files."""
    scored = runs.dropna(subset="error")
    if len(scored):
        means = scored.pivot_table(index=["task", "mechanism"], columns="length", values="error")
        means = means.rename_axis(index=["task", "error in %"], columns=None)
        print(means.to_string(float_format="{:.2f}".format, na_rep=""))

    # The CSV file has measured errors of every seed, then published ones.
    paper = printed()
    measured_rows = scored.assign(
        source="measured",
        error=scored.error.map("{:.4f}".format),
        seed=scored.seed.astype(str),
    )
    published_rows = paper.assign(source="published", error=paper.error.astype(str), seed="")
    columns = ["task", "length", "mechanism", "source", "seed", "error"]
    table = pd.concat([measured_rows, published_rows])[columns]
    csv_file = home / "lengths.csv"
    atomic.write(csv_file, table.to_csv(index=False, lineterminator="\n"))

    picture = home / "lengths.png"
    figure = draw(runs, paper)
    num_columns = 1 + 2 * len(figure.axes)
    save(figure, picture, caption(runs), loc="outside lower center", ncols=num_columns, frameon=False)
    return [picture, csv_file]


def draw(runs: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Draw a panel for each task: a line for each mechanism with the range over its seeds, published numbers hollow."""
    tasks = [task for task in TASKS if task in set(runs.task)]
    figure, grid = panels(len(tasks), width=5.5, height=5.2)
    labels = sorted(set(runs.mechanism))
    # A published number has the colour of its mechanism; softmax has the colour of sdpa if that was measured.
    equivalent = paper.attn.replace(SAME)
    paper = paper.assign(attn=equivalent.where(equivalent.isin(labels), paper.attn))
    palette = Palette([*labels, *paper.attn])
    for task, axes in zip(tasks, grid, strict=True):
        _panel(axes, runs[runs.task == task], paper[paper.task == task], labels, palette)
        axes.set_title(task.replace("_", " "))
    return figure


def caption(runs: pd.DataFrame) -> str:
    """Describe what the picture shows: seeds, budget, published numbers, and seeds that diverged."""
    counts = runs.groupby(["task", "length", "mechanism"]).error.count()
    seeds = sorted(set(counts[counts > 0])) or [0]
    fewest = seeds[0]
    most = seeds[-1]
    n = str(fewest) if fewest == most else f"{fewest} to {most}"
    budgets = ", ".join(sorted(set(runs.budget)))
    text = f"Test error over length: mean and range over seeds, n = {n} a point, budget {budgets}"
    num_diverged = int(runs.error.isna().sum())
    if num_diverged:
        plural = "s" if num_diverged > 1 else ""
        text += f"; {num_diverged} run{plural} diverged, without an error"
    return f"{text}\nhollow: PSF-Attn, text of section 5.2, whose models and training are others"


def _panel(axes: Axes, runs: pd.DataFrame, paper: pd.DataFrame, labels: list[str], palette: Palette) -> None:
    def look(label: str) -> dict:
        colour = COLOURS[palette.colour(label)][0]
        marker = MARKERS[palette.place[label] % len(MARKERS)]
        return {"color": colour, "marker": marker}

    constant = runs.groupby("length").constant.last()
    axes.plot(constant, label="best constant answer", color="grey", linestyle=":", linewidth=1.2)

    # Measured errors: the mean as a line, the range over seeds as bars.
    for i, label in enumerate(labels):
        scored = runs[runs.mechanism == label].dropna(subset="error")
        line = scored.groupby("length").error.agg(["min", "mean", "max"])
        shift = MARKER_DISTANCE * (i - (len(labels) - 1) / 2)
        x = line.index.astype(float) * 2**shift
        style = look(label)
        axes.plot(x, line["mean"], markersize=5, linewidth=1.5, label=label, **style)
        axes.vlines(x, line["min"], line["max"], color=style["color"], linewidth=2.5, alpha=0.5)

    # Published errors: hollow markers.
    for (model, attn, error), numbers in paper.groupby(["mechanism", "attn", "error"], sort=False):
        axes.plot(
            numbers.length,
            [error] * len(numbers),
            label=f"{model}, published",
            markersize=9,
            markerfacecolor="none",
            linestyle="none",
            **look(attn),
        )

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({*runs.length, *paper.length})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(axis="x", labelsize=8, rotation=30)
    axes.set(ylim=(-3, 103), xlabel="length, tokens", ylabel="test error, %")


if __name__ == "__main__":
    lengths()
