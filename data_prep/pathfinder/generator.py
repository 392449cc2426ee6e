"""Pathfinder: are two round markers on the same dashed curve? Images drawn by ``images``, or images of the release."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lra.console import log
from lra.data.progress import Progress, ReadMeter
from lra.data.split import ExampleChunk

from ..archive import archive_in, expand, inside_archive
from ..examples import in_order
from ..file_source import ReleaseSource
from ..formats.detect import open_reader
from ..formats.layout import Reader
from ..formats.pixel_lines import PixelLineReader
from .images import Trace, check, generate, trace
from .listing import FOLDERS
from .release import Archive, Folder

__all__ = ["Pathfinder", "Trace", "generate", "trace"]

OFFICIAL_SIZES = {"train": 160_000, "val": 20_000, "test": 20_000}
BLOCK = 512  # images that a thread draws or reads at a time, which become one chunk


# Readers of the official images.
ReleaseImages = Archive | Folder


class Pathfinder(ReleaseSource):
    """Grey images (size, size) as sequences of size**2 pixels, 0..255, and whether both markers lie on one curve.

    Generated images are exchangeable, so the splits are the first ``train`` images of the seed, the next ``val`` and
    the next ``test``.

    Args:
        size: side in pixels.
        contour: paddles of a target.
        train, val, test: numbers of generated images.
        seed: seed of generated images.
        void: True: as in the original, images of 32 x 32 and 64 x 64 lack many distractors. False: few are left out.
        release: the folder of the official images, a folder above it, or the release archive, to read the images of
            this size and contour instead: all of them, split 80 / 10 / 10 percent by a fixed seed; empty and unreadable
            images are skipped and counted. Or a copy in a format of ``data_prep.formats``, with its splits.
        columns: names of the columns of parquet and arrow files: the image, then the label; None for the usual names.
    """

    name = "pathfinder"
    version = "2.1.0"
    generated = True
    licence = "generated here, MIT; the official files Apache-2.0, as google-research/long-range-arena"
    origin = "generated after Linsley et al. 2018, or the files of the Long Range Arena release"
    sizes: dict[str, int]
    release: Reader | ReleaseImages | None
    path: Path

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
        columns: list[str] | None = None,
    ):
        check(size, contour)
        if min(train, val, test) < 1:
            raise ValueError("Pathfinder needs at least one image in train, val and test")
        self.size = size
        self.contour = contour
        self.seed = seed
        self.void = void
        self.sizes = {"train": train, "val": val, "test": test}
        self.release = None
        stem = f"pathfinder{size}-{FOLDERS[contour]}"
        copy = open_reader(
            release, self.name, stem=stem, length=size**2, columns=columns, has_official=self._has_images
        )
        # MEGA's lines, which do not name the contour, have 14 paddles; its script writes them next to the images.
        if isinstance(copy, PixelLineReader) and contour != 14:
            log(f"{self.name}: the lines of pixels in {copy.path} have contour 14, so they are not read")
            copy = None
        if copy is not None:
            self.path = copy.path
            self.release = copy
        elif release is not None:
            self._set_release(expand(release))

    def _has_images(self, folder: Path) -> bool:
        """Whether a folder is the folder of a contour, or holds the release archive or this contour's images."""
        if (folder / "metadata").is_dir() or archive_in(folder) is not None:
            return True
        return bool(Folder(folder, size=self.size, contour=self.contour).candidates)

    def _set_release(self, path: Path) -> None:
        """Choose the reader of a folder or an archive; nothing is read yet."""
        self.path = path
        archive, inside = inside_archive(path)
        if archive.is_file():
            self.release = Archive(archive, inside=inside, size=self.size, contour=self.contour)
            return
        self.release = Folder(path, size=self.size, contour=self.contour)
        # A folder may hold the archive instead of its content.
        packed = archive_in(path)
        if packed and not self.release.candidates:
            self.release = Archive(packed, inside="", size=self.size, contour=self.contour)

    @property
    def choices(self) -> dict[str, Any]:
        shape = {"size": self.size, "contour": self.contour}
        if self.has_files or self._is_recorded():
            return shape
        return {**shape, **self.sizes, "seed": self.seed, "void": self.void}

    def location(self) -> str:
        return str(self.path.absolute())

    def use_release(self, release: Path) -> None:
        # A release has the paper's sizes; smaller budgets, other seeds and void=false are generated.
        is_official = self.sizes == OFFICIAL_SIZES and self.void and self.seed == 0
        if self.release is not None or not is_official:
            return
        folder = Folder(expand(release), size=self.size, contour=self.contour)
        # A path that is not a folder is an archive; a wrong path is an error once the images are needed.
        if not folder.path.is_dir() or folder.candidates or archive_in(folder.path):
            self._set_release(folder.path)
        else:
            kind = f"{self.size} x {self.size} pixels and contour {self.contour}"
            log(f"{self.name}: data.release={release} holds no images of {kind}")

    def fetch(self, root: Path, progress: Progress) -> None:
        if self.release is not None:
            self.release.fetch(root, progress)

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        if isinstance(self.release, Reader):
            return self.release.chunks(progress)
        if self.release is None:
            return self._drawn_splits(workers, progress)
        # The files name no splits; the official code and others' split them in other ways (docs/protocol.md).
        order = np.random.default_rng(0).permutation(len(self.release.listed))
        bounds = [len(order) * 8 // 10, len(order) * 9 // 10]
        digests: set[bytes] = set()
        splits = {}
        for split, index in zip(self.sizes, np.split(order, bounds), strict=True):
            splits[split] = self._read(self.release, index, workers, partial(progress, split), digests)
        # Test is read last and closes the files.
        splits["test"] = _closing(splits["test"], self.release.close)
        return splits

    def _drawn_splits(self, workers: int, progress: Progress) -> dict[str, Iterator[ExampleChunk]]:
        splits = {}
        first = 0
        for split, count in self.sizes.items():
            splits[split] = self._drawn(first, count, workers, partial(progress, split))
            first += count
        return splits

    def _drawn(self, first: int, count: int, workers: int, progress) -> Iterator[ExampleChunk]:
        """Draw the images of a split in blocks, by threads."""

        def draw(start: int) -> ExampleChunk:
            number = min(BLOCK, first + count - start)
            images, labels = generate(
                size=self.size, contour=self.contour, seed=self.seed, void=self.void, first=start, count=number
            )
            return self._chunk(images, labels)

        finished = 0
        for chunk in in_order(draw, range(first, first + count, BLOCK), workers):
            finished += len(chunk.labels)
            progress(finished, count)
            yield chunk

    def _read(
        self, release: ReleaseImages, index: np.ndarray, workers: int, progress, digests: set[bytes]
    ) -> Iterator[ExampleChunk]:
        """Read the images of a split in blocks, by threads.

        Args:
            release: the images.
            index: numbers of the images in the listing.
            workers: threads.
            progress: reports the images.
            digests: digests of the images of all earlier splits; the images of this split are added.
        """

        # A thread reads and decodes a block; decompression releases the interpreter lock.
        def read(start: int) -> tuple[ExampleChunk, int, int]:
            entries = [release.listed[i] for i in index[start : start + BLOCK]]
            pixels, num_bytes = release.pixels([name for name, _ in entries])
            images = []
            labels = []
            for (_, label), image in zip(entries, pixels, strict=True):
                if image is not None:
                    images.append(image)
                    labels.append(label)
            stacked = np.stack(images) if images else np.empty((0, self.size, self.size), np.uint8)
            return self._chunk(stacked, np.array(labels)), len(entries) - len(images), num_bytes

        # The images that are missing are counted.
        finished = 0
        skipped = 0
        starts = range(0, len(index), BLOCK)
        with ReadMeter(f"{self.path}: images") as meter:
            for chunk, missing, num_bytes in in_order(read, starts, workers):
                finished += len(chunk.labels)
                skipped += missing
                meter.add(num_bytes)
                # Digests of 8 bytes: 200,000 images collide with a probability of 1e-9.
                for image in chunk.tokens.reshape(-1, self.size**2):
                    digests.add(hashlib.blake2b(image, digest_size=8).digest())
                progress(finished + skipped, len(index))
                yield chunk
        self._check(finished, skipped, len(digests))

    def _check(self, finished: int, skipped: int, distinct: int) -> None:
        """Log skipped images of a split. Raises ValueError if none can be read, or too many images are equal.

        Args:
            finished, skipped: numbers of images of the split.
            distinct: number of distinct images of this and the earlier splits, so in effect train is checked.
        """
        if skipped:
            count = finished + skipped
            advice = "complete the files and prepare again to read them"
            log(f"{self.name}: {skipped} of {count} images are empty or unreadable and were skipped; {advice}")
        if skipped and not finished:
            raise ValueError(f"{self.path}: no image is a readable image of {self.size} x {self.size} pixels")
        if 2 * distinct < finished:
            reason = f"only {distinct} of {finished} images are different"
            raise ValueError(f"{self.path}: {reason}, so these are not the images of the release; get them again")

    def _chunk(self, images: np.ndarray, labels: np.ndarray) -> ExampleChunk:
        lengths = np.full(len(images), self.size**2, np.int64)
        return ExampleChunk(images.reshape(-1), lengths, labels.astype(np.int64))


def _closing(chunks: Iterator[ExampleChunk], close: Callable[[], None]) -> Iterator[ExampleChunk]:
    """Yield all chunks, then close what they were read from."""
    try:
        yield from chunks
    finally:
        close()
