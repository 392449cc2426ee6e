"""Drawing of Pathfinder's dashed curves: seeds, extensions, targets and distractors (tasks: Linsley et al. 2018).

The mask, shared by all curves of an image, is the occupation of each pixel: uint8, 255 = 1.0, exact since every patch
is an 8-bit image. ``masks`` (2, size + 2 BEYOND, same) holds the mask, and the mask dilated by the margin.
A curve's first paddle, its seed, runs from tail to head. Its pivot is a margin before the tail; its anchor, a margin
beyond the head, is the next paddle's pivot. In a void orientation neither a distractor nor the first target starts
(``paddles.is_void``). ``stream`` (1,) uint64 is an image's random stream.
"""

import math
from typing import NamedTuple

import numpy as np

from lra.compiled import inlined

from ..counter_rng import next_below, next_uniform
from .paddles import BEYOND, SEEDS
from .patches import fits, paste

PADDLE_RETRIALS = 2
FREE = 76  # a pixel is free if ceil(value / 255 - 0.3) = 0
# Tries before the free pixels are listed; listing 32 x 32 pixels costs about as much.
MISSES = 24


class Segment(NamedTuple):
    """The last paddle of a curve; paddle = -1 stands for failure."""

    paddle: int  # number in the table
    y: int  # centre of its patch: the start of a curve's first paddle, the end of any other one
    x: int
    pivot_y: int
    pivot_x: int


FAILED = Segment(-1, 0, 0, 0, 0)


@inlined
def _moved(y, x, by):
    """Move a point by a displacement, rounded up."""
    moved_y = y + by[0]
    moved_x = x + by[1]
    return math.ceil(moved_y), math.ceil(moved_x)


@inlined
def overwrite(target, source):
    """Overwrite the image's pixels of both masks in target by source; pixels beyond its edge are constant."""
    end = source.shape[1] - BEYOND
    for k in range(2):
        for y in range(BEYOND, end):
            target_row = target[k, y, BEYOND:end]
            source_row = source[k, y, BEYOND:end]
            for x in range(len(source_row)):
                target_row[x] = source_row[x]


@inlined
def _is_free(mask, cells, y, x):
    """Whether the mask dilated by the element with these cells (., 2) is free at a pixel.

    As in cv2.dilate, cells beyond the image's edge are ignored, so an element with gaps can straddle the mask's frame.
    A pixel all of whose cells are beyond the edge is not free.
    """
    end = len(mask) - BEYOND
    free = False
    for e in range(len(cells)):
        v = BEYOND + y + cells[e, 0]
        u = BEYOND + x + cells[e, 1]
        if BEYOND <= v < end and BEYOND <= u < end:
            if mask[v, u] > FREE:
                return False
            free = True
    return free


@inlined
def _window(seeds, paddle, frame):
    """Bounds y0, y1, x0, x1 of a rectangle that holds all free pixels if a frame (its width in pixels) is occupied."""
    y_least, y_most, x_least, x_most = seeds.reach[paddle]
    # An element wider than the frame may have cells on both sides of it and none on it: then every pixel is a
    # candidate, and the frame has to be in the mask.
    if frame <= max(y_most - y_least, x_most - x_least):
        return 0, seeds.size, 0, seeds.size
    first_y = frame - y_least
    end_y = seeds.size - frame - y_most
    first_x = frame - x_least
    end_x = seeds.size - frame - x_most
    return first_y, end_y, first_x, end_x


@inlined
def _cells(seeds, paddle):
    """Cells (., 2) of the dilation element of a seed's orientation."""
    first = seeds.element_from[paddle]
    end = seeds.element_from[paddle + 1]
    return seeds.element[first:end]


@inlined
def free_pixels(seeds, mask, paddle, frame):
    """List the pixels (y, x) that are free after dilation with the seed's element, void or not."""
    y0, y1, x0, x1 = _window(seeds, paddle, frame)
    cells = _cells(seeds, paddle)
    return [(y, x) for y in range(y0, y1) for x in range(x0, x1) if _is_free(mask, cells, y, x)]


@inlined
def draw_tail(seeds, mask, paddle, frame, stream):
    """Draw a pixel uniformly from the free ones; (-1, -1) if there is none or the orientation is void."""
    y0, y1, x0, x1 = _window(seeds, paddle, frame)
    if seeds.void[paddle] or y0 >= y1 or x0 >= x1:
        return -1, -1

    # Draw any pixel until one is free: cheap as long as many are.
    cells = _cells(seeds, paddle)
    for _ in range(MISSES):
        y = y0 + next_below(stream, y1 - y0)
        x = x0 + next_below(stream, x1 - x0)
        if _is_free(mask, cells, y, x):
            return y, x

    # Otherwise list the free pixels and draw one of them.
    free = free_pixels(seeds, mask, paddle, frame)
    return free[next_below(stream, len(free))] if free else (-1, -1)


@inlined
def _segment(seeds, paddle, y, x):
    """The first segment of a curve with its tail at (y, x); failure if head or pivot lie outside the image."""
    head = _moved(y, x, seeds.head[paddle])
    pivot = _moved(head[0], head[1], seeds.pivot[paddle])
    for point in (head, pivot):
        if not (0 <= point[0] < seeds.size and 0 <= point[1] < seeds.size):
            return FAILED
    return Segment(paddle, y, x, pivot[0], pivot[1])


@inlined
def _seed(seeds, mask, paddle, frame, stream):
    """The first segment of a curve at any free pixel inside the frame; ``paddle`` is the orientation tried first."""
    for _ in range(PADDLE_RETRIALS + 1):
        y, x = draw_tail(seeds, mask, paddle, frame, stream)
        if y < 0:
            return FAILED
        segment = _segment(seeds, paddle, y, x)
        if segment.paddle >= 0:
            return segment
        paddle = next_below(stream, SEEDS)
    return FAILED


