"""Pasting of Pathfinder's patches into masks and layers, and of layers into an image (see ``paddles``).

The functions are inlined, which halves the time of an image: passing the tables costs as much as most calls here.
"""

import numpy as np

from lra.compiled import inlined

from .paddles import BEYOND


@inlined
def paste(image, patches, paddle, centre_y, centre_x):
    """image = max(image, patch)."""
    patch = patches[paddle]
    side = patches.shape[1]
    width = patches.shape[2]
    # The centre is the start of a curve's first paddle, the end of any other one (``paddles.Paddles``).
    half = side // 2
    top = centre_y - half + BEYOND
    left = centre_x - half + BEYOND
    window = image[top : top + side, left : left + width]
    for i in range(side):
        for x in range(patch.shape[1]):
            value = patch[i, x]
            window[i, x] = max(window[i, x], value)


@inlined
def fits(mask, limits, paddle, centre_y, centre_x):
    """Whether no pixel of the mask is above the paddle's limit; pixels beyond the image's edge count as occupied."""
    limit = limits[paddle]
    side = limits.shape[1]
    width = limits.shape[2]
    half = side // 2
    top = centre_y - half + BEYOND
    left = centre_x - half + BEYOND
    window = mask[top : top + side, left : left + width]
    for i in range(side):
        # Compare a whole line before branching, so that the loop is vectorised.
        over = False
        for x in range(limit.shape[1]):
            over |= window[i, x] > limit[i, x]
        if over:
            return False
    return True


@inlined
def paste_marker(layer, markers, y, x):
    """layer = max(layer, marker at (y, x)), with the marker cut off by a near edge."""
    side = len(markers)
    half = side // 2
    excess = len(layer) - 2 * BEYOND - side
    # The position in the table's image with the same distance from the near edges.
    i = min(y, max(half, y - excess))
    j = min(x, max(half, x - excess))
    top = BEYOND + y - i
    left = BEYOND + x - j
    for v in range(side):
        for u in range(side):
            pixel = (top + v, left + u)
            value = markers[i, j, v, u]
            layer[pixel] = max(layer[pixel], value)


@inlined
def paint(table, targets, distractors, first, last, layers):
    """Paint targets, distractors and markers at full contrast.

    Args:
        table: table of the size and margin.
        targets: paddles (contour, 2, 3).
        distractors: paddles (., 3).
        first, last: the markers are at the start of target ``first`` and the end of target ``last``.
        layers: (3, size + 2 BEYOND, same) uint8, written.
    """
    layers[:] = 0
    # Both targets, all distractors, and the two markers.
    for snake in range(2):
        for paddle, y, x in targets[:, snake]:
            paste(layers[0], table.line, paddle, y, x)
    for paddle, y, x in distractors:
        paste(layers[1], table.line, paddle, y, x)
    _, start_y, start_x = targets[0, first]
    _, end_y, end_x = targets[-1, last]
    paste_marker(layers[2], table.marker, start_y, start_x)
    paste_marker(layers[2], table.marker, end_y, end_x)


@inlined
def stretch(layers, contrast, canvas, image):
    """Take the maximum of the layers and stretch it to 0..255, rounded as by the original and scipy 1.2's bytescale."""
    size = len(image)

    # The brightest layer at every pixel.
    canvas[:] = 0
    for k in range(3):
        for y in range(size):
            line = layers[k, BEYOND + y]
            layer = line[BEYOND : BEYOND + size]
            row = canvas[y]
            for x in range(size):
                brightness = layer[x] / 255.0 * contrast[k]
                row[x] = max(row[x], brightness)

    # Stretch the least value to 0 and the greatest to 255.
    low = canvas[0, 0]
    high = canvas[0, 0]
    for row in canvas:
        for value in row:
            low = min(low, value)
            high = max(high, value)
    scale = 255.0 / (high - low)
    for y in range(size):
        for x in range(size):
            value = canvas[y, x] - low
            image[y, x] = np.uint8(value * scale + 0.5)
