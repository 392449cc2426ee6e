"""lra data show task=listops count=16 [out=<png>]: a figure of the first examples of a split.

``display`` of conf/task/*.yaml is the kind of sequence: pixels, expression (ids of the source's alphabet), bytes or
series. Sequences are (L,) ids or (L, F) features without their padding, possibly cut; ``length`` is the stored length.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("show")  # before torch is imported

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
from lra.console import log
from lra.data.source import Source
from lra.options import Positive

# Characters and lines of text in a panel.
COLUMNS = 100
LINES = 12
# Pixels: a series, the approximate side of an image, the space around a panel, the width of a row of panels.
CURVE = (600, 120)
SIDE = 160
MARGIN = 12
SHEET = 1260
# Colours of the curve of a series and of its marked positions.
GREY = "#4c566a"
RED = "#d1242f"


def pixels(sequence: np.ndarray, source: Source, length: int) -> Image.Image:
    """Draw grey levels 0..255 of a square image that is stored line by line."""
    # The complete lines of a sequence that was cut, or a part of the first line.
    side = min(isqrt(length), len(sequence))
    num_lines = len(sequence) // side
    complete = sequence[: num_lines * side]
    grey = complete.reshape(num_lines, side).astype(np.uint8)
    image = Image.fromarray(grey)

    # Enlarge small images by a whole factor.
    factor = max(1, SIDE // side)
    image = image.resize((side * factor, num_lines * factor), Image.Resampling.NEAREST)
    return image.convert("RGB")


def expression(sequence: np.ndarray, source: Source, length: int) -> Image.Image:
    """Draw ids as the tokens of the source's alphabet."""
    # Tokens of one letter each need no spaces.
    longest = max(map(len, source.alphabet))
    separator = " " if longest > 1 else ""
    tokens = [source.alphabet[id] for id in sequence]
    text = separator.join(tokens)
    return draw_text(text, f"{length:,} tokens")


def bytes_(sequence: np.ndarray, source: Source, length: int) -> Image.Image:
    """Draw bytes as Latin-1 text, with a middle dot for each byte that is not printable."""
    data = sequence.astype(np.uint8).tobytes()
    characters = [c if c.isprintable() else "·" for c in data.decode("latin-1")]
    return draw_text("".join(characters), f"{length:,} bytes")


def series(sequence: np.ndarray, source: Source, length: int) -> Image.Image:
    """Draw the first feature over the positions as a curve, with a ring and a line at nonzero values of the second."""
    # Scale positions and values to the panel, with a frame of four pixels.
    width, height = CURVE
    values = sequence[:, 0]
    low = values.min()
    high = values.max()
    x = np.linspace(4, width - 5, len(sequence))
    depth = (high - values) / max(high - low, 1e-9)
    y = 4 + (height - 9) * depth

    image = Image.new("RGB", CURVE, "white")
    draw = ImageDraw.Draw(image)
    points = np.stack([x, y], 1)
    draw.line(points.ravel().tolist(), fill=GREY)

    # Marked positions: a line, and a ring of radius four around the point of the curve.
    for position in np.flatnonzero(sequence[:, 1]):
        centre_x, centre_y = points[position]
        draw.line([centre_x, 0, centre_x, height], fill=RED)
        top_left = (centre_x - 4, centre_y - 4)
        bottom_right = (centre_x + 4, centre_y + 4)
        draw.ellipse([top_left, bottom_right], outline=RED, fill="white", width=2)
    return image


Draw = Callable[[np.ndarray, Source, int], Image.Image]
DISPLAYS: dict[str, Draw] = {
    "pixels": pixels,
    "expression": expression,
    "bytes": bytes_,
    "series": series,
}


