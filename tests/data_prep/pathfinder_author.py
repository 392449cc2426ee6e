"""Statistics of images of Pathfinder, as `pathfinder_original.json` has them for images of the original generator."""

from collections.abc import Iterator

import numpy as np

from data_prep.pathfinder.generator import Trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, paddle_table
from data_prep.pathfinder.patches import paint

ROLES = ("target", "distractor", "marker")


def counted(edges: list[float], values: list) -> list[int]:
    """Histogram: the number of values between the edges, below the first and above the last."""
    flat = np.round(np.hstack([np.asarray(value, float) for value in values]), 6)
    return np.histogram(flat, [-np.inf, *edges, np.inf])[0].tolist()


def measure(image, layers, turns, tips, orientations, discarded) -> dict[str, float]:
    """Compute the statistics of an image (size, size).

    Lit pixels are brighter than 63. The grey of a role (target, distractor, marker) is its contribution to the mean
    grey: the sum over the pixels where the role is the brightest, divided by the number of all pixels.

    layers: (3, size, size) targets, distractors and markers before their maximum is taken. turns: angles in [0, pi]
    between consecutive paddles of both targets. tips: the two points with markers. orientations: degrees of the first
    target, the second one and each distractor. discarded: earlier pairs of targets.
    """
    statistics = {"lit pixels": np.count_nonzero(image > 63), "mean grey": image.mean()}
    brightest = np.where(layers.max(0) > 0, layers.argmax(0), -1)
    for role, name in enumerate(ROLES):
        grey = image[brightest == role]
        statistics |= {f"{name} pixels": grey.size, f"{name} grey": grey.sum() / image.size}
    degrees = np.degrees(turns)
    statistics |= {"marker distance": np.hypot(*np.subtract(*tips, dtype=float)), "turn in degrees": degrees.mean()}
    statistics |= {"largest turn": degrees.max(), "turns over 30": (degrees > 30).mean(), "discarded pairs": discarded}
    first, second, *others = orientations
    statistics |= {"orientation of the first target": first, "orientation of the second target": second}
    return statistics | {"orientation of the distractor": others, "distractors": len(others)}


def drawn(images: np.ndarray, labels: np.ndarray, result: Trace) -> Iterator[dict]:
    """Yield the statistics of images of the fast generator, after painting each role again separately."""
    size, length = images.shape[1], result.targets.shape[1] // 3
    layers = np.empty((3, size + 2 * BEYOND, size + 2 * BEYOND), np.uint8)
    for n, targets in enumerate(result.targets):
        table = paddle_table(size, int(result.margin[n]))
        start = int(result.start[n])
        end = start if labels[n] else 1 - start
        distractors = result.distractors[n, : result.placed[n] * length]
        paint(table, targets, distractors, start, end, layers)
        roles = layers[:, BEYOND:-BEYOND, BEYOND:-BEYOND] * table.contrast[:, None, None]
        turns = abs(np.diff(table.theta[targets[:, :, 0]], axis=0)).ravel()
        turns = np.minimum(turns, 2 * np.pi - turns)
        tips = targets[0, start, 1:], targets[-1, end, 1:]
        orientations = np.concatenate([targets[0, :, 0], distractors[::length, 0]]) - SEEDS // 2
        yield measure(images[n], roles, turns, tips, orientations, int(result.discarded[n]))
