"""Statistics of Pathfinder images, in numbers and in a picture:

    python -m data_prep.pathfinder.stats size=32 count=500 [contour=14] [seed=0] [void=true] [out=a.png] [reference=50]

With reference=n, n images of the slow transcription (tests/data_prep/pathfinder_reference.py, so
PYTHONPATH=tests/data_prep) are measured too. A number is given as mean +- standard error over images.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from .generator import trace
from .paddles import BEYOND, paddle_table
from .patches import paint

ROLES = ("target", "distractor", "marker")
DEFAULTS = {"size": 32, "count": 500, "contour": 14, "seed": 0, "void": True, "reference": 0, "out": ""}
BINS = np.linspace(0, 256, 9)


class Drawing(NamedTuple):
    """One image and its parts; `pathfinder_reference` has a tuple with the same fields and more."""

    image: np.ndarray  # (size, size) uint8
    label: int
    layers: np.ndarray  # (3, size, size) brightness of each role's paddles alone
    turns: np.ndarray  # radians in [0, pi], between consecutive paddles of the two targets
    tips: tuple  # (y, x) of the two markers
    discarded: int
    placed: int


def drawings(*, size: int, count: int, seed: int, contour: int, void: bool = True) -> Iterator[Drawing]:
    """Draw the fast generator's images, and paint them again role by role."""
    images, labels, made = trace(size=size, count=count, seed=seed, contour=contour, void=void)
    length = contour // 3
    layers = np.empty((3, size + 2 * BEYOND, size + 2 * BEYOND), np.uint8)
    for n, targets in enumerate(made.targets):
        table = paddle_table(size, int(made.margin[n]))
        start = int(made.start[n])
        end = start if labels[n] else 1 - start
        paint(table, targets, made.distractors[n, : made.placed[n] * length], start, end, layers)
        roles = layers[:, BEYOND:-BEYOND, BEYOND:-BEYOND] * table.contrast[:, None, None]
        turns = abs(np.diff(table.theta[targets[:, :, 0]], axis=0)).ravel()
        turns = np.minimum(turns, 2 * np.pi - turns)
        tips = targets[0, start, 1:], targets[-1, end, 1:]
        yield Drawing(images[n], int(labels[n]), roles, turns, tips, int(made.discarded[n]), int(made.placed[n]))


def measure(sample: Iterable[Drawing]) -> dict[str, np.ndarray]:
    """Measure one number for each image under each name, and 8 pixel counts by grey value under "<role> histogram".

    Lit pixels are those above 63; a role's grey is its part of the mean grey, over the pixels in which it is brightest.
    """
    rows = []
    for d in sample:
        row = {"label": d.label, "lit pixels": np.count_nonzero(d.image > 63), "mean grey": d.image.mean()}
        brightest = np.where(d.layers.max(0) > 0, d.layers.argmax(0), -1)
        for role, name in enumerate(ROLES):
            grey = d.image[brightest == role]
            row |= {f"{name} pixels": grey.size, f"{name} grey": grey.sum() / d.image.size}
            row[f"{name} histogram"] = np.histogram(grey, BINS)[0]
        row["marker distance"] = np.hypot(*np.subtract(*d.tips, dtype=float))
        row["turn in degrees"] = np.degrees(d.turns).mean()
        row["largest turn"] = np.degrees(d.turns).max()
        row["turns over 30"] = (np.degrees(d.turns) > 30).mean()
        row["discarded pairs"], row["distractors"] = d.discarded, d.placed
        rows.append(row)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def report(measured: dict[str, dict[str, np.ndarray]]) -> str:
    """Format a table with a column for each generator."""
    lines = [f"{'':22}" + "".join(f"{who} n={len(m['label'])}".rjust(26) for who, m in measured.items())]
    for name in next(iter(measured.values())):
        if name.endswith("histogram"):
            shares = [100 * m[name].sum(0) / m[name].sum() for m in measured.values()]
            lines += [
                f"{name + ' %':22}{who:>12}" + "".join(f"{v:7.2f}" for v in part)
                for who, part in zip(measured, shares, strict=True)
            ]
        else:
            cells = [
                f"{m[name].mean():.3f} +- {m[name].std(ddof=1) / len(m[name]) ** 0.5:.3f}" for m in measured.values()
            ]
            lines.append(f"{name:22}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def grid(images: np.ndarray, columns: int = 8) -> Image.Image:
    """Arrange images (count, size, size) in a grid, one grey pixel between them."""
    tiles = np.pad(images, ((0, -len(images) % columns), (0, 1), (0, 1)), constant_values=128)
    rows = tiles.reshape(-1, columns, *tiles.shape[1:]).transpose(0, 2, 1, 3)
    return Image.fromarray(rows.reshape(rows.shape[0] * rows.shape[1], -1))


def main(arguments: list[str]) -> None:
    options = DEFAULTS | dict(OmegaConf.from_dotlist(arguments))
    if unknown := set(options) - set(DEFAULTS):
        raise ValueError(f"{', '.join(sorted(unknown))}: choose among {', '.join(f'{key}=' for key in DEFAULTS)}")
    count, reference, out = (options.pop(key) for key in ("count", "reference", "out"))
    trace(**options, count=1)  # compiles
    begin = time.process_time()
    images = trace(**options, count=count)[0]
    print(f"{1e3 * (time.process_time() - begin) / count:.3f} ms per image (n={count}, one core)")
    measured = {"generator": measure(drawings(**options, count=count))}
    if reference:
        from pathfinder_reference import Generator

        slow = Generator(**options)
        begin = time.process_time()
        sample = [slow.draw() for _ in range(reference)]
        print(f"{1e3 * (time.process_time() - begin) / reference:.0f} ms per image of the reference (n={reference})")
        measured["reference"] = measure(sample)
    print(report(measured))
    if out:
        grid(images[:40]).save(out)


if __name__ == "__main__":
    main(sys.argv[1:])
