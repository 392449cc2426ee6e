"""A slow reference implementation of Pathfinder: the oracle for each function of `data_prep.pathfinder`.

It was written from reading the original code, so both implementations may share a misreading. Complete images are
therefore compared with `pathfinder_original.json`, which was recorded by running the original. The original dilates
with OpenCV; a test marked `peers` compares `dilate` with it.

Images and masks are float64 (size, size), points (y, x), angles radians. Every paddle is pasted into an image of the
full size, and every dilation covers the whole image. At the end: the statistics in `pathfinder_original.json`.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageDraw

from data_prep.pathfinder.generator import Trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, paddle_table
from data_prep.pathfinder.patches import paint

SCALE = 2
NAMES = (
    *("padding", "paddle_length", "paddle_thickness", "paddle_margin_list", "marker_radius"),
    *("seed_distance", "continuity", "num_distractor_paddles", "snake_contrast_list", "paddle_contrast_list"),
)
VALUES = {
    32: (1, 2, 0.5, [1], 1.5, 7, 1.0, 20, [2], [0.75]),
    64: (1, 5, 1, [1], 2.5, 12, 1.8, 22, [0.8], [1.0]),
    128: (1, 5, 1.5, [2, 3], 3, 20, 1.8, 35, [0.9], [1.0]),
    256: (22, 5, 2, [3], 5, 27, 1.8, 30, [1.0], [1.0]),
}
PARAMETERS = {size: dict(zip(NAMES, values, strict=True)) for size, values in VALUES.items()}
KINDS = [(size, margin) for size, values in PARAMETERS.items() for margin in values["paddle_margin_list"]]
every_kind = pytest.mark.parametrize(("size", "margin"), KINDS)
ROLES = ("target", "distractor", "marker")


def move(point, distance, theta):
    return math.ceil(point[0] + distance * math.sin(theta)), math.ceil(point[1] + distance * math.cos(theta))


def radians(degree):
    return degree * math.pi / 180


def opposite(theta):
    return theta + math.pi if theta < 0 else theta - math.pi


def dilate(image, element):
    """cv2.dilate: the maximum of image[y + i, x + j] over the element's cells (i, j), which are relative to its centre.

    Cells outside the image are ignored. A pixel without any cell inside gets the least float64."""
    (height, width), half = image.shape, element.shape[0] // 2
    padded = np.pad(image.astype(float), half, constant_values=np.finfo(float).min)
    return np.max([padded[i : i + height, j : j + width] for i, j in np.argwhere(element)], axis=0)


def disk(radius):
    offsets = np.arange(-radius, radius + 1)
    return offsets[:, None] ** 2 + offsets**2 <= radius**2


def stretch(image):
    low, high = image.min(), image.max()
    return np.floor((image - low) * 255 / (high - low) + 0.5).astype(np.uint8)


def shrink(image, side):
    """Shrink a uint8 image by Lanczos resampling; the result is in [0, 1]."""
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS)) / 255


@functools.cache
def patches(theta, length, thickness, margin):
    """Line patch and mask patch, (side, side) in [0, 1], of a paddle from the centre in direction theta."""
    width = thickness * SCALE
    assert width == int(width)
    half = length + math.ceil(thickness) + margin
    centre = (half * SCALE, half * SCALE)
    end = move(centre, length * SCALE, theta)
    fine = Image.new("L", (2 * half * SCALE + 1,) * 2)
    ImageDraw.Draw(fine).line([centre[::-1], end[::-1]], fill=255, width=int(width))
    line = np.asarray(fine)
    return shrink(line, 2 * half + 1), shrink(dilate(line, disk(margin * SCALE)).astype(np.uint8), 2 * half + 1)


def paste(patch, centre, shape):
    """A zero image with the patch centred on a point and clipped at the edges."""
    half = patch.shape[0] // 2
    image = np.zeros([n + 2 * half for n in shape])
    image[centre[0] : centre[0] + 2 * half + 1, centre[1] : centre[1] + 2 * half + 1] = patch
    return image[half : half + shape[0], half : half + shape[1]]


def marker(size, radius, point):
    y, x = np.mgrid[: size * SCALE, : size * SCALE]
    inside = (y - point[0] * SCALE) ** 2 + (x - point[1] * SCALE) ** 2 <= (radius * SCALE) ** 2
    return shrink(stretch(inside.astype(float)), size)


class Pieces:
    """The deterministic parts of the generator for one size and margin."""

    def __init__(self, size, margin):
        self.shape, self.margin, self.set = (size, size), margin, PARAMETERS[size]
        self.length = self.set["paddle_length"]

    def paddle(self, shape, start, theta, contrast):
        """Line image times contrast, and mask image."""
        line, mask = patches(theta, self.length, self.set["paddle_thickness"], self.margin)
        return paste(line, start, shape) * contrast, paste(mask, start, shape)

    def blank(self):
        return self.framed(np.zeros(self.shape), self.set["padding"])

    def framed(self, mask, width):
        mask = mask.copy()
        mask[:width] = mask[-width:] = mask[:, :width] = mask[:, -width:] = 1
        return mask

    def free(self, mask, theta):
        """Pixels (n, 2) where a paddle may start, ignoring void orientations."""
        side = 2 * (self.length + self.margin) + 1
        element = self.paddle((side, side), (self.length + self.margin + 1,) * 2, theta, 1.0)[1].astype(int)
        return np.argwhere(np.ceil(dilate(mask, element) - 0.3) == 0)

    def candidates(self, mask, anchor, theta):
        """Candidates for the next head, with their orientations and weights (1 - dilated mask) * continuity."""
        dilated = dilate(mask, disk(self.margin))
        radius = self.length + self.margin
        points = set()
        for degrees in np.arange(0, 360, 360 / (2 * math.pi * radius)):
            angle = radians(degrees)
            y, x = anchor[0] + radius * math.sin(angle), anchor[1] + radius * math.cos(angle)
            if 0 <= y < self.shape[0] and 0 <= x < self.shape[1]:
                points.add((int(y), int(x)))
        points = sorted(points)
        alphas, weights = [], []
        for point in points:
            alpha = math.atan2(point[0] - anchor[0], point[1] - anchor[1])
            delta = min(abs(alpha - theta), 2 * math.pi - abs(alpha - theta))
            delta = min(self.set["continuity"] * delta, math.pi / 2)
            alphas.append(alpha)
            weights.append((1 - dilated[point]) * max(math.cos(delta), 0) ** 2)
        return points, alphas, np.array(weights)

    def anchor(self, pivot, theta):
        return move(pivot, self.length + 2 * self.margin, theta)


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
