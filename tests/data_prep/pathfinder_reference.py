"""Pathfinder written down step by step, slow and whole-image: an oracle for `data_prep.pathfinder`.

It was written from reading the original, so that it can share a misreading; `pathfinder_original.json` was recorded by
running it. The original dilates with OpenCV, and so does the peers test that `dilate` is held to.

Images and masks are float64 (size, size), points (y, x), angles radians. Every paddle is pasted into an image of its
own, every dilation covers the whole image, and randomness comes from numpy: the fast generator draws other images
from the same distribution, if it is right. Patches are memoised because 300 images would otherwise take a minute.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SCALE = 2
MAX_PADDLE_RETRIAL = 2
MAX_DISTRACTOR_CONTOUR_RETRIAL = 4
DEFAULTS = {"padding": 22, "seed_distance": 27, "paddle_length": 5, "paddle_contrast_list": [1.0]}
PARAMETERS = {
    32: {
        "padding": 1,
        "paddle_length": 2,
        "paddle_thickness": 0.5,
        "paddle_margin_list": [1],
        "marker_radius": 1.5,
        "seed_distance": 7,
        "continuity": 1.0,
        "num_distractor_paddles": 20,
        "snake_contrast_list": [2],
        "paddle_contrast_list": [0.75],
    },
    64: {
        "padding": 1,
        "paddle_thickness": 1,
        "paddle_margin_list": [1],
        "marker_radius": 2.5,
        "seed_distance": 12,
        "continuity": 1.8,
        "num_distractor_paddles": 22,
        "snake_contrast_list": [0.8],
    },
    128: {
        "padding": 1,
        "paddle_thickness": 1.5,
        "paddle_margin_list": [2, 3],
        "marker_radius": 3,
        "seed_distance": 20,
        "continuity": 1.8,
        "num_distractor_paddles": 35,
        "snake_contrast_list": [0.9],
    },
    256: {
        "paddle_thickness": 2,
        "paddle_margin_list": [3],
        "marker_radius": 5,
        "continuity": 1.8,
        "num_distractor_paddles": 30,
        "snake_contrast_list": [1.0],
    },
}


class Failure(Exception):
    """A curve that cannot be started or continued."""


class Drawing(NamedTuple):
    """One image with what it is made of."""

    image: np.ndarray  # (size, size) uint8
    label: int
    layers: np.ndarray  # (3, size, size) targets, distractors, markers before their maximum is taken
    turns: Sequence[float]  # radians in [0, pi], between consecutive paddles of both targets
    tips: tuple  # the two marked points
    discarded: int  # pairs of targets thrown away
    placed: int  # distractors


class Snake:
    """A curve under construction: its image, unwritten last mask, orientations, origin and terminal tip, pivot."""

    def __init__(self, image, last_mask, theta, tail, head, pivot):
        self.image, self.last_mask, self.thetas = image, last_mask, [theta]
        self.origin, self.terminal, self.pivot = tail, head, pivot


def move(point, distance, theta):
    return math.ceil(point[0] + distance * math.sin(theta)), math.ceil(point[1] + distance * math.cos(theta))


def radians(degree):
    return degree * math.pi / 180


def opposite(theta):
    return theta + math.pi if theta < 0 else theta - math.pi


def dilate(image, element):
    """cv2.dilate: the maximum over image[y + i, x + j] for the element's cells (i, j), relative to its centre, that lie
    inside the image; the least float64 where none does."""
    (height, width), half = image.shape, element.shape[0] // 2
    padded = np.pad(image.astype(float), half, constant_values=np.finfo(float).min)
    windows = [padded[i : i + height, j : j + width] for i, j in np.argwhere(element)]
    return np.max(windows, axis=0)


def disk(radius):
    offsets = np.arange(-radius, radius + 1)
    return offsets[:, None] ** 2 + offsets**2 <= radius**2


def stretch(image):
    low, high = image.min(), image.max()
    return np.floor((image - low) * 255 / (high - low) + 0.5).astype(np.uint8)


def shrink(image, side):
    """Lanczos on 8 bits, result in [0, 1]."""
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS)) / 255


@functools.cache
def patches(theta, length, thickness, margin):
    """Line and mask patch, (side, side) in [0, 1], of a paddle from the centre in direction theta."""
    width = thickness * SCALE
    assert width == int(width)
    half = length + math.ceil(thickness) + margin
    centre = (half * SCALE, half * SCALE)
    end = move(centre, length * SCALE, theta)
    fine = Image.new("L", (2 * half * SCALE + 1,) * 2)
    ImageDraw.Draw(fine).line([centre[::-1], end[::-1]], fill=255, width=int(width))
    line = np.asarray(fine)
    mask = dilate(line, disk(margin * SCALE)).astype(np.uint8)
    return shrink(line, 2 * half + 1), shrink(mask, 2 * half + 1)


def paste(patch, centre, shape):
    """A zero image with the patch centred on a point, clipped."""
    half = patch.shape[0] // 2
    image = np.zeros([n + 2 * half for n in shape])
    image[centre[0] : centre[0] + 2 * half + 1, centre[1] : centre[1] + 2 * half + 1] = patch
    return image[half : half + shape[0], half : half + shape[1]]


def marker(size, radius, point):
    y, x = np.mgrid[: size * SCALE, : size * SCALE]
    inside = (y - point[0] * SCALE) ** 2 + (x - point[1] * SCALE) ** 2 <= (radius * SCALE) ** 2
    return shrink(stretch(inside.astype(float)), size)


class Generator:
    """Draws images of one size and contour length from a numpy random generator."""

    def __init__(self, size, contour=14, seed=0, void=True):
        self.void = void
        self.random = np.random.default_rng([size, contour, seed])
        self.shape, self.contour, self.distractor = (size, size), contour, contour // 3
        self.set = DEFAULTS | PARAMETERS[size]
        self.length, self.margin = self.set["paddle_length"], self.set["paddle_margin_list"][0]
        self.distractors = self.set["num_distractor_paddles"] // self.distractor

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
        """(n, 2) pixels where a paddle may start."""
        side = 2 * (self.length + self.margin) + 1
        start = (self.length + self.margin + 1,) * 2
        element = self.paddle((side, side), start, theta, 1.0)[1].astype(int)
        dilated = dilate(mask, element)
        if self.void and dilated.min() < 0:
            return np.empty((0, 2), int)
        return np.argwhere(np.ceil(dilated - 0.3) == 0)

    def inside(self, point):
        return all(0 <= c < n for c, n in zip(point, self.shape, strict=True))

    def start(self, draw_tail, contrast):
        """A curve of one paddle; draw_tail(theta) gives its tail."""
        for _ in range(MAX_PADDLE_RETRIAL + 1):
            theta = radians(self.random.integers(-180, 180))
            tail = draw_tail(theta)
            head = move(tail, self.length, theta)
            pivot = move(head, self.length + self.margin, opposite(theta))
            if self.inside(head) and self.inside(pivot):
                return Snake(*self.paddle(self.shape, tail, theta, contrast), theta, tail, head, pivot)
        raise Failure

    def free_tail(self, mask, theta):
        free = self.free(mask, theta)
        if not len(free):
            raise Failure
        return tuple(int(c) for c in free[self.random.integers(len(free))])

    def second_tail(self, first):
        phi = radians(self.random.integers(0, 360))
        distance = self.set["seed_distance"]
        return tuple(round(c + distance * d) for c, d in zip(first, (math.sin(phi), math.cos(phi)), strict=True))

    def candidates(self, mask, anchor, theta):
        """Candidate heads, their orientations and weights (1 - dilated mask) * continuity."""
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

    def extend(self, snake, mask, contrast):
        """One more paddle; returns the new mask."""
        anchor = self.anchor(snake.pivot, snake.thetas[-1])
        points, alphas, weights = self.candidates(mask, anchor, snake.thetas[-1])
        if weights.sum() < 1e-4:
            raise Failure
        cumulative = np.cumsum(weights / weights.sum())
        for _ in range(MAX_PADDLE_RETRIAL + 1):
            pick = int(np.argmax(cumulative > self.random.random() * cumulative[-1]))
            image, patch = self.paddle(self.shape, points[pick], opposite(alphas[pick]), contrast)
            # in whole 255ths, so that a sum of exactly 1.8 is refused whatever its rounding
            if np.rint(255 * (mask + patch)).max() < 459:
                break
        else:
            raise Failure
        snake.image = np.maximum(snake.image, image)
        mask = np.maximum(mask, snake.last_mask)
        snake.last_mask, snake.pivot, snake.terminal = patch, anchor, points[pick]
        snake.thetas.append(alphas[pick])
        return mask

    def targets(self):
        """Two curves and the mask."""
        mask = self.blank()
        contrasts = self.random.permutation(self.set["snake_contrast_list"] * 2)[:2]
        paddle_contrasts = self.set["paddle_contrast_list"]
        framed = self.framed(mask, 2 * self.set["seed_distance"])
        level = self.random.choice(paddle_contrasts)
        one = self.start(lambda theta: self.free_tail(framed, theta), level * contrasts[0])
        two = self.start(lambda theta: self.second_tail(one.origin), level * contrasts[1])
        for _ in range(self.contour - 1):
            level = self.random.choice(paddle_contrasts)
            mask = self.extend(one, mask, level * contrasts[0])
            mask = self.extend(two, mask, level * contrasts[1])
        return one, two, np.maximum(mask, two.last_mask)

    def add_distractor(self, image, mask):
        framed = self.framed(mask, 1)
        if np.mean(np.ceil(framed - 0.3) == 0) < 0.01:
            raise Failure
        contrasts = self.set["snake_contrast_list"]
        snake = self.start(lambda theta: self.free_tail(framed, theta), self.random.choice(contrasts))
        for _ in range(self.distractor - 1):
            mask = self.extend(snake, mask, self.random.choice(contrasts))
        return np.maximum(image, snake.image), np.maximum(mask, snake.last_mask)

    def draw(self):
        label = int(self.random.integers(2))
        self.margin = int(self.random.choice(self.set["paddle_margin_list"]))
        discarded = 0
        while True:
            try:
                *snakes, mask = self.targets()
                break
            except Failure:
                discarded += 1
        target = np.maximum(snakes[0].image, snakes[1].image)
        distractors, placed = np.zeros(self.shape), 0
        for _ in range(self.distractors):
            for _ in range(MAX_DISTRACTOR_CONTOUR_RETRIAL + 1):
                try:
                    distractors, mask = self.add_distractor(distractors, mask)
                    placed += 1
                    break
                except Failure:
                    pass
        first = int(self.random.integers(2))
        tips = snakes[first].origin, snakes[first if label else 1 - first].terminal
        markers = np.maximum(*(marker(self.shape[0], self.set["marker_radius"], tip) for tip in tips))
        layers = np.stack([target, distractors, markers])
        turns = [abs(b - a) for s in snakes for a, b in zip(s.thetas, s.thetas[1:], strict=False)]
        turns = [min(t, 2 * math.pi - t) for t in turns]
        return Drawing(stretch(layers.max(0)), label, layers, turns, tips, discarded, placed)
