"""Text: IMDb reviews (Maas et al. 2011) byte by byte, as in the Long Range Arena (Tay et al. 2020)."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.progress import Progress
from lra.data.split import ExampleChunk, Examples

from .archive import members, reading
from .download import Download
from .examples import chunks, first_of
from .file_source import CopySource
from .formats.detect import open_copy
from .formats.layout import Reader, drawn_examples

ALTERNATIVES = ("TFDS, torchtext and Hugging Face (stanfordnlp/imdb) distribute the same reviews",)
# Address, checksum and size as in TFDS's imdb_reviews.
OFFICIAL = Download(
    url="http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    size=84_125_825,
    alternatives=ALTERNATIVES,
)
MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")
LABELS = {"neg": 0, "pos": 1}
NUM_TEST = 25_000  # official reviews of test
SEED = 0  # seed of hold_out and of the selection of smaller sizes

Review = tuple[tuple[bytes], int]  # text, label


def read(path: Path, progress: Progress) -> dict[str, list[Review]]:
    """Read the reviews of train and test, sorted by name, so negative before positive.

    Raises:
        ValueError: the archive is damaged, or one of its four folders of reviews is missing.
    """
    reviews: dict[str, Review] = {}
    for name, file in members(path, MEMBER.fullmatch, progress):
        sentiment = name.split("/")[2]
        with reading(path):
            # Without surrounding white space, as in TFDS's imdb_reviews.
            review = file.read().strip()
        if not review:
            raise ValueError(f"{path}: {name} is empty: get the reviews again")
        reviews[name] = (review,), LABELS[sentiment]
    for folder in ("train/neg", "train/pos", "test/neg", "test/pos"):
        if not any(name.startswith(f"aclImdb/{folder}/") for name in reviews):
            raise ValueError(f"{path} is not the IMDb archive: it holds no aclImdb/{folder}/<id>_<rating>.txt")
    splits: dict[str, list[Review]] = {"train": [], "test": []}
    for name in sorted(reviews):
        splits[name.split("/")[1]].append(reviews[name])
    return splits


def _digest(copy: Reader, split: str, progress: Progress) -> bytes:
    """Hash the reviews and labels of a split."""
    sha = hashlib.sha256()
    for (review,), label in copy.examples(split, progress):
        sha.update(f"{len(review)} {label} ".encode())
        sha.update(review.tobytes())
    return sha.digest()


class Text(CopySource):
    """Film reviews, negative (0) or positive (1), as bytes.

    Example: b"This is a great film.<br /><br />..." is 1. White space around a review of the official files is dropped;
    nothing inside it is changed.

    Args:
        hold_out: number of reviews of train, drawn with a fixed seed, for the validation set; 0 if the test set is
            also the validation set, as in the papers; it is stored once.
        train, val, test: numbers of examples, drawn with a fixed seed; None for all.
        url, sha256, archive: see ``download.Download``; None for the official address and checksum. ``archive`` may
            also be a copy in a format of ``data_prep.formats``, such as the unpacked folder aclImdb; the validation
            set of a copy replaces ``hold_out``.
        columns: names of the columns of parquet and arrow files: the input, then the label; None for the usual names.
    """

    name = "text"
    version = "2.0.0"
    generated = False
    licence = "none stated; offered for research, to be cited (Maas et al. 2011)"
    origin = "Large Movie Review Dataset v1.0, ai.stanford.edu/~amaas/data/sentiment"
    classes = ("negative", "positive")
    locations = ("url", "archive")

    def __init__(
        self,
        *,
        hold_out: int = 0,
        train: int | None = None,
        val: int | None = None,
        test: int | None = None,
        url: str | None = None,
        sha256: str | None = None,
        archive: Path | str | None = None,
        columns: list[str] | None = None,
    ):
        if hold_out < 0 or any(size is not None and size < 1 for size in (train, val, test)):
            raise ValueError("Text needs hold_out of 0 or more and at least one example in train, val and test")
        if not hold_out and val != test:
            raise ValueError(
                f"with hold_out=0 the test set is the validation set, so val must be {test} like test, not {val}"
            )
        self.hold_out = hold_out
        self.train = train
        self.val = val
        self.test = test
        self.copy = open_copy(archive, self.name, columns=columns)
        self.download = OFFICIAL.replace(url=url, sha256=sha256, archive=archive if self.copy is None else None)

    @property
    def choices(self) -> dict[str, Any]:
        return {"hold_out": self.hold_out, "train": self.train, "val": self.val, "test": self.test}

    @property
    def num_val(self) -> int:
        return self.val or self.hold_out or NUM_TEST

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        # A copy with a validation set has its own splits.
        if isinstance(self.copy, Reader) and self.copy.has_val:
            if self.hold_out and _digest(self.copy, "val", progress) == _digest(self.copy, "test", progress):
                remedy = "use protocol=paper, or a copy with other reviews for validation"
                raise ValueError(
                    f"{self.copy.path}: its validation set is its test set, as in protocol=paper; {remedy}"
                )
            sizes = {"train": self.train, "val": self.val, "test": self.test}
            return self.copy.chunks(progress, sizes, drawn_examples)
        # Other copies and the archive have train and test.
        reviews: Mapping[str, Sequence[tuple[Sequence, int]]]
        if isinstance(self.copy, Reader):
            reviews = {split: list(self.copy.examples(split, progress)) for split in ("train", "test")}
        elif self.copy is not None:
            reviews = self.copy.read(progress)
        else:
            reviews = read(self.path, progress)
        # RandomState's stream is frozen; the streams of numpy's newer generators may change with the version.
        order = {}
        for split, examples in reviews.items():
            order[split] = np.random.RandomState(SEED).permutation(len(examples))

        # The validation reviews are the first ones of the order of train.
        val, train = np.split(order["train"], [self.hold_out])
        index = {"train": first_of(train, self.train, "train")}
        if self.hold_out:
            index["val"] = first_of(val, self.val, "val")
        index["test"] = first_of(order["test"], self.test, "test")

        # Train and the validation set are taken from the official train.
        splits = {}
        for split, numbers in index.items():
            pool = reviews["test" if split == "test" else "train"]
            # map binds this split's pool now; a generator would look the name up when it is read, after the loop.
            splits[split] = chunks(map(pool.__getitem__, numbers), split, len(numbers), progress)
        return splits

    def use_release(self, release: Path) -> None:
        if self.copy is None and self.download == OFFICIAL:
            self.download = self.download.prefer_copy_in(release)

    def load(self, root: Path | str) -> dict[str, Examples]:
        splits = super().load(root)
        return {name: splits.get(name, splits["test"]) for name in ("train", "val", "test")}
