"""Figures of transfers over the axes of CURformer's ViT study (section 7, Figures 5 to 7)."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ..figures import panels, save
from .tables import curves, natural

# name -> label of the axis, its value from the options of a point, options that it stands for
AXES = {
    "count": ("rows and columns kept", lambda o: o.get("count", o.get("landmarks")), {"count", "landmarks"}),
    "selection": ("selection", lambda o: o.get("score"), {"score"}),
    "inverse": ("steps of the inverse", lambda o: o.get("pinv.steps"), {"pinv.steps"}),
    "pairing": ("pairing", lambda o: o.get("pairing"), {"pairing"}),
    "class_token": (
        "class token kept",
        lambda o: {True: "yes", False: "no"}.get(o.get("class_token")),
        {"class_token"},
    ),
    "tuned": ("steps of fine-tuning", lambda o: o["tuned"], {"tuned"}),
}


def draw(group: tuple[str, str, str], some: pd.DataFrame, folder: Path) -> list[str]:
    """Draw a figure for every axis with two or more values, and one of the spectra.

    Args:
        group: study, task and label of the run.
        some: points of the group.
        folder: folder of the files.

    Returns:
        The names of the files.
    """
    name = lambda axis: f"{'-'.join((*group, axis))}.png".replace("/", "_")
    keep = lambda figure, axis, title="", **legend: save(figure, folder / name(axis), title, **legend).name
    names = []
    for axis, (label, value, hidden) in AXES.items():
        if len(lines := curves(some, value, hidden)):
            # Errors are measured before fine-tuning.
            figure = _against(lines, label, group[2], errors=axis != "tuned")
            title = f"{group[1]}, weights of {group[2]};\nmean ± standard deviation over seeds"
            names.append(keep(figure, axis, title, loc="outside right upper"))
    if any(r.spectrum_examples for r in some.record):
        names.append(keep(_spectra(some, group), "spectrum", loc="outside right upper"))
    return names


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
        axes.set_xticks(range(len(places)), map(str, places))
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
