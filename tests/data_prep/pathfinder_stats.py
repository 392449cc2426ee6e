"""Statistics of Pathfinder images, of the fast generator and of the authors' code alike."""

from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.pathfinder.generator import Trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, paddle_table
from data_prep.pathfinder.patches import paint

ROLES = ("target", "distractor", "marker")


def measure(
    image: np.ndarray, layers: np.ndarray, turns: Sequence[float], tips: Sequence, discarded: int, placed: int
) -> dict[str, float]:
    """Measure one number of an image (size, size) under each name.

    Layers (3, size, size) are targets, distractors and markers before their maximum is taken, turns radians in [0, pi]
    between consecutive paddles of both targets, tips the two marked points. Lit pixels are those above 63; a role's
    grey is its part of the mean grey, over the pixels in which it is brightest.
    """
    row = {"lit pixels": np.count_nonzero(image > 63), "mean grey": image.mean()}
    brightest = np.where(layers.max(0) > 0, layers.argmax(0), -1)
    for role, name in enumerate(ROLES):
        grey = image[brightest == role]
        row |= {f"{name} pixels": grey.size, f"{name} grey": grey.sum() / image.size}
    degrees = np.degrees(turns)
    row |= {"marker distance": np.hypot(*np.subtract(*tips, dtype=float)), "turn in degrees": degrees.mean()}
    row |= {"largest turn": degrees.max(), "turns over 30": (degrees > 30).mean()}
    return row | {"discarded pairs": discarded, "distractors": placed}


def drawn(images: np.ndarray, labels: np.ndarray, made: Trace) -> Iterator[dict]:
    """Yield the statistics of the fast generator's images, which are painted again role by role."""
    size, length = images.shape[1], made.targets.shape[1] // 3
    layers = np.empty((3, size + 2 * BEYOND, size + 2 * BEYOND), np.uint8)
    for n, targets in enumerate(made.targets):
        table = paddle_table(size, int(made.margin[n]))
        start = int(made.start[n])
        end = start if labels[n] else 1 - start
        distractors = made.distractors[n, : made.placed[n] * length]
        paint(table, targets, distractors, start, end, layers)
        roles = layers[:, BEYOND:-BEYOND, BEYOND:-BEYOND] * table.contrast[:, None, None]
        turns = abs(np.diff(table.theta[targets[:, :, 0]], axis=0)).ravel()
        turns = np.minimum(turns, 2 * np.pi - turns)
        tips = targets[0, start, 1:], targets[-1, end, 1:]
        yield measure(images[n], roles, turns, tips, int(made.discarded[n]), int(made.placed[n])) | {
            "orientation of the first target": targets[0, 0, 0] - SEEDS // 2,
            "orientation of the second target": targets[0, 1, 0] - SEEDS // 2,
            "orientation of the distractor": distractors[::length, 0] - SEEDS // 2,
        }
