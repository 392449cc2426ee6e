"""Summaries of the files of a task: counts, lengths, labels, checksums, damage, differences from the official data.

A collector takes the files of one task from one place, a folder or an archive, one after the other and in any order.
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.stats import chi2_contingency

from . import listops, retrieval
from .expressions import check_answer, encode
from .lines import BYTE_ORDER_MARK, impostor

MOST_FAULTS = 5  # lines of a file that are named; further ones are counted
UNLIKELY = 1e-6  # p-value below which a histogram of labels is not the official one

# Labels of 100,000 trees of the official generator's settings; its files have the same distribution.
LISTOPS_LABELS = [17_146, 9_070, 7_746, 8_313, 8_818, 8_661, 7_650, 7_144, 8_754, 16_698]


@dataclass
class SplitSummary:
    """The content of one split.

    Args:
        name: train, val, test or all.
        lengths: tokens, bytes or pixels of each sequence.
        labels: number of examples of each label.
        sha256: checksum of its content, of files in gzip after decompression.
    """

    name: str
    lengths: list[int] = field(default_factory=list)
    labels: Counter = field(default_factory=Counter)
    sha256: str = ""

    @property
    def examples(self) -> int:
        return self.labels.total()

    def __str__(self) -> str:
        shares = [f"{label}:{count:,}" for label, count in sorted(self.labels.items())]
        # The smallest, the median and the largest length.
        if self.lengths:
            low, middle, high = np.quantile(self.lengths, [0, 0.5, 1], method="nearest")
            lengths = f"length {low:,} / {middle:,} / {high:,}"
        else:
            lengths = "no sequence"
        counts = f"{self.name:<6} {self.examples:>8,} examples"
        return f"{counts}  {lengths}  labels {' '.join(shares)}  sha256 {self.sha256[:16]}"


class Collector(ABC):
    """The files of one task in one place.

    Args:
        place: folder, or archive and folder inside it.
    """

    task: str
    option: str = "source.release"
    sizes: Mapping[str, int]  # official number of examples of each split
    # Pathfinder: side of an image in pixels, and paddles of a target.
    size: int | None = None
    contour: int | None = None

    def __init__(self, place: str):
        self.place = place
        self.faults: list[str] = []
        self.tolerated: list[str] = []

    @abstractmethod
    def add(self, name: str, data: Iterable[bytes]) -> None:
        """Read a file of the task.

        Args:
            name: path below the place.
            data: its lines or blocks.
        """

    @cached_property
    def splits(self) -> list[SplitSummary]:
        """The splits, once all files are added."""
        return self.summarise()

    @abstractmethod
    def summarise(self) -> list[SplitSummary]:
        """Summarise the splits, once all files are added; faults that need all files are added to ``faults``."""

    def differences(self, splits: list[SplitSummary]) -> list[str]:
        """List what differs from the official data: numbers of examples, and splits that are equal."""
        counts = {split.name: split.examples for split in splits}
        lines = []
        for name, size in self.sizes.items():
            count = counts.get(name, 0)
            if count != size:
                lines.append(f"{name} has {count:,} examples, but the official data has {size:,}")
        for first, second in itertools.combinations(splits, 2):
            if self.may_be_equal(first, second):
                continue
            if first.examples and self.content(first) == self.content(second):
                lines.append(f"{self.file(first)} and {self.file(second)} have the same content")
        return lines

    def may_be_equal(self, first: SplitSummary, second: SplitSummary) -> bool:
        """Whether official copies have the same examples in both splits."""
        return False

    def content(self, split: SplitSummary) -> str:
        """A checksum that equal splits have in common."""
        return split.sha256

    def file(self, split: SplitSummary) -> str:
        """The file or the folder of a split, for messages."""
        return f"{self.place}/{split.name}"


class TableCollector(Collector):
    """Tab-separated files, one for each split."""

    files: ClassVar[dict[str, str]]

    def __init__(self, place: str):
        super().__init__(place)
        self.summaries: dict[str, SplitSummary] = {}
        # Splits whose file is there, even if it cannot be read to its end.
        self.present: set[str] = set()

    @abstractmethod
    def parse(self, number: int, line: bytes) -> tuple[list[int], int] | None:
        """Read one line: lengths of its sequences and label; None for a heading. Raises ValueError for a bad line."""

    def add(self, name: str, data: Iterable[bytes]) -> None:
        file_name = name.removesuffix(".gz").rpartition("/")[2]
        splits = {file: split for split, file in self.files.items()}
        split = splits[file_name]
        self.present.add(split)
        path = f"{self.place}/{name}"
        summary = SplitSummary(split)
        sha = hashlib.sha256()
        blank = []
        faults = []
        number = 0
        for number, raw in enumerate(data, start=1):
            # The checksum covers the lines as they are, with their ends.
            sha.update(raw)
            line = raw.rstrip(b"\r\n")
            # The first line shows whether this is a text table at all.
            if number == 1:
                description = impostor(raw)
                if description is not None:
                    faults.append(f"{path} {description}")
                    break
                line = line.removeprefix(BYTE_ORDER_MARK)
            # Blank lines are remembered, since the last lines of a file may be blank.
            if not line.strip():
                blank.append(number)
                continue
            # A blank line is a fault if another line follows.
            faults += [f"{path}, line {earlier}: is blank" for earlier in blank]
            blank.clear()
            try:
                parsed = self.parse(number, line)
            except ValueError as error:
                faults.append(f"{path}, line {number}: {error}")
                continue
            # A heading has no example.
            if parsed is not None:
                lengths, label = parsed
                summary.lengths += lengths
                summary.labels[label] += 1
        # The end of the file: nothing at all, blank lines, or a line that is cut.
        if number == len(blank):
            faults.append(f"{path}: is empty")
        elif blank:
            self.tolerated.append(f"{path}, line {blank[0]}: blank lines at the end")
        has_open_end = number > 0 and not raw.endswith(b"\n")
        if has_open_end and not faults and number not in blank:
            self.tolerated.append(f"{path}, line {number}: no line end, the file may be truncated")
        self.faults += shorten(faults, path)
        summary.sha256 = sha.hexdigest()
        # The reader rejects two versions of a file in one archive.
        previous = self.summaries.get(split)
        if previous is not None and previous.sha256 != summary.sha256:
            self.faults.append(f"{path}: occurs twice with different content")
        self.summaries[split] = summary

    def file(self, split: SplitSummary) -> str:
        return f"{self.place}/{self.files[split.name]}"

    def summarise(self) -> list[SplitSummary]:
        for split, file in self.files.items():
            if split not in self.present:
                self.faults.append(f"{self.place}/{file}: is missing")
        return [self.summaries[split] for split in self.files if split in self.summaries]


def shorten(faults: list[str], place: str) -> list[str]:
    """Keep the first faults of a file or folder and count the others."""
    if len(faults) <= MOST_FAULTS:
        return faults
    num_others = len(faults) - MOST_FAULTS
    return [*faults[:MOST_FAULTS], f"{place}: {num_others:,} more faults"]


def expression_differences(splits: list[SplitSummary]) -> list[str]:
    """List how the lengths and the answers of expressions differ from the official ones."""
    lines = []
    for split in splits:
        lengths = np.array(split.lengths)
        outside = np.count_nonzero((lengths <= 500) | (lengths >= 2000))
        if outside:
            lines.append(f"{split.name}: {outside:,} expressions do not have 501 to 1,999 tokens")
    # A chi-square test of homogeneity: the histogram of the official settings is a sample as well.
    total = sum((split.labels for split in splits), Counter())
    counts = [total[label] for label in range(10)]
    if sum(counts) >= 1000:
        p_value = chi2_contingency([counts, LISTOPS_LABELS]).pvalue
        if p_value < UNLIKELY:
            lines.append(f"the histogram of the answers is not the official one (p = {p_value:.0e})")
    return lines


class ListOpsCollector(TableCollector):
    task = "listops"
    sizes = listops.OFFICIAL_SIZES
    files = listops.FILES

    def parse(self, number: int, line: bytes) -> tuple[list[int], int] | None:
        fields = line.decode(errors="replace").split("\t")
        if number == 1:
            if fields != ["Source", "Target"]:
                raise ValueError("the first line must be Source, a tab, Target")
            return None
        # An expression, and its value.
        if len(fields) != 2:
            raise ValueError(f"{len(fields)} columns instead of 2, an expression and a digit")
        expression, digit = fields
        if len(digit) != 1 or digit not in "0123456789":
            raise ValueError(f"the answer {digit[:20]!r} is not a digit")
        ids = encode(expression)
        check_answer(ids, int(digit))
        return [len(ids)], int(digit)

    def differences(self, splits: list[SplitSummary]) -> list[str]:
        return super().differences(splits) + expression_differences(splits)


class RetrievalCollector(TableCollector):
    task = "retrieval"
    sizes = retrieval.OFFICIAL_SIZES
    files = retrieval.FILES

    def parse(self, number: int, line: bytes) -> tuple[list[int], int] | None:
        fields = line.split(b"\t")
        if len(fields) != 5:
            raise ValueError(f"{len(fields)} columns instead of 5, label, id, id, text, text")
        label, _, _, first, second = fields
        if label not in retrieval.LABELS:
            raise ValueError(f"the label is {str(label[:20])[1:]}, not 0.0 or 1.0")
        return [len(first), len(second)], retrieval.LABELS[label]
