"""Pathfinder's parameters, and tables of the finitely many shapes in its images.

A dash ("paddle") is drawn `SCALE` times finer than the image, shrunk by Lanczos resampling and pasted at an integer
pixel, so its pixels depend only on its direction. Directions are from a finite set: the first paddle of a curve points
in one of 360 integer degrees, every further one along one of a few dozen integer displacements (end minus anchor).
`paddle_table` renders each of them once, with everything else that depends only on the direction.

Coordinates are (y, x) in pixels, angles radians with theta = atan2(dy, dx). A point moved by distance d along theta
is rounded up, (ceil(y + d sin theta), ceil(x + d cos theta)). The sum is rounded, so tables hold d sin theta and
d cos theta, and the ceiling is computed once y and x are known.

Source: Linsley et al. 2018 (github.com/drewlinsley/pathfinder) with the settings of google-research/long-range-arena.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SCALE = 2
SEEDS = 360
OVERLAP = 459  # a paddle is rejected if mask + patch reaches 1.8
BEYOND = 32  # pixels by which masks and layers exceed the image on every side, so that no patch is clipped


class Setting(NamedTuple):
    """The parameters of a size: lengths in pixels; contrast 1 is a marker's brightness before stretching to 0..255."""

    margins: tuple[int, ...]
    thickness: float
    marker_radius: float
    seed_distance: int
    continuity: float
    distractor_paddles: int
    snake_contrast: float
    paddle_contrast: float = 1.0
    length: int = 5
    padding: int = 1


SETTINGS = {
    32: Setting((1,), 0.5, 1.5, 7, 1.0, 20, 2.0, paddle_contrast=0.75, length=2),
    64: Setting((1,), 1.0, 2.5, 12, 1.8, 22, 0.8),
    128: Setting((2, 3), 1.5, 3.0, 20, 1.8, 35, 0.9),
    256: Setting((3,), 2.0, 5.0, 27, 1.8, 30, 1.0, padding=22),
}


class Paddles(NamedTuple):
    """Tables for extending a curve.

    P = 360 + K paddles: 0..359 leave their start at -180..179 degrees; 360 + k ends at its start, after displacement k.
    A patch's centre, row and column side // 2, is the paddle's start. Its rows are filled up to a multiple of 8 for
    vector instructions, with values that have no effect. In patches 255 = 1.0.
    """

    mask: np.ndarray  # (P, side, 8 n) uint8, the line widened by the margin
    dilated: np.ndarray  # (P, side + 2 margin, 8 n) uint8, the mask patch dilated by the margin
    limit: np.ndarray  # (P, side, 8 n) uint8, the greatest mask on which the paddle may be placed
    anchor: np.ndarray  # (P, 2) from a paddle's pivot to the anchor of the next
    displacement: np.ndarray  # (K, 2) int64
    follower: np.ndarray  # (P, C) int64 displacements that may follow a paddle, then zeros
    turn: np.ndarray  # (P, C) their weights, then zeros


class Seeds(NamedTuple):
    """Tables for starting a curve, by the seed's orientation (-180..179 degrees) unless another is named."""

    size: int
    distance: int  # between the two targets' tails
    head: np.ndarray  # (360, 2) from tail to head
    pivot: np.ndarray  # (360, 2) from head to pivot
    second: np.ndarray  # (360, 2) from the first target's tail to the second's at 0..359 degrees, not rounded
    element: np.ndarray  # (E, 2) int64 cells of all dilation elements, relative to the pixel that is dilated
    element_from: np.ndarray  # (361,) int64, element i is element[element_from[i] : element_from[i + 1]]
    reach: np.ndarray  # (360, 4) int64 least and greatest y, least and greatest x of an element
    void: np.ndarray  # (360,) bool, no seed is accepted in this orientation (see `is_void`)


class PaddleTable(NamedTuple):
    """The tables of an image's size and margin."""

    padding: int
    contrast: np.ndarray  # (3,) float64: targets, distractors, markers
    paddles: Paddles
    seeds: Seeds
    theta: np.ndarray  # (P,) orientation, also of the 360 + k paddles, which are drawn from their end backwards
    line: np.ndarray  # (P, side, 8 n) uint8
    marker: np.ndarray  # (M, M, M, M) uint8: [i, j] holds a marker at (i, j) of an M x M image
    blank: np.ndarray  # (2, size + 2 BEYOND, same) uint8: the mask without curves, 255 outside the image; it dilated


