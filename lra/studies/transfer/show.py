"""python -m lra.studies.transfer.show: tables and figures of every transfer.

The figures have the axes of CURformer's ViT study (section 7, Figures 5 to 7).
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from pathlib import Path
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from ...config.entry import main
from ...config.options import Options
from ...console import log
from ...disk import atomic, typed_json
from ...report import table as report_table
from ..figures import panels, save
from .record import FILE, load
from .tables import GROUP, LEGEND, curves, natural, points, tables

AXES = {  # name -> label of the axis, and its option, which has another name in some mechanisms
    "count": ("rows and columns kept", ("count", "landmarks")),
    "selection": ("selection", ("score",)),
    "inverse": ("steps of the inverse", ("pinv.steps",)),
    "pairing": ("pairing", ("pairing",)),
    "class_token": ("class token kept", ("class_token",)),
    "tuned": ("steps of fine-tuning", ("tuned",)),
}
WORDS = {"True": "yes", "False": "no"}


class TransferShowOptions(Options):
    conf: ClassVar[str] = "transfer_show"

    runs: Path
    out: Path | None


@main(TransferShowOptions)
def show(options: TransferShowOptions) -> None:
    """Print and write the tables and figures. Raises ValueError if there is no transfer."""
    runs = options.runs
    transfers, damaged = typed_json.scan(runs, FILE, load)
    for line in damaged:
        log(f"skipped: {line}")
    if not transfers:
        raise ValueError(f"{runs} has no transfer; python -m lra.studies.transfer run=<folder> attn=<name> makes them")
    some, out = points(transfers.values()), options.out or runs / "transfer"
    made = tables(some)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = [draw(group, rows, out) for group, rows in some.groupby(GROUP)]
        parts = ["# Transfers", LEGEND]
        for table, shown in zip(made, pictures, strict=True):
            parts += [table.section(2), *map("![{0}]({0})".format, shown)]
        atomic.write(out / "transfer.md", "\n\n".join(parts) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; name another folder with out=<folder>") from None
    report_table.show(made, LEGEND)
    files = sum(map(len, pictures))
    print(f"written to {out}: transfer.md and {files} picture{'s' if files != 1 else ''}")


def draw(group: tuple[str, str, str], some: pd.DataFrame, folder: Path) -> list[str]:
    """Draw the points of a study, task and source over each axis with two values, and spectra; returns the names."""
    made = {}
    for axis, (label, options) in AXES.items():
        if len(lines := curves(some, options)):
            # Errors are measured before fine-tuning.
            figure = made[axis] = _against(lines, label, group[2], errors=axis != "tuned")
            figure.suptitle(f"{group[1]}, weights of {group[2]};\nmean ± standard deviation over seeds", fontsize=10)
    if any(r.spectrum_examples for r in some.record):
        made["spectrum"] = _spectra(some, group)
    name = lambda axis: f"{'-'.join((*group, axis))}.png".replace("/", "_")
    return [save(figure, folder / name(axis), loc="outside right upper").name for axis, figure in made.items()]


def _against(lines: pd.DataFrame, label: str, source: str, *, errors: bool) -> Figure:
    """Draw scores and, on their right, errors, with equal distances between the values of the axis."""
    names = sorted(lines.curve.unique(), key=natural)
    width = 4.5 + 0.065 * max(map(len, names)) / (1 + errors)  # of the legend, in characters of 8 points
    figure, grid = panels(1 + errors, width=width, height=max(4, 0.8 + 0.17 * len(names)))
    places = sorted(lines.value.unique())
    for i, name in enumerate(names):
        style = {"color": f"C{i % 10}", "marker": "o^sv"[i // 10 % 4], "markersize": 4, "capsize": 2, "linewidth": 1.2}
        for axes, column in zip(grid, ("test", "mean_abs"), strict=False):
            bars = lines[lines.curve == name].dropna(subset=column).groupby("value")[column].agg(["mean", "std"])
            x = [places.index(value) + 0.02 * i for value in bars.index]  # shifted, so that no bar hides another
            axes.errorbar(x, bars["mean"], bars["std"].fillna(0), label=name, **style)
    exact = lines.drop_duplicates("seed").exact
    label_of_exact = f"exact: {source} (n = {len(exact)})"
    grid[0].axhline(exact.mean(), color="grey", linestyle="--", linewidth=1, label=label_of_exact)
    grid[0].set_ylabel(f"test {lines.record.iloc[0].metric}, %")
    for axes in grid[1:]:
        axes.set_ylabel("mean |O - O'|, mean over layers")
        axes.set_ylim(bottom=0)
    for axes in grid:
        axes.set_xlabel(label)
        axes.set_xticks(range(len(places)), [WORDS.get(str(place), str(place)) for place in places])
    return figure


def _spectra(some: pd.DataFrame, group) -> Figure:
    """Draw the spectra of the exact maps, which depend on the seed but not on the other mechanism."""
    figure, (axes,) = panels(1, width=6, height=4)
    seeds = {r.seed: r for r in some.record if r.spectrum_examples}
    for i, same in enumerate(zip(*(r.layers for r in seeds.values()), strict=True)):
        for j, layer in enumerate(same):
            values = [v / layer.spectrum[0] for v in layer.spectrum if v > 0]
            name = f"layer {i}" if j == 0 else None
            axes.plot(range(1, len(values) + 1), values, color=f"C{i % 10}", linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1.5), xlabel="i", ylabel="singular value i / largest")
    n = max(r.spectrum_examples for r in seeds.values())
    axes.set_title(f"{group[1]}: attention maps of {group[2]},\nmean of {n} dev examples and all heads", fontsize=9)
    return figure


if __name__ == "__main__":
    show()
