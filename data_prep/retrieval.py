"""Retrieval: pairs of papers of the ACL Anthology Network (Radev et al. 2013), as in the Long Range Arena."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from lra.data.source import Progress, Source
from lra.data.store import ExampleChunk

from .examples import chunks
from .release import OFFICIAL, Release

FILES = {split: f"new_aan_pairs.{name}.tsv" for split, name in (("train", "train"), ("val", "eval"), ("test", "test"))}
KEPT = 10_000  # bytes of a text, as in the official pipeline; the task reads fewer
VAL = 18_090  # official pairs of dev
LABELS = {b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1}

Pair = tuple[tuple[bytes, bytes], int]  # both texts, label


def unwrap(text: bytes) -> bytes:
    """Evaluate a text that is a Python bytes literal (b'...'), else return it. Raises ValueError if it is broken."""
    if not text.startswith((b"b'", b'b"')) or text[-1:] != text[1:2] or len(text) < 3:
        return text
    try:
        value = ast.literal_eval(text.decode())
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, bytes):
        raise ValueError("a text looks like a Python bytes literal but is none")
    return value


def read_pairs(lines: Iterable[bytes], name: str, literals: bool = False) -> Iterator[Pair]:
    """Read both texts and the label of every line.

    Args:
        lines: lines of the file.
        name: name of the file, for messages.
        literals: whether to evaluate texts that are Python bytes literals.

    Raises:
        ValueError: a line does not have the official five fields.
    """
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip(b"\r\n").split(b"\t")
        if len(fields) != 5:
            raise ValueError(f"{name}, line {number}: {len(fields)} fields instead of label, id, id, text, text")
        label, _, _, *texts = fields
        if label not in LABELS:
            raise ValueError(f"{name}, line {number}: the label is {str(label[:20])[1:]}, not 0.0 or 1.0")
        try:
            first, second = ((unwrap(text) if literals else text)[:KEPT] for text in texts)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        yield (first, second), LABELS[label]


def balanced(pairs: Iterable[Pair], size: int, name: str) -> Iterator[Pair]:
    """Take the first size / 2 pairs of each label, an odd one of label 0, in order. Raises ValueError for fewer."""
    left = Counter({0: size - size // 2, 1: size // 2})
    for pair in pairs:
        if left[pair[1]]:
            left[pair[1]] -= 1
            yield pair
        if not left.total():
            return
    raise ValueError(f"{name}: {size} examples asked for, {left[0]} of label 0 and {left[1]} of label 1 are missing")


class Retrieval(Source):
    """Pairs of texts of papers as bytes, up to 10,000 each; the label is 1 if one paper cites the other, else 0.

    Example: (b"A Maximum Entropy Approach to ...", b"The Mathematics of Statistical ...") is 1.

    Args:
        release: the folder of new_aan_pairs.{train,eval,test}.tsv, plain or .gz, the one around its tsv_data, or the
            release archive; None to download that.
        literals: whether to evaluate texts that are Python bytes literals (b'...'), which the official pipeline reads
            as they are written.
        train, val, test: numbers of examples, the first ones with equal numbers of both labels; None for all.
        url, sha256, archive: see `download.Download`.
    """

    name = "retrieval"
    version = "2.0.0"
    generated = False
    licence = "ACL Anthology: CC BY-NC-SA 3.0 before 2016, CC BY 4.0 since; AAN to be cited (Radev et al. 2013)"
    origin = "new_aan_pairs of the Long Range Arena release"
    towers = 2

    def __init__(
        self,
        *,
        release: Path | str | None = None,
        literals: bool = False,
        train: int | None = None,
        val: int | None = None,
        test: int | None = None,
        url: str | None = None,
        sha256: str | None = None,
        archive: Path | str | None = None,
    ):
        if any(size is not None and size < 1 for size in (train, val, test)):
            raise ValueError("Retrieval needs at least one example in train, val and test")
        if release is not None and any((url, sha256, archive)):
            raise ValueError("source.release says where the pairs are, so url, sha256 and archive must be left out")
        self.literals, self.sizes = literals, {"train": train, "val": val, "test": test}
        self.download = OFFICIAL.but(url=url, sha256=sha256, archive=archive)
        self.release = None if release is None else self._release(Path(release))

    @staticmethod
    def _release(path: Path) -> Release:
        return Release(path=path, inner="tsv_data", files=FILES)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return {"release": (self.release or self.download).identity, "literals": self.literals, **self.sizes}

    @property
    def dev_size(self) -> int:
        return self.sizes["val"] or VAL

    def fetch(self, root: Path, progress: Progress) -> None:
        self.opened = self.release or self._release(self.download.fetch(root / "downloads", progress))

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        def read(file: BinaryIO, name: str, split: str) -> Iterator[ExampleChunk]:
            pairs, size = read_pairs(file, name, self.literals), self.sizes[split]
            return chunks(pairs if size is None else balanced(pairs, size, name), split, size, progress)

        return self.opened.splits(read, progress)
