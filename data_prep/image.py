"""Image: CIFAR-10 (Krizhevsky 2009) as a sequence of grey pixels, as in the Long Range Arena (Tay et al. 2020)."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from lra.data.progress import Progress
from lra.data.split import ExampleChunk

from .archive import members, reading
from .download import Download
from .examples import chunks, first_of
from .file_source import CopySource
from .formats.detect import open_copy
from .formats.layout import Reader, SequenceExample, drawn_examples

ALTERNATIVES = ("torchvision, TFDS and Hugging Face (uoft-cs/cifar10) distribute the same images",)
# Address, checksum and size as in TFDS's cifar10.
OFFICIAL = Download(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
    alternatives=ALTERNATIVES,
)
MEMBER = re.compile(r"cifar-10-batches-bin/(data_batch_[1-5]|test_batch)\.bin")
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
PIXELS = 1024
RECORD = 1 + 3 * PIXELS  # label, then the planes R, G, B, each line by line
CHUNK = 1000  # images that are converted at a time
SEED = 0  # seed of the selection of smaller sizes


def tensorflow_grey(r: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    """tf.image.rgb_to_grayscale of 8-bit colours, uint32: floor((0.2989 R + 0.587 G + 0.114 B) / 255 * 255.5).

    It is computed in whole numbers; TensorFlow's 32-bit floats differ by one level for 1 in 70,000 of all colours.
    """
    weighted = 2989 * r + 5870 * g + 1140 * b
    return weighted * 511 // (2 * 255 * 10_000)


def pillow_grey(r: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pillow's convert("L"), which torchvision uses, uint32: 0.299 R + 0.587 G + 0.114 B, rounded."""
    weighted = 19595 * r + 38470 * g + 7471 * b
    return (weighted + 32768) >> 16


GREYS = {"tensorflow": tensorflow_grey, "pillow": pillow_grey}
ORDERS = ("tfds", "archive")

Images = tuple[np.ndarray, np.ndarray]  # grey (n, 1024) uint8, labels (n,) int64


