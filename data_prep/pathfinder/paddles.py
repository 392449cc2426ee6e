"""Pathfinder's parameters, and tables of the finitely many shapes in its images.

A dash ("paddle") is drawn ``SCALE`` times finer than the image, shrunk by Lanczos resampling and pasted at an integer
pixel, so its pixels depend only on its direction. Directions are from a finite set: the first paddle of a curve points
in one of 360 integer degrees, every further one along one of a few dozen integer displacements (end minus anchor).
``paddle_table`` renders each of them once, with everything else that depends only on the direction.

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

from .geometry import dilate, disk, fill_rows, opposite, polar, radians, shrink

SCALE = 2
# Orientations of a curve's first paddle, its seed; in the tables they come before all other paddles.
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
    distractor_paddles: int  # maximum number in all distractors together
    snake_contrast: float  # contrast of distractors; targets have snake_contrast * paddle_contrast
    paddle_contrast: float = 1.0
    length: int = 5  # length of a paddle
    padding: int = 1  # width of the occupied frame along the image's edge


SETTINGS = {
    32: Setting((1,), 0.5, 1.5, 7, 1.0, 20, 2.0, paddle_contrast=0.75, length=2),
    64: Setting((1,), 1.0, 2.5, 12, 1.8, 22, 0.8),
    128: Setting((2, 3), 1.5, 3.0, 20, 1.8, 35, 0.9),
    256: Setting((3,), 2.0, 5.0, 27, 1.8, 30, 1.0, padding=22),
}


class Paddles(NamedTuple):
    """Tables for extending a curve.

    A paddle's pivot is a margin before its start; its anchor, a margin beyond its end, is the pivot of the next paddle.
    P = 360 + K paddles: 0..359 are drawn from the curve's start at -180..179 degrees; 360 + k is drawn backwards from
    its end, the point at displacement k from its pivot. A patch's centre, row and column side // 2, is the point that
    it is drawn from. Its rows are filled up to a multiple of 8 for vector instructions, with values that have no
    effect. In patches 255 = 1.0.
    """

    mask: np.ndarray  # (P, side, 8 n) uint8, the line widened by the margin
    dilated: np.ndarray  # (P, side + 2 margin, 8 n) uint8, the mask patch dilated by the margin
    limit: np.ndarray  # (P, side, 8 n) uint8, the greatest mask on which the paddle may be placed
    anchor: np.ndarray  # (P, 2) from a paddle's pivot to its anchor
    displacement: np.ndarray  # (K, 2) int64 from a paddle's pivot to its end
    follower: np.ndarray  # (P, C) int64 displacements that may follow a paddle, then zeros
    turn_weight: np.ndarray  # (P, C) the weights of their turns, then zeros


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
    void: np.ndarray  # (360,) bool, no seed is accepted in this orientation (see ``is_void``)


class PaddleTable(NamedTuple):
    """The tables of an image's size and margin."""

    padding: int  # width of the occupied frame along the image's edge
    contrast: np.ndarray  # (3,) float64: targets, distractors, markers
    paddles: Paddles
    seeds: Seeds
    theta: np.ndarray  # (P,) orientation, also of the 360 + k paddles, which are drawn from their end backwards
    line: np.ndarray  # (P, side, 8 n) uint8
    marker: np.ndarray  # (M, M, M, M) uint8: [i, j] holds a marker at (i, j) of an M x M image
    blank: np.ndarray  # (2, size + 2 BEYOND, same) uint8: mask without curves, 255 outside the image; the same dilated


def framed(size: int, frame: int) -> np.ndarray:
    """uint8 (size + 2 BEYOND,) * 2: 0 within the image's frame, 255 on it and beyond."""
    side = size - 2 * frame
    inside = np.zeros((side, side), np.uint8)
    return np.pad(inside, BEYOND + frame, constant_values=255)


