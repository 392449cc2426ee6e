"""How Pathfinder's dashed curves are drawn: seeds, extensions, targets and distractors (tasks: Linsley et al. 2018).

The mask, shared by all curves of an image, says how occupied a pixel is; uint8 stands for value / 255 throughout,
exactly, since every patch is an 8-bit image. `masks` (2, size + 2 BEYOND, same) holds it, and it dilated by the margin.
A segment is a curve's last paddle as a tuple (paddle, y, x, pivot_y, pivot_x): its number in the table, the start its
patch is centred on, and its pivot; paddle = -1 stands for failure. `stream` (1,) uint64 is an image's random stream.
"""

import math

import numpy as np
from numba import njit

from data_prep.counter import STEP, mix
from data_prep.paddles import BEYOND, SEEDS, fits, paste

PADDLE_RETRIALS = 2
FREE = 76  # a pixel is free if ceil(value / 255 - 0.3) = 0
FAILED = (-1, 0, 0, 0, 0)
MISSES = 24  # tries before the free pixels are listed: about where listing 32 x 32 pixels costs as much as trying on


@njit(nogil=True, cache=True)
def _uniform(stream):
    """A number in [0, 1); stream (1,) uint64 moves on."""
    stream[0] += STEP
    return (mix(stream[0]) >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True)
def below(stream, n):
    """An integer in 0 .. n - 1."""
    return int(_uniform(stream) * n)


@njit(nogil=True, cache=True)
def _moved(y, x, by):
    return math.ceil(y + by[0]), math.ceil(x + by[1])


@njit(nogil=True, cache=True)
def copy(target, source):
    """Copy the image's pixels of both masks; those beyond its edge never change."""
    end = source.shape[1] - BEYOND
    for k in range(2):
        for y in range(BEYOND, end):
            to, row = target[k, y, BEYOND:end], source[k, y, BEYOND:end]
            for x in range(len(row)):
                to[x] = row[x]


@njit(nogil=True, cache=True)
def _is_free(mask, cells, y, x):
    """Whether the mask dilated by the element with these cells (., 2) is free at a pixel."""
    for e in range(len(cells)):  # noqa: SIM110 - all() would build a generator
        if mask[BEYOND + y - cells[e, 0], BEYOND + x - cells[e, 1]] > FREE:
            return False
    return True


@njit(nogil=True, cache=True)
def draw_tail(seeds, mask, paddle, frame, stream):
    """A pixel uniform over those free after dilation with the seed's element, or (-1, -1) where there is none."""
    # outside this rectangle the element touches the frame
    y0, y1 = frame + seeds.reach[paddle, 1], seeds.size - frame + seeds.reach[paddle, 0]
    x0, x1 = frame + seeds.reach[paddle, 3], seeds.size - frame + seeds.reach[paddle, 2]
    cells = seeds.element[seeds.element_from[paddle] : seeds.element_from[paddle + 1]]
    if y0 >= y1 or x0 >= x1:
        return -1, -1
    for _ in range(MISSES):
        y, x = y0 + below(stream, y1 - y0), x0 + below(stream, x1 - x0)
        if _is_free(mask, cells, y, x):
            return y, x
    free = [(y, x) for y in range(y0, y1) for x in range(x0, x1) if _is_free(mask, cells, y, x)]
    return free[below(stream, len(free))] if free else (-1, -1)


@njit(nogil=True, cache=True)
def _segment(seeds, paddle, y, x):
    """The first segment of a curve with its tail at (y, x); failure if head or pivot lie outside the image."""
    head = _moved(y, x, seeds.head[paddle])
    pivot = _moved(head[0], head[1], seeds.pivot[paddle])
    for point in (head, pivot):
        if not (0 <= point[0] < seeds.size and 0 <= point[1] < seeds.size):
            return FAILED
    return paddle, y, x, pivot[0], pivot[1]