def shrink(canvas: np.ndarray, side: int) -> np.ndarray:
    """Shrink uint8 (n, n) to (side, side) by Lanczos resampling, with overshoot clipped to 0..255."""
    return np.asarray(Image.fromarray(canvas).resize((side, side), Image.Resampling.LANCZOS))


def disk(radius: int) -> np.ndarray:
    """int64 (., 2) cells with y^2 + x^2 <= radius^2."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(y**2 + x**2 <= radius**2) - radius


def dilate(patch: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Grey dilation (n, n) -> (n, n) by a flat element, cells (., 2) relative to its centre; outside is 0."""
    reach = abs(cells).max()
    padded = np.pad(patch, reach)
    n = len(patch)
    return np.max([padded[reach - y : reach - y + n, reach - x : reach - x + n] for y, x in cells], axis=0)


def fill_rows(patches: np.ndarray, value: int) -> np.ndarray:
    """Fill rows with a value up to a multiple of 8: (P, side, side) -> (P, side, 8 n)."""
    side = patches.shape[-1]
    return np.pad(patches, ((0, 0), (0, 0), (0, -side % 8)), constant_values=value)


def framed(size: int, frame: int) -> np.ndarray:
    """uint8 (size + 2 BEYOND,) * 2: 0 within the image's frame, 255 on it and beyond."""
    return np.pad(np.zeros((size - 2 * frame,) * 2, np.uint8), BEYOND + frame, constant_values=255)


def polar(distance: float, theta: float) -> tuple[float, float]:
    return distance * math.sin(theta), distance * math.cos(theta)


def radians(degree: int) -> float:
    return degree * math.pi / 180


def opposite(theta: float) -> float:
    """theta +- pi within [-pi, pi] as in the original, since ceil(sin(pi)) and ceil(sin(-pi)) differ."""
    return theta + math.pi if theta < 0 else theta - math.pi


def render(theta: float, setting: Setting, margin: int) -> tuple[np.ndarray, np.ndarray]:
    """Render the line and mask patch, uint8 (side, side), of a paddle from the patch's centre in direction theta."""
    half = setting.length + math.ceil(setting.thickness) + margin
    centre, fine_side = half * SCALE, 2 * half * SCALE + 1
    dy, dx = polar(setting.length * SCALE, theta)
    fine = Image.new("L", (fine_side, fine_side))
    end = (math.ceil(centre + dx), math.ceil(centre + dy))
    ImageDraw.Draw(fine).line([(centre, centre), end], fill=255, width=int(setting.thickness * SCALE))
    canvas = np.asarray(fine)
    wide = dilate(canvas, disk(margin * SCALE))
    return shrink(canvas, 2 * half + 1), shrink(wide, 2 * half + 1)


def render_markers(radius: float) -> np.ndarray:
    """Render a filled disk around every pixel of an M x M image: uint8 (M, M, M, M).

    After shrinking by exactly SCALE all markers are equal whose distance from the image's edge exceeds the radius plus
    twice the resampling kernel's 3 pixels, so M - 1 = twice that distance covers images of any larger size.
    """
    side = 2 * (math.ceil(radius) + 6) + 1
    y, x = np.mgrid[: side * SCALE, : side * SCALE]
    markers = np.empty((side,) * 4, np.uint8)
    for i in range(side):
        for j in range(side):
            inside = (y - i * SCALE) ** 2 + (x - j * SCALE) ** 2 <= (radius * SCALE) ** 2
            markers[i, j] = shrink(inside.astype(np.uint8) * 255, side)
    return markers


