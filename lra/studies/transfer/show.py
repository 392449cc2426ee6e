"""python -m lra.studies.transfer.show: tables and figures of every transfer.

The figures have the axes of CURformer's ViT study (section 7, Figures 5 to 7).
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("transfer_show")

from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure

from ...config.entry import main
from ...config.options import Options
from ...console import log, plural
from ...io import atomic, typed_json
from ...results import table as report_table
from ..figures import panels, save
from .record import FILE, load
from .tables import GROUP, LEGEND, curves, natural, points, tables

# Horizontal axes by name of the figure: label, and options, of which a mechanism has at most one.
AXES = {
    "count": ("selected queries and keys", ("count", "landmarks")),
    "selection": ("selection", ("score",)),
    "inverse": ("steps of the inverse", ("pinv.steps",)),
    "pairing": ("pairing", ("pairing",)),
    "class_token": ("class token always selected", ("class_token",)),
    "tuned": ("steps of fine-tuning", ("tuned",)),
}
# Labels of boolean values on an axis.
YES_NO = {"True": "yes", "False": "no"}


class TransferShowOptions(Options):
    """The options of conf/transfer_show.yaml."""

    conf: ClassVar[str] = "transfer_show"

    runs: Path
    out: Path | None


@main(TransferShowOptions)
def show(options: TransferShowOptions) -> None:
    """Print and write the tables and figures of all transfers below a folder of runs.

    Raises:
        ValueError: there is no transfer, or the output directory cannot be written.
    """
    transfers, damaged = typed_json.scan(options.runs, FILE, load)
    for line in damaged:
        log(f"skipped: {line}")
    if not transfers:
        raise ValueError(
            f"{options.runs} has no results of a transfer; first: lra study transfer run=<run directory> attn=<name>"
        )

    all_points = points(transfers.values())
    out = options.out or options.runs / "transfer"
    group_tables = tables(all_points)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = [draw(group, rows, out) for group, rows in all_points.groupby(GROUP)]
        parts = ["# Transfers", LEGEND]
        for table, files in zip(group_tables, pictures, strict=True):
            parts.append(table.section(2))
            parts.extend(f"![{file}]({quote(file)})" for file in files)
        atomic.write(out / "transfer.md", "\n\n".join(parts) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; name another folder with out=<folder>") from None

    report_table.show(group_tables, LEGEND)
    num_pictures = sum(map(len, pictures))
    print(f"written to {out}: transfer.md and {plural(num_pictures, 'picture')}")


def draw(group: tuple[str, str, str], points: pd.DataFrame, folder: Path) -> list[str]:
    """Draw the points of one group over each axis on which they have two values or more, and their spectra.

    Args:
        group: study, task and source.
        points: points of the group.
        folder: folder of the figures.

    Returns:
        The names of the files.
    """
    study, task, source = group
    figures = {}
    for axis, (label, options) in AXES.items():
        lines = curves(points, options)
        if len(lines):
            # Errors are measured before fine-tuning.
            figure = _draw_axis(lines, label, source, with_errors=axis != "tuned")
            figure.suptitle(f"{task}, weights of {source};\nmean ± standard deviation over seeds", fontsize=10)
            figures[axis] = figure
    if any(r.spectrum_examples for r in points.record):
        figures["spectrum"] = _spectra(points, task, source)

    names = []
    for axis, figure in figures.items():
        name = f"{study}-{task}-{source}-{axis}.png".replace("/", "_")
        names.append(save(figure, folder / name, loc="outside right upper").name)
    return names


def _draw_axis(lines: pd.DataFrame, label: str, source: str, *, with_errors: bool) -> Figure:
    """Draw curves of test scores and, in a second panel, of errors; the values of the axis are at equal distances.

    Args:
        lines: rows of ``curves``.
        label: label of the axis.
        source: label of the run.
        with_errors: whether to draw the panel of errors.
    """
    names = sorted(lines.curve.unique(), key=natural)
    # Room for the legend on the right: 0.065 inches per character.
    longest = max(map(len, names))
    num_panels = 2 if with_errors else 1
    width = 4.5 + 0.065 * longest / num_panels
    height = max(4, 0.8 + 0.17 * len(names))
    figure, grid = panels(num_panels, width=width, height=height)

    values = sorted(lines.value.unique())
    for i, name in enumerate(names):
        style: dict[str, Any] = {
            "color": f"C{i % 10}",
            "marker": "o^sv"[i // 10 % 4],
            "markersize": 4,
            "capsize": 2,
            "linewidth": 1.2,
        }
        line = lines[lines.curve == name]
        for axes, column in zip(grid, ("test", "mean_abs"), strict=False):
            by_value = line.dropna(subset=column).groupby("value")
            bars = by_value[column].agg(["mean", "std"])
            # Curves are shifted, so that no bar hides another.
            x = [values.index(value) + 0.02 * i for value in bars.index]
            axes.errorbar(x, bars["mean"], bars["std"].fillna(0), label=name, **style)

    # The score of the run is a dashed line.
    exact = lines.drop_duplicates("seed").exact
    exact_label = f"exact: {source} (n = {len(exact)})"
    grid[0].axhline(exact.mean(), color="grey", linestyle="--", linewidth=1, label=exact_label)
    grid[0].set_ylabel(f"test {lines.record.iloc[0].metric}, %")
    for axes in grid[1:]:
        axes.set_ylabel("mean |O - O'|, mean over layers")
        axes.set_ylim(bottom=0)
    ticks = [YES_NO.get(str(value), str(value)) for value in values]
    for axes in grid:
        axes.set_xlabel(label)
        axes.set_xticks(range(len(values)), ticks)
    return figure


def _spectra(points: pd.DataFrame, task: str, source: str) -> Figure:
    """Draw the spectra of the exact maps, which depend on the seed but not on the other mechanism."""
    figure, (axes,) = panels(1, width=6, height=4)
    by_seed = {r.seed: r for r in points.record if r.spectrum_examples}
    layers_by_seed = [r.layers for r in by_seed.values()]
    for i, seeds in enumerate(zip(*layers_by_seed, strict=True)):
        # The legend names each layer once.
        name: str | None = f"layer {i}"
        colour = f"C{i % 10}"
        for layer in seeds:
            # Relative to the largest singular value; zeros cannot be drawn on a logarithmic axis.
            largest, *_ = layer.spectrum
            values = [value / largest for value in layer.spectrum if value > 0]
            numbers = range(1, len(values) + 1)
            axes.plot(numbers, values, color=colour, linewidth=1, label=name)
            name = None
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1.5), xlabel="i", ylabel="singular value i / largest")
    n = max(r.spectrum_examples for r in by_seed.values())
    axes.set_title(f"{task}: attention maps of {source},\nmean of {n} validation examples and all heads", fontsize=9)
    return figure


if __name__ == "__main__":
    show()