def draw_text(text: str, size: str = "") -> Image.Image:
    """Draw a text in monospaced lines; one that does not fit is cut, and ``size`` is the whole size of the sequence."""
    lines = textwrap.wrap(text, COLUMNS) or [""]
    if len(lines) > LINES:
        lines = lines[: LINES - 1]
        lines.append(f"... ({size} in all)")
    # The size of a line, from the highest letters and the longest line.
    font = ImageFont.load_default_imagefont()
    _, top, _, bottom = font.getbbox("Ag")
    height = top + bottom + 2
    longest = max(len(line) for line in lines)
    _, _, right, _ = font.getbbox("M" * longest)
    width = right + 1

    total_height = height * len(lines)
    image = Image.new("RGB", (width, total_height), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        top_left = (0, number * height)
        draw.text(top_left, line, font=font, fill="black")
    return image


def format_label(label: int | float, classes: Sequence[str]) -> str:
    if classes:
        return classes[int(label)]
    return f"{label:.4f}" if isinstance(label, float) else str(label)


def column(images: list[Image.Image], gap: int) -> Image.Image:
    """Arrange images from top to bottom."""
    width = max(image.width for image in images)
    height = sum(image.height + gap for image in images)
    canvas = Image.new("RGB", (width, height), "white")
    top = 0
    for image in images:
        canvas.paste(image, (0, top))
        top += image.height + gap
    return canvas


def sheet(panels: list[Image.Image]) -> Image.Image:
    """Arrange panels from left to right and top to bottom, in cells of one width."""
    # The number of panels per row that fit into the width of the sheet, at least one.
    widest = max(panel.width for panel in panels)
    cell = widest + MARGIN
    across = max(1, min(len(panels), SHEET // cell))
    # A row is as high as its highest panel.
    rows = []
    heights = []
    for first in range(0, len(panels), across):
        row = panels[first : first + across]
        highest = max(panel.height for panel in row)
        rows.append(row)
        heights.append(highest + MARGIN)

    width = across * cell + MARGIN
    height = sum(heights) + MARGIN
    canvas = Image.new("RGB", (width, height), "white")
    top = MARGIN
    for row, row_height in zip(rows, heights, strict=True):
        left = MARGIN
        for panel in row:
            canvas.paste(panel, (left, top))
            left += cell
        top += row_height
    return canvas


def picture(source: Source, split, *, display: str, count: int, limit: int) -> Image.Image:
    """Draw the first examples of a split: the label, then an image for each of the T sequences.

    Args:
        source: data source of the split.
        split: the opened split.
        display: kind of sequence.
        count: number of examples, at most all.
        limit: tokens read of a sequence.
    """
    panels = []
    for example in range(min(count, len(split))):
        lengths = split.lengths[example].tolist()
        index = torch.tensor([example])
        tokens, mask = split.gather(index, max(lengths), limit)  # (1,T,width[,F]), (1,T,width)

        # The label on top of the image of each sequence, without padding.
        label = format_label(split.labels[example].item(), source.classes)
        images = [draw_text(f"{example}: {label}")]
        draw = DISPLAYS[display]
        for sequence, real, length in zip(tokens[0], mask[0], lengths, strict=True):
            unpadded = sequence[real].numpy()
            images.append(draw(unpadded, source, length))
        panels.append(column(images, 3))
    return sheet(panels)


class ShowOptions(TaskOptions):
    conf: ClassVar[str] = "show"

    split: str
    count: Positive
    out: Path


@main(ShowOptions)
def show(options: ShowOptions) -> None:
    """Write the figure. Raises ValueError if the data or the split are missing or the file cannot be written."""
    source = options.data_source()
    task = options.task
    splits = source.open(options.data.root)
    if options.split not in splits:
        names = ", ".join(splits)
        raise ValueError(f"split must be one of {names}, not {options.split!r}")
    split = splits[options.split]
    image = picture(source, split, display=task.display, count=options.count, limit=task.limit)
    try:
        image.save(options.out, "PNG")
    except OSError as error:
        raise ValueError(f"{options.out} cannot be written: {error.strerror}") from None
    count = min(options.count, len(split))
    log(f"{task.name}: {count} examples of {options.split} in {options.out}")


if __name__ == "__main__":
    show()
