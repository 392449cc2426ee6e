"""Pathfinder images with two round markers, labelled by whether both are on the same dashed curve.

An image holds two long curves ("targets", `contour` paddles each), shorter distractors of contour // 3 paddles, and
two markers, one at the start of a target and one at the end of the same (label 1) or of the other target (label 0):

    >>> images, labels = generate(size=32, count=2, seed=0)     # (2, 32, 32) uint8, (2,) uint8

The distribution is that of the original generator (see `paddles` and `curves`), old image stretch included. Most
orientations are void at sizes 32 and 64 (see `paddles.is_void`): neither a distractor nor the first target starts in
them, so that an image of 32 x 32 holds 1.1 of 5 distractors on average. With void=False curves start in every
orientation, and it holds 4.6.

Image i depends only on (seed, size, contour, void, i): it has its own random stream, so any partition over workers
gives the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.compiled import compiled
from lra.console import log
from lra.data.source import Progress, Source
from lra.data.store import ExampleChunk

from ..counter_rng import mix
from ..examples import in_order
from .curves import below, draw_distractor, draw_targets
from .paddles import SETTINGS, paddle_table
from .patches import paint, stretch
from .release import Archive, Folder

CONTOURS = (6, 9, 14)
DISTRACTOR_RETRIALS = 4
BLOCK = 512  # images of a task of a worker, and of a chunk


class Trace(NamedTuple):
    """Parts of images; a paddle is (number in the table, y, x) as pasted."""

    targets: np.ndarray  # (count, contour, 2, 3) int16 paddles
    distractors: np.ndarray  # (count, most, 3) int16 paddles, one distractor after the other
    margin: np.ndarray  # (count,)
    start: np.ndarray  # (count,) the target, 0 or 1, that has the marker at its start
    discarded: np.ndarray  # (count,) pairs of targets thrown away
    placed: np.ndarray  # (count,) distractors


def check(size: int, contour: int) -> None:
    if size not in SETTINGS:
        raise ValueError(f"size={size!r}: choose one of {', '.join(map(str, SETTINGS))}")
    if contour not in CONTOURS:
        raise ValueError(f"contour={contour!r}: choose one of {', '.join(map(str, CONTOURS))}")


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
    return trace(size=size, count=count, seed=seed, contour=contour, first=first, void=void)[:2]


def trace(
    *, size: int, count: int, seed: int, contour: int = 14, first: int = 0, void: bool = True
) -> tuple[np.ndarray, np.ndarray, Trace]:
    """Draw images as `generate` does, with the record of their parts."""
    check(size, contour)
    length = contour // 3
    most = SETTINGS[size].distractor_paddles // length * length
    images = np.empty((count, size, size), np.uint8)
    labels = np.empty(count, np.uint8)
    paddles = np.zeros((count, contour, 2, 3), np.int16), np.zeros((count, most, 3), np.int16)
    parts = Trace(*paddles, *np.zeros((4, count), np.int32))
    margins, key = SETTINGS[size].margins, np.uint64(seed % 2**64)
    for choice, margin in enumerate(margins):
        table = paddle_table(size, margin, void)
        _draw_images(table, margin, choice, len(margins), key, contour, first, images, labels, parts)
    return images, labels, parts


@compiled
def _draw_images(table, margin, choice, choices, seed, contour, first, images, labels, parts):
    """Draw the images with margin number `choice` of `choices`."""
    size, length = images.shape[1], contour // 3
    stream = np.zeros(1, np.uint64)
    masks, attempt = table.blank.copy(), table.blank.copy()
    layers = np.empty((3, *masks.shape[1:]), np.uint8)
    canvas = np.empty((size, size))
    for n in range(len(images)):
        stream[0] = seed
        for part in (size, contour, first + n):
            stream[0] = mix(stream[0]) ^ np.uint64(part)
        stream[0] = mix(stream[0])
        label = below(stream, 2)
        if below(stream, choices) != choice:
            continue
        discarded = draw_targets(table.paddles, table.seeds, table.blank, masks, parts.targets[n], stream)
        placed = 0
        for _ in range(parts.distractors.shape[1] // length):
            record = parts.distractors[n, placed * length : (placed + 1) * length]
            for _ in range(DISTRACTOR_RETRIALS + 1):
                if draw_distractor(table.paddles, table.seeds, table.padding, masks, attempt, record, stream):
                    masks, attempt = attempt, masks
                    placed += 1
                    break
        start = below(stream, 2)
        end = start if label else 1 - start
        paint(table, parts.targets[n], parts.distractors[n, : placed * length], start, end, layers)
        stretch(layers, table.contrast, canvas, images[n])
        labels[n] = label
        parts.margin[n], parts.start[n], parts.discarded[n], parts.placed[n] = margin, start, discarded, placed


class Pathfinder(Source):
    """Grey images (size, size) as rows of size**2 pixels, 0..255, and whether both markers lie on one curve.

    Generated images are exchangeable, so the splits are the first `train` images of the seed, the next `val` and the
    next `test`.

    Args:
        size: side in pixels.
        contour: paddles of a target.
        train, val, test: numbers of generated images.
        seed: seed of generated images.
        void: False for images with nearly all distractors of the original's settings, unlike the original.
        release: the folder of the official images, one around it, or the release archive, to read those of this size
            and contour instead: all of them, split 80 / 10 / 10 percent by a fixed seed of our own; empty and
            unreadable images are skipped and counted.
    """

    name = "pathfinder"
    version = "2.1.0"
    generated = True
    licence = "generated here, MIT"
    origin = "the generator of Linsley et al. 2018 with the settings of google-research/long-range-arena"

    def __init__(
        self,
        *,
        size: int = 32,
        contour: int = 14,
        train: int = 160_000,
        val: int = 20_000,
        test: int = 20_000,
        seed: int = 0,
        void: bool = True,
        release: Path | str | None = None,
    ):
        check(size, contour)
        if min(train, val, test) < 1:
            raise ValueError("Pathfinder needs at least one image in train, val and test")
        self.size, self.contour, self.seed, self.void = size, contour, seed, void
        self.sizes = {"train": train, "val": val, "test": test}
        kind = Archive if release is not None and Path(release).is_file() else Folder
        self.release = None if release is None else kind(Path(release), size=size, contour=contour)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        shape = {"size": self.size, "contour": self.contour}
        if self.release is None:
            return {**shape, **self.sizes, "seed": self.seed, "void": self.void}
        return {**shape, "release": self.release.identity}

    def fetch(self, root: Path, progress: Progress) -> None:
        if self.release is not None:
            self.release.fetch(root, progress)

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        starts = dict(zip(self.sizes, np.cumsum([0, *self.sizes.values()]), strict=False))
        if self.release is None:
            return {
                split: self._drawn(int(starts[split]), count, workers, partial(progress, split))
                for split, count in self.sizes.items()
            }
        order = np.random.default_rng(0).permutation(len(self.release.listed))
        cuts = np.split(order, [len(order) * 8 // 10, len(order) * 9 // 10])
        return {
            split: self._read(index, workers, partial(progress, split))
            for split, index in zip(self.sizes, cuts, strict=True)
        }

    def _drawn(self, first: int, count: int, workers: int, progress) -> Iterator[ExampleChunk]:
        def draw(start: int) -> ExampleChunk:
            number = min(BLOCK, first + count - start)
            options = {"size": self.size, "contour": self.contour, "seed": self.seed, "void": self.void}
            return self._rows(*generate(**options, first=start, count=number))

        done = 0
        for rows in in_order(draw, range(first, first + count, BLOCK), workers):
            done += len(rows.labels)
            progress(done, count)
            yield rows

    def _read(self, index: np.ndarray, workers: int, progress) -> Iterator[ExampleChunk]:
        def read(start: int) -> tuple[ExampleChunk, int]:
            chosen = [self.release.listed[i] for i in index[start : start + BLOCK]]
            read = [(image, label) for name, label in chosen if (image := self.release.pixels(name)) is not None]
            images = np.stack([image for image, _ in read]) if read else np.empty((0, self.size, self.size), np.uint8)
            return self._rows(images, np.array([label for _, label in read])), len(chosen) - len(read)

        done = skipped = 0
        for rows, missing in in_order(read, range(0, len(index), BLOCK), workers):
            done, skipped = done + len(rows.labels), skipped + missing
            progress(done + skipped, len(index))
            yield rows
        if skipped:
            log(f"{self.name}: {skipped} of {len(index)} images are empty or unreadable and were skipped")

    def _rows(self, images: np.ndarray, labels: np.ndarray) -> ExampleChunk:
        lengths = np.full(len(images), self.size**2, np.int64)
        return ExampleChunk(images.reshape(-1), lengths, labels.astype(np.int64))
