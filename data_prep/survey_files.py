"""Collectors of the tasks with many files or with batches (Pathfinder, IMDb, CIFAR-10), and of other formats."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from lra.data.progress import Progress

from . import listops, retrieval
from .formats.aclimdb import LABELS
from .formats.layout import Reader
from .image import PIXELS, RECORD, TEST, TRAIN
from .lines import impostor
from .pathfinder.listing import decode, listing
from .survey import Collector, SplitSummary, expression_differences, shorten

# Official number of examples of each split of a copy. Text and Image have no official validation set, and a copy of
# Image takes one from train.
OFFICIAL_SIZES = {
    "listops": listops.OFFICIAL_SIZES,
    "retrieval": retrieval.OFFICIAL_SIZES,
    "text": {"train": 25_000, "test": 25_000},
    "image": {"test": 10_000},
}
# Tokens of a text that the tasks read.
TEXT_LIMITS = {"text": 4_000, "retrieval": 4_000}
# The reason why a file without content is not an image.
EMPTY = "is empty"
# Images of one size and contour, and the one that is empty in the release.
PATHFINDER_IMAGES = 200_000
OFFICIAL_EMPTY: Mapping[tuple[int, int | None], str] = {(32, 6): "imgs/0/sample_172.png"}


def pathfinder_title(size: int, contour: int) -> str:
    """The task of the images of one size and contour, for the report."""
    return f"pathfinder, {size} x {size}, contour {contour}"


def official_images(size: int, contour: int | None) -> int:
    """The number of readable images of the release."""
    return PATHFINDER_IMAGES - ((size, contour) in OFFICIAL_EMPTY)


class PathfinderCollector(Collector):
    """The images of one size and contour."""

    size: int

    def __init__(self, place: str, size: int, contour: int):
        super().__init__(place)
        self.task = pathfinder_title(size, contour)
        self.size = size
        self.contour = contour
        self.sizes = {"all": official_images(size, contour)}
        self.metadata: dict[str, list[bytes]] = {}
        self.digests: dict[str, bytes | None] = {}

    def add(self, name: str, data: Iterable[bytes]) -> None:
        content = b"".join(data)
        if name.startswith("metadata/"):
            stem = name.removeprefix("metadata/").removesuffix(".npy")
            self.metadata[stem] = content.splitlines()
        else:
            self.add_digest(name, self.digest(content))

    def digest(self, content: bytes) -> bytes | str:
        """Return a digest of the pixels of an image, or the reason why the content is not such an image."""
        pixels = decode(content, self.size)
        if pixels is not None:
            return hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        if not content:
            return EMPTY
        expected = f"{self.size} x {self.size} pixels"
        return impostor(content) or f"is not a readable image of {expected}"

    def add_digest(self, name: str, digest: bytes | str) -> None:
        if isinstance(digest, str):
            fault = f"{self.place}/{name}: {digest}"
            if digest == EMPTY and name == OFFICIAL_EMPTY.get((self.size, self.contour)):
                self.tolerated.append(f"{fault}, as in the official release")
            else:
                self.faults.append(fault)
            self.digests[name] = None
        else:
            self.digests[name] = digest

    def summarise(self) -> list[SplitSummary]:
        summary = SplitSummary("all")
        sha = hashlib.sha256()
        missing = []
        distinct = set()
        try:
            entries = listing(self.metadata, self.place)
        except ValueError as error:
            self.faults.append(str(error))
            entries = []
        # Every listed image, in the order of the listing.
        for name, label in entries:
            if name not in self.digests:
                missing.append(f"{self.place}/{name}: is missing")
            digest = self.digests.get(name)
            sha.update(f"{name} {label} {digest!r}\n".encode())
            if digest is not None:
                distinct.add(digest)
                summary.labels[label] += 1
                summary.lengths.append(self.size**2)
        # A folder with thousands of damaged images is described by the first ones.
        self.faults = shorten(self.faults, self.place) + shorten(missing, self.place)
        # Placeholders, of which most images are equal.
        if 2 * len(distinct) < summary.examples:
            counts = f"{len(distinct):,} of {summary.examples:,}"
            self.faults.append(f"{self.place}: only {counts} images are different")
        summary.sha256 = sha.hexdigest()
        return [summary]


class ReviewCollector(Collector):
    """The reviews of IMDb, each a file."""

    task = "text"
    option = "source.archive"
    sizes: Mapping[str, int] = {"train": 25_000, "test": 25_000}
    folders = ("train/neg", "train/pos", "test/neg", "test/pos")
    member = re.compile(r"(train|test)/(neg|pos)/\d+_\d+\.txt")

    def __init__(self, place: str):
        super().__init__(place)
        self.reviews: dict[str, dict[str, bytes]] = {"train": {}, "test": {}}
        self.summaries = {name: SplitSummary(name) for name in self.reviews}

    def add(self, name: str, data: Iterable[bytes]) -> None:
        split, label, _ = name.split("/")
        content = b"".join(data)
        if not content.strip():
            self.faults.append(f"{self.place}/{name}: is empty")
        summary = self.summaries[split]
        summary.labels[LABELS[label]] += 1
        # Without white space around it, as a review is stored.
        summary.lengths.append(len(content.strip()))
        self.reviews[split][name] = hashlib.sha256(content).digest()

    def summarise(self) -> list[SplitSummary]:
        # The checksum does not depend on the order in which the reviews were read.
        for split, summary in self.summaries.items():
            sha = hashlib.sha256()
            for name in sorted(self.reviews[split]):
                sha.update(name.encode() + self.reviews[split][name])
            summary.sha256 = sha.hexdigest()
        missing = []
        for folder in self.folders:
            split = folder.partition("/")[0]
            if not any(name.startswith(f"{folder}/") for name in self.reviews[split]):
                missing.append(f"{self.place}/{folder}: is missing or holds no <id>_<rating>.txt")
        self.faults = missing + shorten(self.faults, self.place)
        return list(self.summaries.values())

    def content(self, split: SplitSummary) -> str:
        # The checksum of a split covers the names, which differ between the folders.
        digests = sorted(self.reviews[split.name].values())
        return hashlib.sha256(b"".join(digests)).hexdigest()


class BatchCollector(Collector):
    """CIFAR-10 as batches of the binary version."""

    task = "image"
    option = "source.archive"
    sizes: Mapping[str, int] = {"train": 50_000, "test": 10_000}

    def __init__(self, place: str):
        super().__init__(place)
        self.batches: dict[str, bytes] = {}

    def add(self, name: str, data: Iterable[bytes]) -> None:
        self.batches[name.removesuffix(".bin")] = b"".join(data)

    def summarise(self) -> list[SplitSummary]:
        summaries = []
        # A reader that stopped at a fault has named it; the batches after it were not read.
        is_complete = not self.faults
        for split, names in (("train", TRAIN), ("test", TEST)):
            summary = SplitSummary(split)
            sha = hashlib.sha256()
            for name in names:
                content = self.batches.get(name)
                if content is None:
                    if is_complete:
                        self.faults.append(f"{self.place}/{name}.bin: is missing")
                    continue
                # A batch consists of whole records.
                sha.update(content)
                if not content or len(content) % RECORD:
                    size = f"has {len(content):,} bytes, not records of {RECORD:,}"
                    reason = impostor(content) or size
                    self.faults.append(f"{self.place}/{name}.bin: {reason}")
                    continue
                labels = np.frombuffer(content, np.uint8)[::RECORD]
                if labels.max() > 9:
                    self.faults.append(f"{self.place}/{name}.bin: a label is {labels.max()}, not 0 to 9")
                summary.labels.update(labels.tolist())
                summary.lengths += [PIXELS] * len(labels)
            summary.sha256 = sha.hexdigest()
            summaries.append(summary)
        return summaries


class CopyCollector(Collector):
    """A copy of a task in a format of ``formats``, which a reader opens."""

    def __init__(self, place: str, task: str, *, size: int | None = None, contour: int | None = None):
        super().__init__(place)
        self.task = task if size is None or contour is None else pathfinder_title(size, contour)
        self.size = size
        self.contour = contour
        self.option = "source.archive" if task in ("text", "image") else "source.release"
        self.sizes = OFFICIAL_SIZES.get(task, {})
        self.summaries: list[SplitSummary] = []
        self.files: Mapping[str, Path] = {}

    def add(self, name: str, data: Iterable[bytes]) -> None:
        """Do nothing: a reader reads whole splits."""

    def read(self, reader: Reader, progress: Progress) -> None:
        """Read all splits. Raises ValueError if one is damaged."""
        self.files = reader.files
        for split in reader.files:
            summary = SplitSummary(split)
            sha = hashlib.sha256()
            for texts, label in reader.examples(split, progress):
                for tokens in texts:
                    sha.update(tokens.data)
                    summary.lengths.append(len(tokens))
                summary.labels[label] += 1
            summary.sha256 = sha.hexdigest()
            self.summaries.append(summary)

    def summarise(self) -> list[SplitSummary]:
        return self.summaries

    def file(self, split: SplitSummary) -> str:
        return str(self.files[split.name])

    def differences(self, splits: list[SplitSummary]) -> list[str]:
        lines = super().differences(splits)
        # The release of Pathfinder has no splits.
        if self.size is not None:
            total = sum(split.examples for split in splits)
            official = official_images(self.size, self.contour)
            if total != official:
                lines.append(f"all splits have {total:,} images, but the official data has {official:,}")
        if self.task == "listops":
            lines += expression_differences(splits)
        # The scripts that write pickles cut texts: Nystromformer's cuts reviews to 1,000 bytes, as task=text_1k does.
        if self.task in TEXT_LIMITS:
            lengths = Counter(length for split in splits for length in split.lengths)
            longest = max(lengths, default=0)
            if lengths[longest] > 1 and longest < TEXT_LIMITS[self.task]:
                lines.append(
                    f"{lengths[longest]:,} texts have {longest:,} tokens and none has more: longer ones were cut"
                )
        # They also repeat the training images without end. A copy may take its validation set from train.
        if self.task == "image":
            total = sum(split.examples for split in splits if split.name != "test")
            official = BatchCollector.sizes["train"]
            if total != official:
                lines.append(f"train and val have {total:,} examples, but the official data has {official:,}")
        return lines

    def may_be_equal(self, first: SplitSummary, second: SplitSummary) -> bool:
        # The papers validate Text on its test set, which the public scripts write twice.
        return self.task == "text" and {first.name, second.name} == {"val", "test"}
