"""python -m lra.studies.lengths 'mechanisms=[sdpa,psf]': errors of mechanisms over the length of a task."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("lengths")

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
from ...console import log, plural
from ...io import atomic
from ...options import Range
from ...results import paper_values
from ...results.palette import COLOURS, Palette
from ...runs.reader import scan
from ...runs.record import RunRecord
from ...sweep.__main__ import carry_out
from ...sweep.options import ManyRunsOptions, SweepFile, SweepOptions
from ...sweep.plan import study
from ..figures import panels, save

TASKS = ("adding", "temporal_order")
# Paper and table of the numbers of published.csv that are shown.
FIGURE = ("PSF-Attn", "text of Section 5.2 (Fig. 5)")
# Name of a task with its length, or with a range of lengths: adding_N128, adding_N128_to_N1024.
_NAME = re.compile(rf"({'|'.join(TASKS)})_N(\d+)(?:_to_N(\d+))?")
# Published mechanisms that compute the same function as a measured one: both are exact attention.
EQUIVALENT = {"softmax": "sdpa"}
MARKERS = "osv^Dph*"
# Distance between the markers of two mechanisms at one length, in powers of two, so that none hides another.
MARKER_DISTANCE = 0.05


class LengthsOptions(ManyRunsOptions):
    """The options of conf/lengths.yaml."""

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
    """Train the missing runs of every task, length, mechanism and seed as a sweep, and draw the runs of the study.

    Raises:
        ValueError: the options do not give a run, or runs failed; in the latter case the finished runs are drawn first.
    """
    sweep = sweep_options(options)
    failures = carry_out(sweep)
    if not options.plan:
        home = options.runs / study(sweep)
        records, damaged = scan(home)
        for line in damaged:
            log(f"skipped: {line}")
        runs = run_errors(records.values())
        if len(runs):
            files = show(runs, home)
            print(f"written: {', '.join(map(str, files))}")
    if failures:
        raise ValueError(failures)


def sweep_options(options: LengthsOptions) -> SweepOptions:
    """Express the study as a sweep over lengths and mechanisms."""
    # The length is the outer axis: all mechanisms of one length are trained before the next length.
    axes: dict[str, list[Any]] = {"task.length": options.lengths, "attn": options.mechanisms}
    sweep = SweepFile(
        name="lengths",
        tasks=options.tasks,
        seeds=options.seeds,
        grids={"lengths": axes},
        shown=["task.length"],
        mechanisms=[],
    )
    # Options that all commands with many runs have.
    shared = {key: getattr(options, key) for key in ManyRunsOptions.model_fields}
    return SweepOptions(sweep=sweep, tasks=options.tasks, mechanisms=[], **shared)


def run_errors(records: Iterable[RunRecord]) -> pd.DataFrame:
    """List the test errors of the runs of ``TASKS``, by task, length, mechanism and seed; other runs are left out.

    Returns:
        A row for each run. ``error`` is 100 minus its test score, NaN if it diverged; ``constant`` is the error of the
        best constant answer on the same test examples.
    """
    rows = []
    for r in records:
        match = _NAME.fullmatch(r.task)
        # Only published numbers have a range of lengths.
        if not match or match[3]:
            continue
        rows.append((match[1], int(match[2]), r.label, r.seed, r.budget, r.constant_baseline, r.test))
    columns = ["task", "length", "mechanism", "seed", "budget", "constant", "error"]
    table = pd.DataFrame(rows, columns=columns).astype({"error": float})
    # Scores become errors.
    table[["constant", "error"]] = 100 - table[["constant", "error"]]
    return table.sort_values(["task", "length", "mechanism", "seed"], ignore_index=True)


def published_errors() -> pd.DataFrame:
    """List the errors of Figure 5 that the text of the paper gives; the other errors are only points of its curves.

    Returns:
        A row for each number and length: task, length, ``mechanism`` (the paper's name), ``attn`` (its name in
        conf/attn) and error. A number for a range of lengths is listed for every power of two in it.
    """
    rows = []
    for value in paper_values.read():
        match = _NAME.fullmatch(value.task)
        if (value.name, value.table) != FIGURE or match is None or value.number is None:
            continue
        task, first, last = match.groups()
        is_error = value.metric == "error_percent"
        error = value.number if is_error else round(100 - value.number, 2)
        shortest = int(first)
        longest = int(last or first)
        for exponent in range(20):
            length = 2**exponent
            if shortest <= length <= longest:
                rows.append((task, length, value.model, value.attn, error))
    return pd.DataFrame(rows, columns=["task", "length", "mechanism", "attn", "error"])


def show(runs: pd.DataFrame, home: Path) -> list[Path]:
    """Print the mean errors of a study's runs, and write lengths.png and lengths.csv; returns the paths."""
    scored = runs.dropna(subset="error")
    if len(scored):
        means = scored.pivot_table(index=["task", "mechanism"], columns="length", values="error")
        means = means.rename_axis(index=["task", "error in %"], columns=None)
        print(means.to_string(float_format="{:.2f}".format, na_rep=""))

    # The CSV file: the measured errors of every seed, then the published errors.
    paper = published_errors()
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
    # Three columns fit below one panel, five below two.
    num_columns = 1 + 2 * len(figure.axes)
    save(figure, picture, caption(runs), loc="outside lower center", ncols=num_columns, frameon=False)
    return [picture, csv_file]