@inlined
def _second_seed(seeds, first_y, first_x, stream):
    """The first segment of the second target, whose tail keeps a fixed distance from the tail of the first target."""
    for _ in range(PADDLE_RETRIALS + 1):
        paddle = next_below(stream, SEEDS)
        phi = next_below(stream, 360)
        y = int(np.rint(first_y + seeds.second[phi, 0]))
        x = int(np.rint(first_x + seeds.second[phi, 1]))
        segment = _segment(seeds, paddle, y, x)
        if segment.paddle >= 0:
            return segment
    return FAILED


@inlined
def _room(paddles, dilated, paddle, c, anchor_y, anchor_x):
    """Free share, in [0, 1], of the dilated mask at the point where the paddle's follower number c ends."""
    k = paddles.follower[paddle, c]
    y = BEYOND + anchor_y + paddles.displacement[k, 0]
    x = BEYOND + anchor_x + paddles.displacement[k, 1]
    return 1 - dilated[y, x] / 255


@inlined
def _extend(paddles, masks, last, stream):
    """Draw the segment after ``last``; on success the patch of ``last`` is written into the mask."""
    paddle = last.paddle
    anchor_y, anchor_x = _moved(last.pivot_y, last.pivot_x, paddles.anchor[paddle])
    dilated = masks[1]

    # Weight of a follower: the weight of its turn, times the free share of the mask where it ends.
    turn_weight = paddles.turn_weight[paddle]
    total = 0.0
    for c in range(len(turn_weight)):
        total += turn_weight[c] * _room(paddles, dilated, paddle, c, anchor_y, anchor_x)
    if total < 1e-4:
        return FAILED

    for _ in range(PADDLE_RETRIALS + 1):
        # Draw a follower by its weight: the first one at which the cumulative sum exceeds the draw.
        goal = next_uniform(stream) * total
        cumulative = 0.0
        c = -1
        while cumulative <= goal:
            c += 1
            cumulative += turn_weight[c] * _room(paddles, dilated, paddle, c, anchor_y, anchor_x)
        k = paddles.follower[paddle, c]
        y = anchor_y + paddles.displacement[k, 0]
        x = anchor_x + paddles.displacement[k, 1]
        if fits(masks[0], paddles.limit, SEEDS + k, y, x):
            _occupy(paddles, masks, last)
            return Segment(SEEDS + k, y, x, anchor_y, anchor_x)
    return FAILED


@inlined
def _occupy(paddles, masks, segment):
    """Write a segment's patch into the mask; the dilation of a maximum is the maximum of the dilations."""
    paste(masks[0], paddles.mask, segment.paddle, segment.y, segment.x)
    paste(masks[1], paddles.dilated, segment.paddle, segment.y, segment.x)


@inlined
def _note(record, segment):
    """Write paddle, y and x of a segment into a record (3,)."""
    record[0] = segment.paddle
    record[1] = segment.y
    record[2] = segment.x


@inlined
def _draw_pair(paddles, seeds, blank, masks, record, paddle, stream):
    """Draw two targets into masks and record; False if either fails. The first begins in orientation ``paddle``."""
    # Seeds of both targets on an empty image, the first one inside a frame as wide as twice their distance.
    first = _seed(seeds, blank[0], paddle, 2 * seeds.distance, stream)
    if first.paddle < 0:
        return False
    second = _second_seed(seeds, first.y, first.x, stream)
    if second.paddle < 0:
        return False

    # Extend both in turn.
    overwrite(masks, blank)
    _note(record[0, 0], first)
    _note(record[0, 1], second)
    for i in range(1, len(record)):
        first = _extend(paddles, masks, first, stream)
        if first.paddle < 0:
            return False
        second = _extend(paddles, masks, second, stream)
        if second.paddle < 0:
            return False
        _note(record[i, 0], first)
        _note(record[i, 1], second)

    # The first target's last paddle is not written into the mask, as in the original.
    _occupy(paddles, masks, second)
    return True


@inlined
def draw_targets(paddles, seeds, blank, masks, record, stream):
    """Draw two targets into masks and record (contour, 2, 3); return the number of failed attempts before."""
    void = seeds.void
    discarded = 0
    while True:
        paddle = next_below(stream, SEEDS)
        # Checked here as well to save the call: at 32 and 64 most orientations are void.
        if not void[paddle] and _draw_pair(paddles, seeds, blank, masks, record, paddle, stream):
            return discarded
        discarded += 1


@inlined
def _is_full(mask):
    """Whether less than 1 percent of the image is free."""
    end = len(mask) - BEYOND
    free = 0
    for y in range(BEYOND, end):
        for value in mask[y, BEYOND:end]:
            free += value <= FREE
        if 100 * free >= (end - BEYOND) ** 2:
            return False
    return True


@inlined
def draw_distractor(paddles, seeds, padding, before, masks, record, stream):
    """Draw a distractor into record (length, 3) and masks, a copy of ``before``; False if it fails, masks undefined."""
    if _is_full(before[0]):
        return False
    # The mask's frame (padding >= 1) is the frame of ones that the original adds here.
    last = _seed(seeds, before[0], next_below(stream, SEEDS), padding, stream)
    if last.paddle < 0:
        return False

    overwrite(masks, before)
    _note(record[0], last)
    for i in range(1, len(record)):
        last = _extend(paddles, masks, last, stream)
        if last.paddle < 0:
            return False
        _note(record[i], last)
    _occupy(paddles, masks, last)
    return True
