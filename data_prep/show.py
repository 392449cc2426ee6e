"""python -m data_prep.show task=listops count=16 [out=<png>]: a figure of the first examples of a split.

`display` of conf/task/*.yaml is the kind of row: pixels, expression (ids of the source's alphabet), bytes or series.
Rows are (L,) ids or (L, F) features without their padding.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import textwrap
from collections.abc import Callable, Sequence
from math import isqrt
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from lra.config.entry import main
from lra.config.options import TaskOptions
from lra.config.sections import Root
from lra.console import log
from lra.data.source import Source
from lra.options import Positive

COLUMNS, LINES = 100, 12  # of text in a panel
CURVE = (600, 120)  # pixels of a series
SIDE = 160  # pixels of an image, about
MARGIN, SHEET = 12, 1260  # pixels
GREY, RED = "#4c566a", "#d1242f"


def pixels(row: np.ndarray, source: Source) -> Image.Image:
    """Draw grey levels 0..255 of a square image, row after row."""
    side = isqrt(len(row))
    image = Image.fromarray(row[: side * side].reshape(side, side).astype(np.uint8))
    return image.resize((side * max(1, SIDE // side),) * 2, Image.Resampling.NEAREST).convert("RGB")


def expression(row: np.ndarray, source: Source) -> Image.Image:
    between = " " if max(map(len, source.alphabet)) > 1 else ""
    return written(between.join(source.alphabet[id] for id in row), f"{len(row):,} tokens")


def bytes_(row: np.ndarray, source: Source) -> Image.Image:
    """Draw bytes as Latin-1 text, with a middle dot for each byte that is not printable."""
    text = row.astype(np.uint8).tobytes().decode("latin-1")
    return written("".join(c if c.isprintable() else "·" for c in text), f"{len(row):,} bytes")


def series(row: np.ndarray, source: Source) -> Image.Image:
    """Draw the first feature over the positions as a curve, with a ring and a line at nonzero values of the second."""
    (width, height), (low, high) = CURVE, (row[:, 0].min(), row[:, 0].max())
    x = np.linspace(4, width - 5, len(row))
    y = 4 + (height - 9) * (high - row[:, 0]) / max(high - low, 1e-9)
    image = Image.new("RGB", CURVE, "white")
    draw = ImageDraw.Draw(image)
    draw.line(np.stack([x, y], 1).ravel().tolist(), fill=GREY)
    for at in np.flatnonzero(row[:, 1]):
        draw.line([x[at], 0, x[at], height], fill=RED)
        draw.ellipse([x[at] - 4, y[at] - 4, x[at] + 4, y[at] + 4], outline=RED, fill="white", width=2)
    return image


DISPLAYS: dict[str, Callable[[np.ndarray, Source], Image.Image]] = {
    "pixels": pixels,
    "expression": expression,
    "bytes": bytes_,
    "series": series,
}


def written(text: str, size: str = "") -> Image.Image:
    """Draw a text in monospaced lines; one that does not fit is cut, and `size` is its whole size."""
    lines = textwrap.wrap(text, COLUMNS) or [""]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... ({size} in all)"]
    font = ImageFont.load_default_imagefont()
    height = sum(font.getbbox("Ag")[1::2]) + 2
    image = Image.new("RGB", (font.getbbox("M" * max(map(len, lines)))[2] + 1, height * len(lines)), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((0, number * height), line, font=font, fill="black")
    return image


def named(label: int | float, classes: Sequence[str]) -> str:
    return classes[label] if classes else f"{label:.4f}" if isinstance(label, float) else str(label)


def column(images: list[Image.Image], gap: int) -> Image.Image:
    whole = Image.new("RGB", (max(i.width for i in images), sum(i.height + gap for i in images)), "white")
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height + gap
    return whole


def sheet(panels: list[Image.Image]) -> Image.Image:
    """Arrange panels from left to right and top to bottom, in cells of one width."""
    cell = max(panel.width for panel in panels) + MARGIN
    across = max(1, min(len(panels), SHEET // cell))
    rows = [panels[first : first + across] for first in range(0, len(panels), across)]
    heights = [max(panel.height for panel in row) + MARGIN for row in rows]
    whole = Image.new("RGB", (across * cell + MARGIN, sum(heights) + MARGIN), "white")
    for number, row in enumerate(rows):
        for place, panel in enumerate(row):
            whole.paste(panel, (MARGIN + place * cell, MARGIN + sum(heights[:number])))
    return whole


def picture(source: Source, split, *, display: str, count: int, limit: int) -> Image.Image:
    """Draw the first examples of a split: the label, then an image for each of the T rows.

    Args:
        source: data source of the split.
        split: opened.
        display: kind of row.
        count: examples.
        limit: tokens of a row.
    """
    panels = []
    for example in range(min(count, len(split))):
        width = int(split.lengths[example].max())
        tokens, mask = split.gather(torch.tensor([example]), width, limit)  # (1,T,width[,F]), (1,T,width)
        rows = [row[real].numpy() for row, real in zip(tokens[0], mask[0], strict=True)]
        label = named(split.labels[example].item(), source.classes)
        panels.append(column([written(f"{example}: {label}"), *(DISPLAYS[display](row, source) for row in rows)], 3))
    return sheet(panels)


class ShowOptions(TaskOptions):
    conf: ClassVar[str] = "show"

    data: Root
    split: str
    count: Positive
    out: Path


@main(ShowOptions)
def show(options: ShowOptions) -> None:
    """Write the figure. Raises ValueError if the split does not exist or the file cannot be written."""
    source, display = options.data_source(), options.task.display
    splits = source.open(options.data.root)
    if options.split not in splits:
        raise ValueError(f"split must be one of {', '.join(splits)}, not {options.split!r}")
    image = picture(source, splits[options.split], display=display, count=options.count, limit=options.task.limit)
    try:
        image.save(options.out, "PNG")
    except OSError as error:
        raise ValueError(f"{options.out} cannot be written: {error.strerror}") from None
    count = min(options.count, len(splits[options.split]))
    log(f"{options.task.name}: {count} examples of {options.split} in {options.out}")


if __name__ == "__main__":
    show()
