"""Statistics of Pathfinder images, of the fast generator and of the slow transcription alike."""

from collections.abc import Iterable, Iterator

import numpy as np
from pathfinder_reference import Drawing

from data_prep.pathfinder.generator import trace
from data_prep.pathfinder.paddles import BEYOND, paddle_table
from data_prep.pathfinder.patches import paint

ROLES = ("target", "distractor", "marker")
BINS = np.linspace(0, 256, 9)


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