@njit(nogil=True, cache=True)
def _seed(seeds, mask, frame, stream):
    """The first segment of a curve that starts anywhere free inside the frame."""
    for _ in range(PADDLE_RETRIALS + 1):
        paddle = below(stream, SEEDS)
        y, x = draw_tail(seeds, mask, paddle, frame, stream)
        if y < 0:
            return FAILED
        segment = _segment(seeds, paddle, y, x)
        if segment[0] >= 0:
            return segment
    return FAILED


@njit(nogil=True, cache=True)
def _second_seed(seeds, first_y, first_x, stream):
    """The first segment of the second target, whose tail keeps a fixed distance from the first target's."""
    for _ in range(PADDLE_RETRIALS + 1):
        paddle, phi = below(stream, SEEDS), below(stream, 360)
        y, x = int(np.rint(first_y + seeds.second[phi, 0])), int(np.rint(first_x + seeds.second[phi, 1]))
        segment = _segment(seeds, paddle, y, x)
        if segment[0] >= 0:
            return segment
    return FAILED


@njit(nogil=True, cache=True)
def _extend(paddles, masks, last, stream):
    """The segment after `last`; on success the mask takes up `last`, whose patch it did not hold so far."""
    anchor_y, anchor_x = _moved(last[3], last[4], paddles.anchor[last[0]])
    dilated, displacement, turn = masks[1], paddles.displacement, paddles.turn[last[0]]
    cumulative = np.empty(len(turn))
    total = 0.0
    for k in range(len(turn)):
        if turn[k] > 0:
            at = BEYOND + anchor_y + displacement[k, 0], BEYOND + anchor_x + displacement[k, 1]
            total += (1 - dilated[at] / 255) * turn[k]
        cumulative[k] = total
    if total < 1e-4:
        return FAILED
    for _ in range(PADDLE_RETRIALS + 1):
        k = np.searchsorted(cumulative, _uniform(stream) * total, side="right")
        y, x = anchor_y + displacement[k, 0], anchor_x + displacement[k, 1]
        if fits(masks[0], paddles.limit, SEEDS + k, y, x):
            _occupy(paddles, masks, last)
            return SEEDS + k, y, x, anchor_y, anchor_x
    return FAILED


@njit(nogil=True, cache=True)
def _occupy(paddles, masks, segment):
    """Write a segment's patch into the mask; the dilation of a maximum is the maximum of the dilations."""
    paste(masks[0], paddles.mask, segment[0], segment[1], segment[2])
    paste(masks[1], paddles.dilated, segment[0], segment[1], segment[2])


@njit(nogil=True, cache=True)
def _note(record, segment):
    record[0], record[1], record[2] = segment[0], segment[1], segment[2]


@njit(nogil=True, cache=True)
def draw_targets(paddles, seeds, masks, record, stream):
    """Two targets into empty masks and record (contour, 2, 3); False if either fails, which spoils the masks."""
    one = _seed(seeds, masks[0], 2 * seeds.distance, stream)
    if one[0] < 0:
        return False
    two = _second_seed(seeds, one[1], one[2], stream)
    if two[0] < 0:
        return False
    _note(record[0, 0], one)
    _note(record[0, 1], two)
    for i in range(1, len(record)):
        one = _extend(paddles, masks, one, stream)
        if one[0] < 0:
            return False
        two = _extend(paddles, masks, two, stream)
        if two[0] < 0:
            return False
        _note(record[i, 0], one)
        _note(record[i, 1], two)
    # the first target's last paddle stays out of the mask, as in the original
    _occupy(paddles, masks, two)
    return True


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def draw_distractor(paddles, seeds, padding, masks, record, stream):
    """A distractor into masks and record (length, 3); False if it fails, which spoils the masks."""
    if _is_full(masks[0]):
        return False
    # the mask's own frame (padding >= 1) is the frame of ones the original adds here
    last = _seed(seeds, masks[0], padding, stream)
    for i in range(len(record)):
        if i > 0:
            last = _extend(paddles, masks, last, stream)
        if last[0] < 0:
            return False
        _note(record[i], last)
    _occupy(paddles, masks, last)
    return True
