"""python -m data_prep.show task=listops count=16 [out=<png>]: a picture of the first examples of a split.

`display` of conf/task/*.yaml says what a row is: pixels, expression (ids of the source's alphabet), bytes or series.
Rows are (L,) ids or (L, F) features without their padding.
"""

import textwrap
from collections.abc import Callable, Sequence
from math import isqrt
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from PIL import Image, ImageDraw, ImageFont

from lra.config import main
from lra.console import log

from .__main__ import source_of
from .base import Source

COLUMNS, LINES = 100, 12  # of text in a panel
CURVE = (600, 120)  # pixels of a series
SIDE = 160  # pixels of an image, about
MARGIN, SHEET = 12, 1260  # pixels
GREY, RED = "#4c566a", "#d1242f"


def pixels(row: np.ndarray, source: Source) -> Image.Image:
    """Grey levels 0..255 of a square image, row after row."""
    side = isqrt(len(row))
    image = Image.fromarray(row[: side * side].reshape(side, side).astype(np.uint8))
    return image.resize((side * max(1, SIDE // side),) * 2, Image.Resampling.NEAREST).convert("RGB")


def expression(row: np.ndarray, source: Source) -> Image.Image:
    between = " " if max(map(len, source.alphabet)) > 1 else ""
    return written(between.join(source.alphabet[id] for id in row), f"{len(row):,} tokens")


def bytes_(row: np.ndarray, source: Source) -> Image.Image:
    """Bytes as they are stored; one that is no printable Latin-1 becomes a dot in the middle of the line."""
    text = row.astype(np.uint8).tobytes().decode("latin-1")
    return written("".join(c if c.isprintable() else "·" for c in text), f"{len(row):,} bytes")


def series(row: np.ndarray, source: Source) -> Image.Image:
    """The first feature over the positions as a curve, with a ring and a line where the second is not zero."""
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
    """Monospaced lines; what is more than fits is left out and `size` says how much there is."""
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
    """Panels from left to right and top to bottom, in cells of one width; a line is as high as its highest panel."""
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
    """The first `count` examples of a split: label, then a picture for each of its T rows, cut to `limit` tokens."""
    panels = []
    for example in range(min(count, len(split))):
        width = int(split.lengths[example].max())
        tokens, mask = split.gather(torch.tensor([example]), width, limit)  # (1,T,width[,F]), (1,T,width)
        rows = [row[real].numpy() for row, real in zip(tokens[0], mask[0], strict=True)]
        label = named(split.labels[example].item(), source.classes)
        panels.append(column([written(f"{example}: {label}"), *(DISPLAYS[display](row, source) for row in rows)], 3))
    return sheet(panels)


@main("show")
def show(config: DictConfig) -> None:
    """Raises ValueError for a split, a count or a display that there is not."""
    source, display = source_of(config), config.task.display
    splits = source.open(config.data.root)
    if config.split not in splits:
        raise ValueError(f"split must be one of {', '.join(splits)}, not {config.split!r}")
    made = picture(source, splits[config.split], display=display, count=config.count, limit=config.task.limit)
    out = Path(config.out)
    try:
        made.save(out, "PNG")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}") from None
    log(f"{config.task.name}: {min(config.count, len(splits[config.split]))} examples of {config.split} in {out}")


if __name__ == "__main__":
    show()
