"""Figures of weights over a sequence: an expression or a text with shaded tokens, an image, a series."""

from collections.abc import Sequence
from math import isqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import ndimage

from ..results.palette import SHADES, SIGNED_SHADES, shade_range

# Characters per line of a text, and the maximum number of lines.
COLUMNS = 96
LINES = 40
# Font size of a text in points; width of a character of DejaVu Sans Mono and height of a line in inches.
FONT_SIZE = 8
ADVANCE = 0.602 * FONT_SIZE / 72
LEADING = 1.6 * FONT_SIZE / 72
WORD: dict[str, Any] = {
    "family": "DejaVu Sans Mono",
    "size": FONT_SIZE,
    "ha": "center",
    "va": "center_baseline",
    "color": "#16161a",
}
MARK = {"marker": "o", "s": 90, "facecolors": "none", "edgecolors": "#d1242f", "linewidths": 1.6}


class View(NamedTuple):
    """The contents of a figure.

    A reading is a row of weights over the tokens: the map's row of one query, or the weights that the pooling uses.

    Args:
        title: heading.
        inputs: stored inputs of one example, (L,) ids or (L,F) features.
        at: position of each reading, None for the pooling.
        weights: weights of the readings, (R,L).
        full_map: map of all queries and keys (L,L), or None.
        alphabet: names of the ids.
        pooling: title of the reading of the pooling.
    """

    title: str
    inputs: np.ndarray
    at: Sequence[int | None]
    weights: np.ndarray
    full_map: np.ndarray | None
    alphabet: Sequence[str]
    pooling: str = "pooling"


