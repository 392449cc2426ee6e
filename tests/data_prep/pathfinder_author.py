"""Statistics of images of the original Pathfinder generator, drawn by its authors' code, and of our generator.

    git clone https://github.com/drewlinsley/pathfinder && git -C pathfinder checkout ab9c130
    PATHFINDER_AUTHOR=pathfinder make test-peers

This module recorded `pathfinder_original.json`. It needs opencv-python-headless. The original code is from 2018: its
modules get replacements for np.float, np.round_ and scipy.misc, which numpy and scipy have removed since. Otherwise it
is unchanged, except that distractors are drawn into a separate image. That has no effect, since the code only takes
maxima of images.
"""

import contextlib
import functools
import importlib
import io
import math
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from pathfinder_reference import PARAMETERS, SCALE, shrink, stretch

from data_prep.pathfinder.generator import Trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, paddle_table
from data_prep.pathfinder.patches import paint

SETTINGS = {
    "antialias_scale": SCALE,
    "max_paddle_retrial": 2,
    "max_distractor_contour_retrial": 4,
    "use_single_paddles": False,
    "segmentation_task": False,
    "pause_display": False,
    "save_images": True,
    "save_metadata": True,
    "batch_id": 0,
    "n_images": 1,
}
# Functions of the original that `Author` wraps.
SNAKES = ("seed_snake", "make_snake", "make_many_snakes", "extend_snake")
SNAKES2 = ("initialize_two_seeds", "two_snakes", "draw_circle")
ROLES = ("target", "distractor", "marker")
NUMPY = SimpleNamespace(**vars(np) | {"float": float, "round_": np.round})


def _to_bytes(array):
    """scipy.misc.bytescale: uint8 is returned unchanged, other types are stretched to 0..255."""
    if array.dtype == np.uint8:
        return array
    return stretch(array) if array.min() < array.max() else np.zeros(array.shape, np.uint8)


def _imresize(array, size, interp):
    """scipy.misc.imresize to a square uint8 image."""
    assert interp == "lanczos" and size[0] == size[1]
    return np.rint(255 * shrink(_to_bytes(array), size[0])).astype(np.uint8)


class Author:
    """The authors' modules from a checkout, wrapped to record what they draw: `image` holds the parts of one image."""

    def __init__(self, checkout: Path):
        sys.path.insert(0, str(checkout))
        self.snakes, self.snakes2 = map(importlib.import_module, ("snakes", "snakes2"))
        sys.path.remove(str(checkout))
        self.image = {}
        for module in (self.snakes, self.snakes2):
            module.np = NUMPY
            module.scipy = SimpleNamespace(misc=SimpleNamespace(imresize=_imresize, imsave=self._imsave))
        self.snakes.save_metadata = lambda *_: None
        for module, names in ((self.snakes, SNAKES), (self.snakes2, SNAKES2)):
            for name in names:
                setattr(module, name, functools.partial(getattr(self, f"_{name}"), getattr(module, name)))

    def _imsave(self, path, array):
        self.image["image"] = _to_bytes(array)

    def _initialize_two_seeds(self, original, *args, **options):
        result = original(*args, **options)
        # A copy: the caller overwrites its list.
        self.image["first"], self.image["turns"] = list(result[4]), []
        return result

    def _extend_snake(self, original, pivot, theta, *args, **options):
        result = original(pivot, theta, *args, **options)
        if result[-1]:
            self.image["turns"].append(abs(result[4] - theta))
        return result

    def _two_snakes(self, original, *args, **options):
        result = original(*args, **options)
        if result[-1]:
            turns = [min(turn, 2 * math.pi - turn) for turn in self.image["turns"]]
            self.image |= {"targets": np.maximum(*result[0]), "turns of targets": turns, "orientations": []}
            self.image |= {"circles": [], "tips": []}
        else:
            self.image["discarded"] += 1
        return result

    def _seed_snake(self, original, *args, **options):
        result = original(*args, **options)
        self.image["seed"] = result[4]
        return result

    def _make_snake(self, original, *args, **options):
        result = original(*args, **options)
        if result[-1]:
            self.image["orientations"].append(self.image["seed"])
        return result

    def _make_many_snakes(self, original, image, *args, **options):
        self.image["distractors"], mask = original(np.zeros_like(image), *args, **options)
        return np.maximum(image, self.image["distractors"]), mask

    def _draw_circle(self, original, size, tip, *args):
        self.image["circles"].append(original(size, tip, *args) / 255)
        self.image["tips"].append(tuple(int(c) for c in tip))
        return np.rint(255 * self.image["circles"][-1]).astype(np.uint8)

    def draw(self, *, size: int, contour: int, seed: int) -> Iterator[dict]:
        """Yield the statistics of one image after another, endlessly."""
        settings = PARAMETERS[size] | SETTINGS | {"window_size": [size, size], "contour_length": contour}
        length = contour // 3
        distractors = settings.pop("num_distractor_paddles") // length
        np.random.seed(seed)
        random.seed(seed)
        with tempfile.TemporaryDirectory() as folder:
            settings |= {"distractor_length": length, "num_distractor_snakes": distractors, "contour_path": folder}
            while True:
                self.image = {"discarded": 0}
                with contextlib.redirect_stdout(io.StringIO()):
                    self.snakes2.from_wrapper(SimpleNamespace(**settings))
                yield self._statistics()

    def _statistics(self) -> dict:
        result = self.image
        layers = np.stack([result["targets"], result["distractors"], np.maximum(*result["circles"])])
        orientations = [round(math.degrees(theta)) for theta in (*result["first"], *result["orientations"])]
        turns, tips = result["turns of targets"], result["tips"]
        return measure(result["image"], layers, turns, tips, orientations, result["discarded"])


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
