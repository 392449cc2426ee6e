"""Statistics of Pathfinder images, of the fast generator and of the authors' code alike."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.pathfinder.generator import Trace
from data_prep.pathfinder.paddles import BEYOND, paddle_table
from data_prep.pathfinder.patches import paint

ROLES = ("target", "distractor", "marker")


class Drawing(NamedTuple):
    """One image with what it is made of."""

    image: np.ndarray  # (size, size) uint8
    layers: np.ndarray  # (3, size, size) targets, distractors, markers before their maximum is taken
    turns: Sequence[float]  # radians in [0, pi], between consecutive paddles of both targets
    tips: Sequence  # the two marked points
    discarded: int  # pairs of targets thrown away
    placed: int  # distractors


def drawings(images: np.ndarray, labels: np.ndarray, made: Trace) -> Iterator[Drawing]:
    """Paint the fast generator's images again role by role."""
    size, length = images.shape[1], made.targets.shape[1] // 3
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
        yield Drawing(images[n], roles, turns, tips, int(made.discarded[n]), int(made.placed[n]))


def measure(sample: Iterable[Drawing]) -> dict[str, np.ndarray]:
    """Measure one number for each image under each name.

    Lit pixels are those above 63; a role's grey is its part of the mean grey, over the pixels in which it is brightest.
    """
    rows = []
    for d in sample:
        row = {"lit pixels": np.count_nonzero(d.image > 63), "mean grey": d.image.mean()}
        brightest = np.where(d.layers.max(0) > 0, d.layers.argmax(0), -1)
        for role, name in enumerate(ROLES):
            grey = d.image[brightest == role]
            row |= {f"{name} pixels": grey.size, f"{name} grey": grey.sum() / d.image.size}
        row["marker distance"] = np.hypot(*np.subtract(*d.tips, dtype=float))
        row["turn in degrees"] = np.degrees(d.turns).mean()
        row["largest turn"] = np.degrees(d.turns).max()
        row["turns over 30"] = (np.degrees(d.turns) > 30).mean()
        row["discarded pairs"], row["distractors"] = d.discarded, d.placed
        rows.append(row)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