def markers(image: np.ndarray) -> list[int]:
    """Find the positions of the two brightest disks of an image (side, side): the marked ends of Pathfinder."""
    side = len(image)
    # 1.5 pixels at side 32, 5 at 256.
    radius = 1 + side / 64

    # Mean brightness of a disk around every pixel.
    reach = int(radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    is_inside = y**2 + x**2 <= radius**2
    disk = is_inside.astype(float)
    weights = disk / disk.sum()
    brightness = ndimage.convolve(image.astype(float), weights, mode="constant")
    first = int(brightness.argmax())

    # The second disk does not overlap the first one.
    first_row, first_column = divmod(first, side)
    y, x = np.mgrid[:side, :side]
    squared_distance = (y - first_row) ** 2 + (x - first_column) ** 2
    is_overlapping = squared_distance <= (2 * radius) ** 2
    brightness[is_overlapping] = -1
    second = int(brightness.argmax())
    return [first, second]


def pixels(view: View) -> Figure:
    """Draw the image with rings at the positions of the readings, each reading as an image, and the full map."""
    side = isqrt(len(view.inputs))
    num_pixels = side * side
    num_images = 1 + len(view.at)
    num_panels = num_images if view.full_map is None else num_images + 1
    figure = Figure(figsize=(3.1 * num_panels, 3.4), layout="constrained")
    panels = figure.subplots(1, num_panels, squeeze=False)[0]

    # The image itself, with rings at the positions.
    image = view.inputs[:num_pixels].reshape(side, side)
    panels[0].imshow(image, cmap="gray")
    panels[0].set_title("image", fontsize=9)
    positions = [at for at in view.at if at is not None]
    columns = [at % side for at in positions]
    rows = [at // side for at in positions]
    panels[0].scatter(columns, rows, **MARK)

    # The weights of each reading.
    for axes, at, weights in zip(panels[1:], view.at, view.weights, strict=False):
        # A pixel that a class token has pushed out of the sequence has no weight.
        shades = np.full(num_pixels, np.nan)
        shades[: len(weights)] = weights[:num_pixels]
        _shade(figure, axes, shades.reshape(side, side), weights[:num_pixels])
        axes.set_title(_reading_title(view, at, side), fontsize=9)
        if at is not None:
            row, column = divmod(at, side)
            axes.scatter(column, row, **MARK)
    for axes in panels[:num_images]:
        axes.set(xticks=[], yticks=[])
    return _finish(figure, panels, view)


def expression(view: View) -> Figure:
    """Draw the tokens of an expression with their names, separated by blanks if a name is longer than one letter."""
    longest = max(map(len, view.alphabet))
    separator = " " if longest > 1 else ""
    words = [view.alphabet[token] + separator for token in view.inputs]
    return tokens(view, words)


def bytes_(view: View) -> Figure:
    """Draw bytes as Latin-1 text, with a middle dot for each byte that is not printable."""
    data = view.inputs.astype(np.uint8).tobytes()
    text = data.decode("latin-1")
    characters = [c if c.isprintable() else "·" for c in text]
    return tokens(view, characters)


def tokens(view: View, words: list[str]) -> Figure:
    """Draw each reading as the text with shaded tokens, then the full map; text beyond LINES lines is left out.

    Args:
        view: contents.
        words: text of each token.
    """
    # Sizes in inches: the text of one reading, the map below all of them, the whole figure.
    places = layout(words)
    num_lines = places[-1][0] + 1
    width = COLUMNS * ADVANCE
    height = num_lines * LEADING
    map_side = 0.0 if view.full_map is None else 3.2
    total_width = width + 1.4
    total_height = 0.75 + len(view.at) * (height + 0.4)
    if map_side:
        total_height += map_side + 0.6
    figure = Figure(figsize=(total_width, total_height))

    # Tokens beyond the last line are not shown.
    cut = f", first {len(places):,} of {len(words):,} tokens" if len(places) < len(words) else ""
    # Each reading has axes of text and a colour bar to the right of it.
    top = total_height - 0.75
    for at, weights in zip(view.at, view.weights, strict=True):
        bottom = top - height
        axes = _add_axes(figure, 0.3, bottom, width, height)
        shades = np.full((num_lines, COLUMNS), np.nan)
        for (line, column), word, weight in zip(places, words, weights, strict=False):
            word = word.rstrip()
            end = column + len(word)
            shades[line, column:end] = weight
            # Each word is placed on its own: the width of a character depends on matplotlib's version.
            if word:
                centre = column + (len(word) - 1) / 2
                axes.text(centre, line, word, parse_math=False, **WORD)
        bar = _add_axes(figure, width + 0.45, bottom, 0.12, min(height, 1.6))
        _shade(figure, axes, shades, weights, bar)
        axes.set_title(_reading_title(view, at) + cut, fontsize=9, loc="left")
        axes.set_axis_off()
        top -= height + 0.4

    # The title is placed by hand, since the layout is fixed in inches.
    left = 0.3 / total_width
    title_height = 1 - 0.3 / total_height
    figure.text(
        left,
        title_height,
        view.title,
        fontsize=10,
        weight="bold",
        va="center",
        parse_math=False,
    )
    if view.full_map is not None:
        axes = _add_axes(figure, 0.75, 0.45, map_side, map_side)
        _draw_map(figure, axes, view.full_map)
    return figure


def layout(words: Sequence[str]) -> list[tuple[int, int]]:
    """Place words in LINES lines of COLUMNS characters; returns (line, column) of each word that fits."""
    places = []
    line = 0
    column = 0
    for word in words:
        # A separator at the end of a line needs no room.
        end = column + len(word.rstrip())
        if end > COLUMNS:
            line += 1
            column = 0
        if line == LINES:
            break
        places.append((line, column))
        column += len(word)
    return places


def series(view: View) -> Figure:
    """Draw the first feature over the positions, with rings where the second one is not 0, and each reading as bars."""
    num_readings = len(view.at)
    height = 1.8 + 1.3 * num_readings
    ratios = [1.6, *[1.0] * num_readings]
    if view.full_map is not None:
        height += 3.4
        ratios.append(3.0)
    figure = Figure(figsize=(9, height), layout="constrained")
    panels = figure.subplots(len(ratios), 1, gridspec_kw={"height_ratios": ratios})

    # The series; positions with a second feature other than zero are marked.
    values = view.inputs[:, 0]
    x = np.arange(len(values))
    panels[0].plot(x, values, color="0.4", linewidth=0.8)
    marks = np.flatnonzero(view.inputs[:, 1])
    panels[0].scatter(marks, values[marks], **MARK)

    # The weights of each reading.
    for axes, at, weights in zip(panels[1:], view.at, view.weights, strict=False):
        axes.bar(x, weights, width=1.0, color="#2a78d6")
        axes.set_title(_reading_title(view, at), fontsize=9, loc="left")
        axes.set_xlim(panels[0].get_xlim())
    return _finish(figure, panels, view)


DISPLAYS = {"pixels": pixels, "expression": expression, "bytes": bytes_, "series": series}


def _reading_title(view: View, at: int | None, side: int | None = None) -> str:
    if at is None:
        return view.pooling
    if side is None:
        return f"position {at}"
    row, column = divmod(at, side)
    return f"pixel {row}, {column}"


def _finish(figure: Figure, panels: Sequence[Axes], view: View) -> Figure:
    figure.suptitle(view.title, fontsize=10, weight="bold", parse_math=False)
    if view.full_map is not None:
        _draw_map(figure, panels[-1], view.full_map)
    return figure


def _draw_map(figure: Figure, axes: Axes, full_map: np.ndarray) -> None:
    _shade(figure, axes, full_map)
    axes.set_title("every query (down) and key (across)", fontsize=9)
    axes.tick_params(labelsize=7)


def _shade(figure: Figure, axes: Axes, shades: np.ndarray, values: np.ndarray | None = None, bar: Axes | None = None):
    """Shade from white at the least weight to blue at the greatest; with two colours around zero if some are negative.

    The range is taken from ``values``, by default the shades; the greatest 0.1 % are clipped. With a ``bar``, shades
    end at 56 % of their strength (38 % with two colours), so that text on them is readable.
    """
    if values is None:
        values = shades
    low, high, is_signed = shade_range(values)

    # A wider range makes the shades paler.
    margin = 0.0
    aspect: Literal["equal", "auto"] = "equal"
    if bar is not None:
        margin = 0.8 * (high - low)
        aspect = "auto"
    image = axes.imshow(
        shades,
        aspect=aspect,
        vmin=low - margin if is_signed else low,
        vmax=high + margin,
        cmap=SIGNED_SHADES if is_signed else SHADES,
        interpolation="nearest",
    )
    if bar is None:
        colourbar = figure.colorbar(image, ax=axes, shrink=0.8)
    else:
        colourbar = figure.colorbar(image, cax=bar)
        bar.set_ylim(low, high)
    colourbar.ax.tick_params(labelsize=7)
    # The stubs of matplotlib declare the outline as a list of spines.
    colourbar.outline.set_visible(False)  # type: ignore[operator]


def _add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the lower left corner."""
    figure_width, figure_height = figure.get_size_inches()
    left = left / figure_width
    bottom = bottom / figure_height
    width = width / figure_width
    height = height / figure_height
    return figure.add_axes((left, bottom, width, height))