def render(theta: float, setting: Setting, margin: int) -> tuple[np.ndarray, np.ndarray]:
    """Render the line and mask patch, uint8 (side, side), of a paddle from the patch's centre in direction theta."""
    half = setting.length + math.ceil(setting.thickness) + margin
    side = 2 * half + 1

    # The line, SCALE times finer than the image.
    centre = half * SCALE
    fine_side = 2 * centre + 1
    fine = Image.new("L", (fine_side, fine_side))
    dy, dx = polar(setting.length * SCALE, theta)
    start = (centre, centre)
    end = (math.ceil(centre + dx), math.ceil(centre + dy))
    width = int(setting.thickness * SCALE)
    ImageDraw.Draw(fine).line([start, end], fill=255, width=width)
    canvas = np.asarray(fine)

    # The mask is the line widened by the margin.
    wide = dilate(canvas, disk(margin * SCALE))
    return shrink(canvas, side), shrink(wide, side)


def render_markers(radius: float) -> np.ndarray:
    """Render a filled disk around every pixel of an M x M image: uint8 (M, M, M, M).

    After shrinking by exactly SCALE all markers are equal whose distance from the image's edge exceeds the radius plus
    twice the resampling kernel's 3 pixels, so M - 1 = twice that distance covers images of any larger size.
    """
    reach = math.ceil(radius) + 6
    side = 2 * reach + 1
    fine = slice(side * SCALE)
    y, x = np.mgrid[fine, fine]
    squared_radius = (radius * SCALE) ** 2
    markers = np.empty((side, side, side, side), np.uint8)
    for i in range(side):
        for j in range(side):
            dy = y - i * SCALE
            dx = x - j * SCALE
            is_inside = dy**2 + dx**2 <= squared_radius
            disk_image = is_inside.astype(np.uint8) * 255
            markers[i, j] = shrink(disk_image, side)
    return markers


def elements(masks: np.ndarray, half: int) -> list[np.ndarray]:
    """List the dilation elements of seeds, int64 (., 2) cells relative to the centre of a square of side 2 half + 1.

    The paddle starts at index half + 1 of that square, one past its centre. Cells that are not fully 1 (255) and cells
    outside the square are dropped.
    """
    cells_of_masks = []
    for mask in masks:
        centre = mask.shape[0] // 2
        cells = np.argwhere(mask == 255) - centre + 1
        is_within = (abs(cells) <= half).all(1)
        cells_of_masks.append(cells[is_within])
    return cells_of_masks


def is_void(cells: np.ndarray) -> bool:
    """Whether all cells (., 2) of a dilation element lie outside the image at one of its corners.

    cv2.dilate returns the least float there, having no pixel for the maximum, and the original's
    find_available_coordinates returns no coordinates for a mask with a negative minimum.
    """
    # For each corner: the signs of y and x that point into the image.
    corners = ((1, 1), (1, -1), (-1, 1), (-1, -1))
    for inward in corners:
        is_outside = (cells * inward < 0).any(1)
        if is_outside.all():
            return True
    return False


def displacements(radius: int) -> np.ndarray:
    """List the integer points around an anchor, one sample for each pixel of circumference, floored: int64 (K, 2)."""
    points = []
    circumference = 2 * math.pi * radius
    for k in range(math.ceil(circumference)):
        dy, dx = polar(radius, k / radius)
        point = [math.floor(dy), math.floor(dx)]
        points.append(point)
    return np.unique(points, axis=0)


