"""Figures of weights over a row: an expression or a text with shaded tokens, an image, a series."""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from scipy import ndimage

SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#8cbcf2", "#1d5fb4"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#1d5fb4", "#8cbcf2", "#ffffff", "#f4a58c", "#b8341b"])
COLUMNS, LINES = 96, 40  # characters of a text
SIZE = 8  # points of its font
ADVANCE, LEADING = 0.602 * SIZE / 72, 1.6 * SIZE / 72  # inches of a character of DejaVu Sans Mono, and of a line
WORD = {"family": "DejaVu Sans Mono", "size": SIZE, "ha": "center", "va": "center_baseline", "color": "#16161a"}
MARK = {"marker": "o", "s": 90, "facecolors": "none", "edgecolors": "#d1242f", "linewidths": 1.6}


class View(NamedTuple):
    """The contents of a figure.

    Args:
        title: heading.
        row: stored inputs of one example, (L,) ids or (L,F) features.
        at: position of each reading, None for the pooling.
        weights: weights of the readings, (R,L).
        whole: map of all queries and keys (L,L), or None.
        alphabet: names of the ids.
    """

    title: str
    row: np.ndarray
    at: Sequence[int | None]
    weights: np.ndarray
    whole: np.ndarray | None
    alphabet: Sequence[str]