def draw(runs: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Draw a panel for each task.

    Lines are the measured errors of a mechanism, bars their range over seeds, hollow markers the published errors.

    Args:
        runs: table of ``run_errors``.
        paper: table of ``published_errors``.
    """
    tasks = [task for task in TASKS if task in set(runs.task)]
    figure, grid = panels(len(tasks), width=5.5, height=5.2)
    labels = sorted(set(runs.mechanism))
    # A published number has the colour of its mechanism; softmax has the colour of sdpa if that was measured.
    equivalent = paper.attn.replace(EQUIVALENT)
    paper = paper.assign(attn=equivalent.where(equivalent.isin(labels), paper.attn))
    palette = Palette([*labels, *paper.attn])
    for task, axes in zip(tasks, grid, strict=True):
        _panel(axes, runs[runs.task == task], paper[paper.task == task], labels, palette)
        axes.set_title(task.replace("_", " "))
    return figure


def caption(runs: pd.DataFrame) -> str:
    """Describe the picture: number of seeds per point, budget, runs that diverged, published numbers."""
    # The number of seeds of each point that is drawn.
    counts = runs.groupby(["task", "length", "mechanism"]).error.count()
    counts = counts[counts > 0]
    fewest = counts.min() if len(counts) else 0
    most = counts.max() if len(counts) else 0
    n = str(fewest) if fewest == most else f"{fewest} to {most}"
    budgets = ", ".join(sorted(set(runs.budget)))
    text = f"Test error over length: mean and range over seeds, n = {n} per point, budget {budgets}"
    num_diverged = int(runs.error.isna().sum())
    if num_diverged:
        text += f"; {plural(num_diverged, 'run')} diverged, without an error"
    return f"{text}\nhollow: PSF-Attn, text of section 5.2, with other models and training"


def _panel(axes: Axes, runs: pd.DataFrame, paper: pd.DataFrame, labels: list[str], palette: Palette) -> None:
    """Draw the measured and the published errors of one task; ``labels`` are all measured mechanisms."""

    def style_of(label: str) -> dict:
        colour = COLOURS[palette.colour_index(label)][0]
        marker = MARKERS[palette.position[label] % len(MARKERS)]
        return {"color": colour, "marker": marker}

    constant = runs.groupby("length").constant.last()
    axes.plot(constant, label="best constant answer", color="grey", linestyle=":", linewidth=1.2)

    # Measured errors: the mean as a line, the range over seeds as bars.
    for i, label in enumerate(labels):
        scored = runs[runs.mechanism == label].dropna(subset="error")
        line = scored.groupby("length").error.agg(["min", "mean", "max"])
        shift = MARKER_DISTANCE * (i - (len(labels) - 1) / 2)
        x = line.index.astype(float) * 2**shift
        style = style_of(label)
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
            **style_of(attn),
        )

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({*runs.length, *paper.length})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(axis="x", labelsize=8, rotation=30)
    axes.set(ylim=(-3, 103), xlabel="length, tokens", ylabel="test error, %")


if __name__ == "__main__":
    lengths()
