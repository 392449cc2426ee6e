"""Figures of transfers over the axes of CURformer's ViT study (section 7, Figures 5 to 7)."""

from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from ..figures import panels, save
from .tables import TransferPoint, curves, natural

# name -> label of the axis, value of a point, options that the axis stands for
AXES = {
    "count": ("rows and columns kept", lambda point: point.kept, {"count", "landmarks"}),
    "selection": ("selection", lambda point: point.options.get("score"), {"score"}),
    "inverse": ("steps of the inverse", lambda point: point.options.get("pinv.steps"), {"pinv.steps"}),
    "pairing": ("pairing", lambda point: point.options.get("pairing"), {"pairing"}),
    "class_token": (
        "class token kept",
        lambda point: {True: "yes", False: "no"}.get(point.options.get("class_token")),
        {"class_token"},
    ),
    "tuned": ("steps of fine-tuning", lambda point: point.tuned, {"tuned"}),
}


def draw(group: tuple[str, str, str], some: list[TransferPoint], folder: Path) -> list[str]:
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
        if lines := curves(some, value, hidden):
            # Errors are measured before fine-tuning.
            figure = _against(lines, label, some, group, errors=axis != "tuned")
            title = f"{group[1]}, weights of {group[2]};\nmean ± standard deviation over seeds"
            names.append(keep(figure, axis, title, loc="outside right upper"))
    if any(r.spectrum_examples for point in some for r in point.records):
        names.append(keep(_spectra(some, group), "spectrum", loc="outside right upper"))
    return names


def _against(lines, label: str, some: list[TransferPoint], group, *, errors: bool) -> Figure:
    """Draw scores and, on their right, errors, with equal distances between the values of the axis."""
    longest = max(map(len, lines))  # width of the legend, in characters of 8 points
    width = 4.5 + 0.065 * longest / (1 + errors)
    figure, (left, *right) = panels(1 + errors, width=width, height=max(4, 0.8 + 0.17 * len(lines)))
    places = sorted({x for line in lines.values() for x, _ in line})
    for i, name in enumerate(sorted(lines, key=natural)):
        style = {"color": f"C{i % 10}", "marker": "o^sv"[i // 10 % 4], "markersize": 4, "capsize": 2, "linewidth": 1.2}
        # Shifted, so that no bar hides another.
        line = [(places.index(x) + 0.02 * i, point) for x, point in lines[name]]
        scored = [(x, point) for x, point in line if point.tests]
        _bars(left, [x for x, _ in scored], [point.tests for _, point in scored], label=name, **style)
        for axes in right:
            _bars(axes, [x for x, _ in line], [point.values("mean_abs") for _, point in line], **style)
    exact = {r.seed: r.exact_test for line in lines.values() for _, point in line for r in point.records}
    exact_label = f"exact: {group[2]} (n = {len(exact)})"
    left.axhline(mean(exact.values()), color="grey", linestyle="--", linewidth=1, label=exact_label)
    left.set_ylabel(f"test {some[0].records[0].metric}, %")
    for axes in right:
        axes.set_ylabel("mean |O - O'|, mean over layers")
        axes.set_ylim(bottom=0)
    for axes in (left, *right):
        axes.set_xlabel(label)
        axes.set_xticks(range(len(places)), map(str, places))
    return figure


def _bars(axes, x: list[float], values: list[list[float]], **style) -> None:
    deviations = [stdev(v) if len(v) > 1 else 0 for v in values]
    axes.errorbar(x, [mean(v) for v in values], deviations, **style)


def _spectra(some: list[TransferPoint], group) -> Figure:
    """Draw the spectra of the exact maps, which depend on the seed but not on the other mechanism."""
    figure, (axes,) = panels(1, width=6, height=4)
    seeds = {r.seed: r for point in some for r in point.records if r.spectrum_examples}
    for i, same in enumerate(zip(*(r.layers for r in seeds.values()), strict=True)):
        for j, layer in enumerate(same):
            values = [v / layer.spectrum[0] for v in layer.spectrum if v > 0]
            name = f"layer {i}" if j == 0 else None
            axes.plot(range(1, len(values) + 1), values, color=f"C{i % 10}", linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1.5), xlabel="i", ylabel="singular value i / largest")
    n = max(r.spectrum_examples for r in seeds.values())
    axes.set_title(f"{group[1]}: attention maps of {group[2]},\nmean of {n} dev examples and all heads", fontsize=9)
    return figure
