"""Retrieval: pairs of papers of the ACL Anthology Network (Radev et al. 2013), as in the Long Range Arena."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lra.data.progress import Progress
from lra.data.split import ExampleChunk

from .examples import chunks
from .file_source import FileSource
from .formats.detect import open_reader
from .formats.layout import Reader
from .lines import text_lines
from .release import OFFICIAL, Lines, Release, has_tables, unless_empty

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
MAX_BYTES = 10_000  # per text, as in the official pipeline; the task reads fewer
OFFICIAL_SIZES = {"train": 147_086, "val": 18_090, "test": 17_437}
LABELS = {b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1}

Pair = tuple[tuple[bytes, bytes], int]  # both texts, label
AnyPair = TypeVar("AnyPair", bound=tuple[tuple, int])  # texts of any kind, label


def unwrap(text: bytes) -> bytes:
    """Evaluate a text that is a Python bytes literal (b'...'), else return it. Raises ValueError if it is broken."""
    # A literal begins with b and a quote, and ends with the same quote.
    begins = text.startswith((b"b'", b'b"'))
    ends = text[-1:] == text[1:2] and len(text) >= 3
    if not (begins and ends):
        return text
    try:
        value = ast.literal_eval(text.decode())
    except (SyntaxError, ValueError):
        value = None
    # Another value, such as a tuple of literals, or no valid literal.
    if not isinstance(value, bytes):
        raise ValueError("a text looks like a Python bytes literal but is not a valid one")
    return value


def read_pairs(lines: Iterable[bytes], name: str, literals: bool = False) -> Iterator[Pair]:
    """Read both texts, cut to MAX_BYTES, and the label of every line.

    Args:
        lines: lines of the file.
        name: name of the file, for messages.
        literals: whether to evaluate texts that are Python bytes literals.

    Raises:
        ValueError: a line does not have the official five fields or label, or a literal is broken.
    """
    for number, line in text_lines(lines, name):
        fields = line.split(b"\t")
        if len(fields) != 5:
            raise ValueError(f"{name}, line {number}: {len(fields)} fields instead of label, id, id, text, text")
        label, _, _, *texts = fields
        if label not in LABELS:
            raise ValueError(f"{name}, line {number}: the label is {str(label[:20])[1:]}, not 0.0 or 1.0")
        # The official pipeline reads the texts as they are written, literals included.
        try:
            if literals:
                texts = [unwrap(text) for text in texts]
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        first, second = texts
        yield (first[:MAX_BYTES], second[:MAX_BYTES]), LABELS[label]


def balanced(pairs: Iterable[AnyPair], size: int, name: str) -> Iterator[AnyPair]:
    """Take the first size / 2 pairs of each label in their order; if the size is odd, label 0 has one pair more.

    Raises:
        ValueError: there are fewer pairs of a label.
    """
    # Pairs of each label that are still to be taken.
    missing = Counter({0: size - size // 2, 1: size // 2})
    for pair in pairs:
        label = pair[1]
        if missing[label]:
            missing[label] -= 1
            yield pair
        if not missing.total():
            return
    counts = f"{missing[0]} of label 0 and {missing[1]} of label 1 are missing"
    raise ValueError(f"{name}: {size} examples requested, {counts}")


class Retrieval(FileSource):
    """Pairs of texts of papers as bytes, up to 10,000 each; the label is 1 if one paper cites the other, else 0.

    Example: (b"A Maximum Entropy Approach to ...", b"The Mathematics of Statistical ...") is 1.

    Args:
        release: the folder of new_aan_pairs.{train,eval,test}.tsv, plain or .gz, a folder up to four levels above it,
            or the release archive; None to download that. Or a copy in a format of ``data_prep.formats``, whose texts
            are read whole.
        literals: whether to evaluate texts of the official files that are Python bytes literals (b'...'), which the
            official pipeline reads as they are written.
        train, val, test: numbers of examples, the first ones with equal numbers of both labels; None for all.
        url, sha256, archive: see ``download.Download``.
        columns: names of the columns of parquet and arrow files: both texts, then the label; None for the usual names.
    """

    name = "retrieval"
    version = "2.0.0"
    generated = False
    licence = "ACL Anthology: CC BY-NC-SA 3.0 before 2016, CC BY 4.0 since; AAN to be cited (Radev et al. 2013)"
    origin = "new_aan_pairs of the Long Range Arena release"
    towers = 2
    locations = ("release", "url", "archive")
    content_keys = ("release",)
    release: Reader | Release | None
    files: Reader | Release

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
        columns: list[str] | None = None,
    ):
        has_empty_split = any(size is not None and size < 1 for size in (train, val, test))
        if has_empty_split:
            raise ValueError("Retrieval needs at least one example in train, val and test")
        if release is not None and any((url, sha256, archive)):
            raise ValueError("source.release names the files, so source.url, sha256 and archive must be left out")
        self.literals = literals
        self.sizes = {"train": train, "val": val, "test": test}
        self.download = OFFICIAL.replace(url=url, sha256=sha256, archive=archive)
        # A copy in another format, else the official files.
        has_official = partial(has_tables, files=FILES)
        copy = open_reader(release, self.name, columns=columns, has_official=has_official)
        self.release: Reader | Release | None = copy
        if release is not None and copy is None:
            self.release = Release(path=release, files=FILES)

    @property
    def choices(self) -> dict[str, Any]:
        return {"literals": self.literals, **self.sizes}

    def content(self) -> dict[str, Any]:
        files = self.download if self.release is None else self.release
        return {"release": files.identity}

    def stamp(self) -> str | None:
        if self.release is not None:
            return self.release.stamp()
        return self.download.stamp()

    def location(self) -> str:
        if self.release is not None:
            return str(self.release.path.absolute())
        return self.download.location()

    def use_release(self, release: Path) -> None:
        # An address or a folder of the user has precedence.
        if self.release is None and self.download == OFFICIAL:
            self.release = unless_empty(Release(path=release, files=FILES), self.name)

    @property
    def num_val(self) -> int:
        return self.sizes["val"] or OFFICIAL_SIZES["val"]

    def fetch(self, root: Path, progress: Progress) -> None:
        if self.release is None:
            archive = self.download.fetch(root / "downloads", progress)
            self.files = Release(path=archive, files=FILES)
        else:
            self.files = self.release

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        if isinstance(self.files, Reader):
            return self.files.chunks(progress, self.sizes, balanced)
        return self.files.splits(partial(self._read, progress=progress), progress)

    def _read(self, lines: Lines, name: str, split: str, *, progress: Progress) -> Iterator[ExampleChunk]:
        # All pairs in the order of the file, or the first ones of each label.
        pairs = read_pairs(lines, name, self.literals)
        size = self.sizes[split]
        if size is not None:
            pairs = balanced(pairs, size, name)
        return chunks(pairs, split, size, progress)