def markers(image: np.ndarray) -> list[int]:
    """Find the two brightest disks of an image (side, side): the marked ends of a Pathfinder image."""
    side = len(image)
    radius = 1 + side / 64  # 1.5 pixels at 32, 5 at 256
    y, x = np.mgrid[-int(radius) : int(radius) + 1, -int(radius) : int(radius) + 1]
    disk = (y**2 + x**2 <= radius**2).astype(float)
    bright = ndimage.convolve(image.astype(float), disk / disk.sum(), mode="constant")
    first = int(bright.argmax())
    y, x = np.mgrid[:side, :side]
    bright[(y - first // side) ** 2 + (x - first % side) ** 2 <= (2 * radius) ** 2] = -1
    return [first, int(bright.argmax())]


def pixels(view: View) -> Figure:
    """Draw the image with the chosen points, each reading as an image, and the whole map."""
    side = isqrt(len(view.row))
    image = view.row[: side * side].reshape(side, side)
    count = 1 + len(view.at) + (view.whole is not None)
    figure = Figure(figsize=(3.1 * count, 3.4), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    panels[0].imshow(image, cmap="gray")
    panels[0].set_title("image", fontsize=9)
    chosen = [at for at in view.at if at is not None]
    panels[0].scatter([at % side for at in chosen], [at // side for at in chosen], **MARK)
    for axes, at, weights in zip(panels[1:], view.at, view.weights, strict=False):
        _shade(figure, axes, weights[: side * side].reshape(side, side))
        axes.set_title(_named(at, side), fontsize=9)
        if at is not None:
            axes.scatter(at % side, at // side, **MARK)
    for axes in panels[: 1 + len(view.at)]:
        axes.set(xticks=[], yticks=[])
    return _finish(figure, panels, view)


def expression(view: View) -> Figure:
    """Draw the tokens of an expression with their names, separated by blanks if a name is longer than one letter."""
    between = " " if max(map(len, view.alphabet)) > 1 else ""
    return tokens(view, [view.alphabet[id] + between for id in view.row])


def bytes_(view: View) -> Figure:
    """Draw bytes as Latin-1 text, with a middle dot for each byte that is not printable."""
    text = view.row.astype(np.uint8).tobytes().decode("latin-1")
    return tokens(view, [c if c.isprintable() else "·" for c in text])


def tokens(view: View, words: list[str]) -> Figure:
    """Draw each reading as the text with shaded tokens, then the whole map; text beyond LINES lines is left out.

    Args:
        view: contents.
        words: text of each token.
    """
    places = layout(words)
    lines = places[-1][0] + 1
    width, height = COLUMNS * ADVANCE, lines * LEADING
    square = 3.2 if view.whole is not None else 0.0
    total = 0.75 + len(view.at) * (height + 0.4) + (square + 0.6 if square else 0)
    figure = Figure(figsize=(width + 1.4, total))
    top = total - 0.75
    for at, weights in zip(view.at, view.weights, strict=True):
        axes = _place(figure, 0.3, top - height, width, height)
        shades = np.full((lines, COLUMNS), np.nan)
        for (line, column), word, weight in zip(places, map(str.rstrip, words), weights, strict=False):
            shades[line, column : column + len(word)] = weight
            if word:  # each at its own place: a character's width depends on matplotlib's version
                axes.text(column + (len(word) - 1) / 2, line, word, parse_math=False, **WORD)
        _shade(figure, axes, shades, weights, _place(figure, width + 0.45, top - height, 0.12, min(height, 1.6)))
        axes.set_title(_named(at), fontsize=9, loc="left")
        axes.set_axis_off()
        top -= height + 0.4
    title = {"fontsize": 10, "weight": "bold", "va": "center", "parse_math": False}
    figure.text(0.3 / (width + 1.4), 1 - 0.3 / total, view.title, **title)
    if square:
        _whole(figure, _place(figure, 0.75, 0.45, square, square), view.whole)
    return figure


def layout(words: Sequence[str]) -> list[tuple[int, int]]:
    """Place words in LINES lines of COLUMNS characters; returns (line, column) of each word that fits."""
    places, line, column = [], 0, 0
    for word in words:
        if column + len(word.rstrip()) > COLUMNS:
            line, column = line + 1, 0
        if line == LINES:
            break
        places.append((line, column))
        column += len(word)
    return places


def series(view: View) -> Figure:
    """Draw the first feature over the positions, marks of the second one as rings, and each reading as bars below."""
    down = len(view.at)
    figure = Figure(figsize=(9, 1.8 + 1.3 * down + (3.4 if view.whole is not None else 0)), layout="constrained")
    heights = [1.6, *[1.0] * down, *([3.0] if view.whole is not None else [])]
    panels = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
    x = np.arange(len(view.row))
    panels[0].plot(x, view.row[:, 0], color="0.4", linewidth=0.8)
    marked = np.flatnonzero(view.row[:, 1])
    panels[0].scatter(marked, view.row[marked, 0], **MARK)
    for axes, at, weights in zip(panels[1:], view.at, view.weights, strict=False):
        axes.bar(x, weights, width=1.0, color="#2a78d6")
        axes.set_title(_named(at), fontsize=9, loc="left")
        axes.set_xlim(panels[0].get_xlim())
    return _finish(figure, panels, view)


DISPLAYS = {"pixels": pixels, "expression": expression, "bytes": bytes_, "series": series}


def _named(at: int | None, side: int | None = None) -> str:
    if at is None:
        return "pooling"
    return f"position {at}" if side is None else f"pixel {at // side}, {at % side}"


def _finish(figure: Figure, panels: Sequence[Axes], view: View) -> Figure:
    figure.suptitle(view.title, fontsize=10, weight="bold", parse_math=False)
    if view.whole is not None:
        _whole(figure, panels[-1], view.whole)
    return figure


def _whole(figure: Figure, axes: Axes, whole: np.ndarray) -> None:
    _shade(figure, axes, whole)
    axes.set_title("every query (down) and key (across)", fontsize=9)
    axes.tick_params(labelsize=7)


def _shade(figure: Figure, axes: Axes, shades: np.ndarray, values: np.ndarray | None = None, bar: Axes | None = None):
    """Shade from white at the least weight to blue at the greatest; with two colours around zero if some are negative.

    The greatest 0.1 % are clipped. With a ``bar``, shades end at half their strength, so that text on them is readable.
    """
    values = shades if values is None else values
    low, high = float(values.min()), float(np.quantile(values, 0.999))
    if low < -0.01 * high:
        high = max(float(np.quantile(np.abs(values), 0.999)), 1e-12)
        low, colours = -high, SIGNED
    else:
        high, colours = max(high, low + 1e-12), SHADES
    room = 0.0 if bar is None else 0.8 * (high - low)
    look = {"vmin": low - room * (colours is SIGNED), "vmax": high + room, "cmap": colours, "interpolation": "nearest"}
    shown = axes.imshow(shades, aspect="equal" if bar is None else "auto", **look)
    colourbar = figure.colorbar(shown, ax=axes, shrink=0.8) if bar is None else figure.colorbar(shown, cax=bar)
    if bar is not None:
        bar.set_ylim(low, high)
    colourbar.ax.tick_params(labelsize=7)
    colourbar.outline.set_visible(False)


def _place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the lower left corner."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))