def followers(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compress weights (P, K) to the columns int64 (P, C) of those above 0, ascending, and their weights, 0 beyond."""
    count = np.count_nonzero(weights, axis=1)  # (P,)
    width = count.max()
    # A stable sort moves the columns with a weight to the front and leaves their order.
    order = np.argsort(weights == 0, axis=1, kind="stable")  # (P, K)
    column = order[:, :width]  # (P, C)
    weight = np.take_along_axis(weights, column, axis=1)
    is_used = np.arange(width) < count[:, None]
    used_column = np.where(is_used, column, 0)
    used_weight = np.where(is_used, weight, 0.0)
    return used_column, used_weight


def turn_weights(theta: np.ndarray, continuity: float) -> np.ndarray:
    """Weight every displacement as the next one after a paddle, by cos² of ``continuity`` times the turn: (P, K)."""
    angle = abs(theta[SEEDS:] - theta[:, None])
    angle = np.minimum(angle, 2 * np.pi - angle)
    angle = np.minimum(continuity * angle, np.pi / 2)
    # cos(pi / 2) is 6e-17 in floating point, which must not count as a candidate.
    is_candidate = angle < np.pi / 2
    weight = np.cos(angle) ** 2
    return np.where(is_candidate, weight, 0.0)


def offsets(distance: float, angles: list[float] | np.ndarray) -> np.ndarray:
    """Displacements (., 2) by one distance along several angles."""
    return np.array([polar(distance, angle) for angle in angles])


def extents(cells: np.ndarray) -> list[int]:
    """Least and greatest y, least and greatest x of cells (., 2)."""
    least_y, least_x = cells.min(0)
    greatest_y, greatest_x = cells.max(0)
    return [least_y, greatest_y, least_x, greatest_x]


@functools.cache
def paddle_table(size: int, margin: int, void: bool = True) -> PaddleTable:
    """Make the table of an image's size and margin; with void=False no orientation is void (see ``is_void``)."""
    setting = SETTINGS[size]
    length = setting.length

    # Directions: 360 degrees for the first paddle of a curve, then the directions of the displacements.
    moves = displacements(length + margin)
    orientations = [radians(degree) for degree in range(-180, 180)]
    further = [math.atan2(dy, dx) for dy, dx in moves]
    theta = np.array(orientations + further)  # (P,)

    # Line and mask of every paddle; further paddles are drawn from their end backwards.
    drawn_from = orientations + [opposite(angle) for angle in further]
    patches = [render(angle, setting, margin) for angle in drawn_from]
    line = np.stack([line_patch for line_patch, _ in patches])
    mask = np.stack([mask_patch for _, mask_patch in patches])

    # The mask widened by the margin once more, and the greatest mask on which a paddle may be placed.
    within = disk(margin)
    padded = [np.pad(patch, margin) for patch in mask]
    dilated = np.stack([dilate(patch, within) for patch in padded])
    highest = OVERLAP - 1 - mask.astype(int)
    limit = np.minimum(highest, 255).astype(np.uint8)

    # Seeds: where the first paddle of a curve may be, and the dilation elements of its mask.
    cells = elements(mask[:SEEDS], length + margin)
    starts = np.cumsum([0] + [len(c) for c in cells])
    voids = [void and is_void(c) for c in cells]
    degrees = [radians(degree) for degree in range(360)]
    backwards = [opposite(angle) for angle in orientations]
    follower, turn_weight = followers(turn_weights(theta, setting.continuity))
    paddles = Paddles(
        mask=fill_rows(mask, 0),
        dilated=fill_rows(dilated, 0),
        limit=fill_rows(limit, 255),
        anchor=offsets(length + 2 * margin, theta),
        displacement=moves,
        follower=follower,
        turn_weight=turn_weight,
    )
    seeds = Seeds(
        size=size,
        distance=setting.seed_distance,
        head=offsets(length, orientations),
        pivot=offsets(length + margin, backwards),
        second=offsets(setting.seed_distance, degrees),
        element=np.concatenate(cells),
        element_from=starts,
        reach=np.array([extents(c) for c in cells]),
        void=np.array(voids),
    )
    # The dilation of a frame by a disk is the frame widened by the disk's radius.
    frame = framed(size, setting.padding)
    wide_frame = framed(size, setting.padding + margin)
    target_contrast = setting.paddle_contrast * setting.snake_contrast
    return PaddleTable(
        padding=setting.padding,
        contrast=np.array([target_contrast, setting.snake_contrast, 1.0]),
        paddles=paddles,
        seeds=seeds,
        theta=theta,
        line=fill_rows(line, 0),
        marker=render_markers(setting.marker_radius),
        blank=np.stack([frame, wide_frame]),
    )
