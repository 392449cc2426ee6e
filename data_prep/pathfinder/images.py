"""Pathfinder images with two round markers, labelled by whether both are on the same dashed curve.

An image holds two long curves ("targets", ``contour`` paddles each), shorter distractors of contour // 3 paddles, and
two markers, one at the start of a target and one at the end of the same (label 1) or of the other target (label 0):

    >>> images, labels = generate(size=32, count=2, seed=0)     # (2, 32, 32) uint8, (2,) uint8

The distribution is the original generator's (see ``paddles`` and ``curves``), with the contrast stretch of scipy 1.2.
Most orientations are void at sizes 32 and 64 (see ``paddles.is_void``): neither a distractor nor the first target
starts in them, so an image of 32 x 32 and contour 14 holds 1.1 of 5 distractors on average. With void=False curves
start in every orientation, and it holds 4.6.

Image i depends only on (seed, size, contour, void, i): it has its own random stream, so any partition over workers
gives the same bytes.
"""

from typing import NamedTuple

import numpy as np

from lra.compiled import compiled

from ..counter_rng import mix, next_below
from .curves import draw_distractor, draw_targets
from .paddles import SETTINGS, paddle_table
from .patches import paint, stretch

CONTOURS = (6, 9, 14)
DISTRACTOR_RETRIALS = 4


class Trace(NamedTuple):
    """Parts of images; a paddle is (number in the table, y, x) as pasted."""

    targets: np.ndarray  # (count, contour, 2, 3) int16 paddles
    distractors: np.ndarray  # (count, most, 3) int16 paddles, one distractor after the other
    margin: np.ndarray  # (count,)
    start: np.ndarray  # (count,) the target, 0 or 1, that has the marker at its start
    discarded: np.ndarray  # (count,) failed attempts at the targets
    placed: np.ndarray  # (count,) number of distractors


def check(size: int, contour: int) -> None:
    """Raise ValueError for a size or contour that the benchmark does not have."""
    if size not in SETTINGS:
        sizes = ", ".join(map(str, SETTINGS))
        raise ValueError(f"size={size!r}: choose one of {sizes}")
    if contour not in CONTOURS:
        contours = ", ".join(map(str, CONTOURS))
        raise ValueError(f"contour={contour!r}: choose one of {contours}")


def generate(
    *, size: int, count: int, seed: int, contour: int = 14, first: int = 0, void: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Draw images of a seed.

    The interpreter lock is released while images are drawn, so threads are as fast as processes.

    Args:
        size: 32, 64, 128 or 256.
        count: images.
        seed: seed of all images.
        contour: 6, 9 or 14 paddles of a target.
        first: number of the first image.
        void: False if curves may start in every orientation, see the module.

    Returns:
        Images uint8 (count, size, size) and labels uint8 (count,).

    Raises:
        ValueError: size or contour is another one.
    """
    images, labels, _ = trace(size=size, count=count, seed=seed, contour=contour, first=first, void=void)
    return images, labels


def trace(
    *, size: int, count: int, seed: int, contour: int = 14, first: int = 0, void: bool = True
) -> tuple[np.ndarray, np.ndarray, Trace]:
    """Draw images as ``generate`` does, with the record of their parts."""
    check(size, contour)
    # Distractors are a third as long as targets; the setting's number of paddles bounds their number.
    length = contour // 3
    num_paddles = SETTINGS[size].distractor_paddles // length * length
    images = np.empty((count, size, size), np.uint8)
    labels = np.empty(count, np.uint8)
    targets = np.zeros((count, contour, 2, 3), np.int16)
    distractors = np.zeros((count, num_paddles, 3), np.int16)
    counts = np.zeros((4, count), np.int32)
    parts = Trace(targets, distractors, *counts)

    # Each image draws its margin. The tables depend on it, so all images of one margin are drawn before the next.
    margins = SETTINGS[size].margins
    key = np.uint64(seed % 2**64)
    for choice, margin in enumerate(margins):
        table = paddle_table(size, margin, void)
        _draw_images(table, margin, choice, len(margins), key, contour, first, images, labels, parts)
    return images, labels, parts


@compiled
def _draw_images(table, margin, choice, choices, key, contour, first, images, labels, parts):
    """Draw the images with margin number ``choice`` of ``choices``; ``key`` is the random seed, uint64."""
    size = images.shape[1]
    length = contour // 3
    stream = np.zeros(1, np.uint64)
    masks = table.blank.copy()
    attempt = table.blank.copy()
    layers = np.empty((3, *masks.shape[1:]), np.uint8)
    canvas = np.empty((size, size))
    for n in range(len(images)):
        # The random stream of image first + n.
        stream[0] = key
        for part in (size, contour, first + n):
            stream[0] = mix(stream[0]) ^ np.uint64(part)
        stream[0] = mix(stream[0])
        label = next_below(stream, 2)
        if next_below(stream, choices) != choice:
            continue
        # Two targets, then distractors; one that fails is tried again up to four times.
        discarded = draw_targets(table.paddles, table.seeds, table.blank, masks, parts.targets[n], stream)
        placed = 0
        for _ in range(parts.distractors.shape[1] // length):
            first_paddle = placed * length
            record = parts.distractors[n, first_paddle : first_paddle + length]
            for _ in range(DISTRACTOR_RETRIALS + 1):
                if draw_distractor(table.paddles, table.seeds, table.padding, masks, attempt, record, stream):
                    masks, attempt = attempt, masks
                    placed += 1
                    break
        # The markers: at the start of one target, and at the end of the same (label 1) or of the other target.
        start = next_below(stream, 2)
        end = start if label else 1 - start
        distractors = parts.distractors[n, : placed * length]
        paint(table, parts.targets[n], distractors, start, end, layers)
        stretch(layers, table.contrast, canvas, images[n])
        # The record of the image's parts.
        labels[n] = label
        parts.margin[n] = margin
        parts.start[n] = start
        parts.discarded[n] = discarded
        parts.placed[n] = placed