def convert(data: bytes, grey: str, name: str) -> Images:
    """Convert one batch file to images.

    Args:
        data: contents.
        grey: ``tensorflow`` or ``pillow``.
        name: name of the file, for messages.

    Raises:
        ValueError: it does not consist of whole records with labels 0 to 9.
    """
    if len(data) % RECORD or not data:
        raise ValueError(f"{name}: {len(data)} bytes are not records of {RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    largest = labels.max()
    if largest > 9:
        raise ValueError(f"{name}: a label is {largest}, not 0 to 9")

    # Convert the colours in chunks, which bounds the memory of the 32-bit numbers.
    images = np.empty((len(records), PIXELS), np.uint8)
    for first in range(0, len(records), CHUNK):
        chunk = slice(first, first + CHUNK)
        colours = records[chunk, 1:].reshape(-1, 3, PIXELS)
        planes = colours.swapaxes(0, 1).astype(np.uint32)  # (3, n, 1024)
        images[chunk] = GREYS[grey](*planes)
    return images, labels


def shuffled(n: int, split: str) -> np.ndarray:
    """Return the archive's positions 0 to n - 1 of a split in the order (n,) of TFDS's examples.

    TFDS sorts by the MD5 of the split's name and the example's key, which is the position for cifar10.
    """

    def digest(position: int) -> bytes:
        key = f"{split}{position}".encode()
        return hashlib.md5(key, usedforsecurity=False).digest()

    return np.array(sorted(range(n), key=digest))


class Image(CopySource):
    """Class of a picture: airplane, automobile, bird, cat, deer, dog, frog, horse, ship or truck (0 to 9).

    Example: 1024 grey levels 0 to 255, an image of 32 x 32 pixels line by line, are 6 (frog).

    A split is stored in the order of the archive or of the copy. Hugging Face's copy has the training batches in the
    order 4, 3, 2, 5, 1, so its validation images are not the Long Range Arena's.

    Args:
        grey: weights of the colours, ``tensorflow`` (the Long Range Arena's) or ``pillow``.
        order: order of train, whose last ``hold_out`` images are the validation set: ``tfds`` (the Long Range Arena's,
            see ``shuffled``) or ``archive``.
        hold_out: images of the validation set.
        train, val, test: numbers of examples, drawn with a fixed seed; None for all.
        url, sha256, archive: see ``download.Download``; None for the official address and checksum. ``archive`` may
            also be a copy in a format of ``data_prep.formats``, such as torchvision's; the validation set of a copy
            replaces ``hold_out``.
        columns: names of the columns of parquet and arrow files: the input, then the label; None for the usual names.
    """

    name = "image"
    version = "2.0.0"
    generated = False
    licence = "none stated; to be cited (Krizhevsky 2009)"
    origin = "CIFAR-10 binary version, www.cs.toronto.edu/~kriz/cifar.html"
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    locations = ("url", "archive")

    def __init__(
        self,
        *,
        grey: Literal["tensorflow", "pillow"] = "tensorflow",
        order: Literal["tfds", "archive"] = "tfds",
        hold_out: int = 5_000,
        train: int | None = None,
        val: int | None = None,
        test: int | None = None,
        url: str | None = None,
        sha256: str | None = None,
        archive: Path | str | None = None,
        columns: list[str] | None = None,
    ):
        if grey not in GREYS:
            raise ValueError(f"source.grey must be one of {', '.join(GREYS)}, not {grey!r}")
        if order not in ORDERS:
            raise ValueError(f"source.order must be one of {', '.join(ORDERS)}, not {order!r}")
        sizes = [size for size in (train, val, test) if size is not None]
        if min([hold_out, *sizes]) < 1:
            raise ValueError("Image needs hold_out of 1 or more and at least one example in train, val and test")
        self.grey = grey
        self.order = order
        self.hold_out = hold_out
        self.sizes = {"train": train, "val": val, "test": test}
        self.copy = open_copy(archive, self.name, length=PIXELS, columns=columns)
        # A copy is read instead of the archive.
        if self.copy is not None:
            archive = None
        self.download = OFFICIAL.replace(url=url, sha256=sha256, archive=archive)

    @property
    def choices(self) -> dict[str, Any]:
        return {"grey": self.grey, "order": self.order, "hold_out": self.hold_out, **self.sizes}

    @property
    def num_val(self) -> int:
        return self.sizes["val"] or self.hold_out

    def read(self, progress: Progress) -> dict[str, Images]:
        """Read the images of train and test in the order of the batches. Raises ValueError if a batch is missing."""
        if isinstance(self.copy, Reader):
            train = self._read_copy(self.copy, "train", progress)
            test = self._read_copy(self.copy, "test", progress)
            return {"train": train, "test": test}
        # Read all batches; the archive does not hold them in the order of their numbers.
        batches = {}
        if self.copy is not None:
            for name, data, where in self.copy.batches(progress):
                batches[name] = convert(data, self.grey, where)
        else:
            for name, file in members(self.path, MEMBER.fullmatch, progress):
                with reading(self.path):
                    data = file.read()
                batch = PurePosixPath(name).stem
                batches[batch] = convert(data, self.grey, f"{self.path}: {name}")
            # The readers of a copy check that it is complete themselves.
            for batch in (*TRAIN, *TEST):
                if batch not in batches:
                    missing = f"cifar-10-batches-bin/{batch}.bin"
                    raise ValueError(f"{self.path} is not the CIFAR-10 archive: it lacks {missing}")

        # Join them in the order of their numbers.
        splits = {}
        for split, names in (("train", TRAIN), ("test", TEST)):
            parts = [batches[name] for name in names]
            images = np.concatenate([images for images, _ in parts])
            labels = np.concatenate([labels for _, labels in parts])
            splits[split] = (images, labels)
        return splits

    def _read_copy(self, copy: Reader, part: str, progress: Progress) -> Images:
        """Read a part of a copy without a validation set as grey images."""
        images = []
        labels = []
        for (tokens,), label in self._grey_examples(copy.examples(part, progress)):
            images.append(tokens)
            labels.append(label)
        if not images:
            raise ValueError(f"{copy.path}: {part} has no example")
        return np.stack(images), np.array(labels, np.int64)

    def _grey_examples(self, examples: Iterator[SequenceExample], _name: str = "") -> Iterator[SequenceExample]:
        """Convert the images of a copy, which are grey or have colours."""
        for (tokens,), label in examples:
            # Three planes are colours, one is grey already.
            if len(tokens) == 3 * PIXELS:
                planes = tokens.reshape(3, PIXELS).astype(np.uint32)
                grey = GREYS[self.grey](*planes)
                tokens = grey.astype(np.uint8)
            yield (tokens,), label

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        # A copy with a validation set has its own splits.
        if isinstance(self.copy, Reader) and self.copy.has_val:
            return self.copy.chunks(progress, self.sizes, drawn_examples, self._grey_examples)
        images = self.read(progress)
        num_train = len(images["train"][1])
        num_test = len(images["test"][1])
        train = np.arange(num_train)
        if self.order == "tfds":
            train = shuffled(num_train, "train")

        # The validation images are the last ones of train in this order.
        train, val = np.split(train, [-self.hold_out])
        positions = {"train": train, "val": val, "test": np.arange(num_test)}

        splits = {}
        for split, size in self.sizes.items():
            # RandomState's stream is frozen; the streams of numpy's newer generators may change with the version.
            order = np.random.RandomState(SEED).permutation(positions[split])
            index = first_of(order, size, split)
            pictures, labels = images["test" if split == "test" else "train"]
            examples = _examples(pictures, labels, index)
            splits[split] = chunks(examples, split, len(index), progress)
        return splits

    def use_release(self, release: Path) -> None:
        if self.copy is None and self.download == OFFICIAL:
            self.download = self.download.prefer_copy_in(release)


def _examples(images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Iterator[tuple]:
    for i in index:
        yield (images[i],), labels[i]