def elements(masks: np.ndarray, half: int) -> list[np.ndarray]:
    """List the dilation elements of seeds, int64 (., 2) cells relative to the centre of a square of side 2 half + 1.

    The paddle starts at index half + 1 of that square, one past its centre; cells below 1 are dropped.
    """
    cells = [np.argwhere(mask == 255) - mask.shape[0] // 2 + 1 for mask in masks]
    return [c[(abs(c) <= half).all(1)] for c in cells]


def is_void(cells: np.ndarray) -> bool:
    """Whether all cells (., 2) of a dilation element lie outside the image at one of its corners.

    cv2.dilate returns the least float there, having no pixel for the maximum, and the original's
    find_available_coordinates returns no coordinates for a mask with a negative minimum.
    """
    corners = ((1, 1), (1, -1), (-1, 1), (-1, -1))
    return any((cells * inward < 0).any(1).all() for inward in corners)


def displacements(radius: int) -> np.ndarray:
    """List the integer points around an anchor, one sample for each pixel of circumference, floored: int64 (K, 2)."""
    angles = (k / radius for k in range(math.ceil(2 * math.pi * radius)))
    return np.unique([[math.floor(d) for d in polar(radius, angle)] for angle in angles], axis=0)


def followers(turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compress weights (P, K) to the columns int64 (P, C) of those above 0, ascending, and their weights, 0 beyond."""
    count = np.count_nonzero(turn, axis=1)
    column = np.argsort(turn == 0, axis=1, kind="stable")[:, : count.max()]
    used = np.arange(count.max()) < count[:, None]
    return np.where(used, column, 0), np.where(used, np.take_along_axis(turn, column, axis=1), 0.0)


@functools.cache
def paddle_table(size: int, margin: int, void: bool = True) -> PaddleTable:
    """Make the table of an image's size and margin; without `void` seeds are accepted in every orientation."""
    setting = SETTINGS[size]
    length = setting.length
    moves = displacements(length + margin)
    orientations = [radians(degree) for degree in range(-180, 180)]
    further = [math.atan2(dy, dx) for dy, dx in moves]
    theta = np.array(orientations + further)
    patches = [render(t, setting, margin) for t in orientations + [opposite(t) for t in further]]
    line, mask = (np.stack(p) for p in zip(*patches, strict=True))
    within = disk(margin)
    dilated = np.stack([dilate(np.pad(patch, margin), within) for patch in mask])
    limit = np.where(mask > OVERLAP - 1 - 255, OVERLAP - 1 - mask.astype(int), 255).astype(np.uint8)
    cells = elements(mask[:SEEDS], length + margin)
    delta = abs(theta[SEEDS:] - theta[:, None])
    delta = np.minimum(setting.continuity * np.minimum(delta, 2 * np.pi - delta), np.pi / 2)
    # cos(pi / 2) is 6e-17 in floating point, which must not count as a candidate
    follower, turn = followers(np.where(delta < np.pi / 2, np.cos(delta) ** 2, 0.0))
    paddles = Paddles(
        mask=fill_rows(mask, 0),
        dilated=fill_rows(dilated, 0),
        limit=fill_rows(limit, 255),
        anchor=np.array([polar(length + 2 * margin, t) for t in theta]),
        displacement=moves,
        follower=follower,
        turn=turn,
    )
    seeds = Seeds(
        size=size,
        distance=setting.seed_distance,
        head=np.array([polar(length, t) for t in orientations]),
        pivot=np.array([polar(length + margin, opposite(t)) for t in orientations]),
        second=np.array([polar(setting.seed_distance, radians(degree)) for degree in range(360)]),
        element=np.concatenate(cells),
        element_from=np.cumsum([0] + [len(c) for c in cells]),
        reach=np.array([[*np.ravel((c.min(0), c.max(0)), order="F")] for c in cells]),
        void=np.array([void and is_void(c) for c in cells]),
    )
    return PaddleTable(
        padding=setting.padding,
        contrast=np.array([setting.paddle_contrast * setting.snake_contrast, setting.snake_contrast, 1.0]),
        paddles=paddles,
        seeds=seeds,
        theta=theta,
        line=fill_rows(line, 0),
        marker=render_markers(setting.marker_radius),
        # a frame's dilation by a disk is the frame widened by the disk's radius
        blank=np.stack([framed(size, setting.padding), framed(size, setting.padding + margin)]),
    )
