"""Genome (DDcDNA of PSF-Attn, Khalitov et al. 2022): dog or donkey, from two FASTA files of complementary DNA."""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.progress import Progress, ReadMeter
from lra.data.split import ExampleChunk

from .archive import expand, file_identity, hash_states
from .examples import chunks
from .file_source import FileSource
from .lines import BYTE_ORDER_MARK, impostor, metered

LETTERS = "agctn"  # ids 1..5; 0 is padding (PSF-Attn: 0..4, padding 5)
# The id of each byte, 0 for a byte that is not a letter of a sequence.
_LETTER_OF_BYTE = [chr(byte).lower() if byte < 128 else "?" for byte in range(256)]
_IDS = bytes(LETTERS.find(letter) + 1 for letter in _LETTER_OF_BYTE)


def read_fasta(path: Path, progress: Progress | None = None) -> Iterator[np.ndarray]:
    """Read the ids (length,) uint8 of each sequence of a FASTA file, plain or gzip.

    Raises:
        ValueError: the file cannot be read, holds no sequence, or has a line that is not FASTA.
    """
    # The size of what is inside a compressed file is unknown.
    is_compressed = path.suffix == ".gz"
    total = None if is_compressed or not path.is_file() else path.stat().st_size
    open_file = gzip.open if is_compressed else open
    number = 0
    header = 0  # line of the sequence that is being read
    parts: list[bytes] = []
    try:
        with open_file(path, "rb") as file, ReadMeter(str(path), progress, path.name, total) as meter:
            for number, line in enumerate(metered(file, meter), start=1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                    other = impostor(line)
                    if other is not None:
                        raise ValueError(f"{path} {other}")
                line = line.strip()
                if line.startswith(b">"):
                    # A heading ends the sequence before it.
                    if header:
                        yield _sequence(parts, path, header)
                    header = number
                    parts = []
                    continue
                if line and not header:
                    raise ValueError(f"{path}, line {number}: a sequence without a > line before it")
                # Letters to ids; 0 is a letter that is unknown.
                ids = line.translate(_IDS)
                if 0 in ids:
                    letter = chr(line[ids.index(0)])
                    raise ValueError(f"{path}, line {number}: unknown letter {letter!r}; the letters are {LETTERS}")
                parts.append(ids)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}, after line {number}: cannot be read ({reason})") from None
    if not header:
        raise ValueError(f"{path}, line {number}: the file ends without a sequence")
    yield _sequence(parts, path, header)


def _sequence(parts: list[bytes], path: Path, header: int) -> np.ndarray:
    ids = b"".join(parts)
    if not ids:
        raise ValueError(f"{path}, line {header}: a > line without a sequence after it")
    return np.frombuffer(ids, np.uint8)


def split_indices(n: int, seed: int) -> dict[str, np.ndarray]:
    """Split the indices of n examples: 20 percent test, 25 percent of the remaining ones val, both rounded up."""
    # As scikit-learn's train_test_split(random_state=seed) called twice, with a new RandomState each time.
    order = np.random.RandomState(seed).permutation(n)
    test, remaining = np.split(order, [ceil(0.2 * n)])
    second_order = np.random.RandomState(seed).permutation(len(remaining))
    shuffled = remaining[second_order]
    val, train = np.split(shuffled, [ceil(0.25 * len(remaining))])
    return {"train": train, "val": val, "test": test}


class Genome(FileSource):
    """Complementary DNA over a, g, c, t and the unknown base n; the label is 0 for dog, 1 for donkey.

    Example: ATGGCN... of a dog is 1 4 2 2 3 5 ... with label 0. Sequences are stored whole and cut when they are read.
    Dogs are before donkeys in the order that is split.

    Args:
        dog, donkey: FASTA files, plain or .gz, such as the *.cdna.all.fa.gz of Ensembl.
        longer_than: sequences of more bases are kept.
        seed: seed of the split.
    """

    name = "genome"
    version = "1.0.0"
    generated = False
    manual = True
    licence = "Ensembl: no restrictions, its publications to be cited"
    origin = "Ensembl complementary DNA of dog and donkey; Khalitov et al. 2022 (PSF-Attn)"
    alphabet = ("", *LETTERS)
    classes = ("dog", "donkey")
    locations = ("dog", "donkey")
    content_keys = ("dog", "donkey")

    def __init__(
        self,
        *,
        dog: Path | str | None = None,
        donkey: Path | str | None = None,
        longer_than: int = 5_000,
        seed: int = 1,
    ):
        # The range of RandomState's seeds.
        if longer_than < 0 or not 0 <= seed < 2**32:
            raise ValueError("Genome needs longer_than >= 0 and a seed in 0..2**32 - 1")
        self.paths = {"dog": dog, "donkey": donkey}
        self.longer_than = longer_than
        self.seed = seed

    def files(self) -> dict[str, Path]:
        """The file of each species. Raises ValueError if one is not given or does not exist."""
        paths = self._require_paths()
        for species, path in paths.items():
            if not path.is_file():
                raise ValueError(f"source.{species}={path}: there is no such file")
        return paths

    def _require_paths(self) -> dict[str, Path]:
        """The path of each species. Raises ValueError if one is not given."""
        paths = {species: expand(path) for species, path in self.paths.items() if path is not None}
        if len(paths) < len(self.paths):
            command = "lra data task=genome source.dog=<path> source.donkey=<path>"
            raise ValueError(f"genome needs the cDNA of both species as FASTA files (plain or .gz): {command}")
        return paths

    @property
    def choices(self) -> dict[str, Any]:
        return {"longer_than": self.longer_than, "seed": self.seed}

    def content(self) -> dict[str, Any]:
        return {species: file_identity(path) for species, path in self.files().items()}

    def stamp(self) -> str | None:
        paths = self._require_paths()
        if not all(path.is_file() for path in paths.values()):
            return None
        return hash_states((species, path.stat()) for species, path in paths.items())

    def location(self) -> str:
        paths = [path.absolute() for path in self._require_paths().values()]
        return ", ".join(map(str, paths))

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        # All dogs, then all donkeys: the split is drawn from this order.
        sequences = []
        labels = []
        for label, (species, path) in enumerate(self.files().items()):
            every_sequence = read_fasta(path, progress)
            selected = [ids for ids in every_sequence if len(ids) > self.longer_than]
            # An empty class would make the task trivial.
            if not selected:
                raise ValueError(f"{path}: no sequence of {species} has more than {self.longer_than} bases")
            sequences += selected
            labels += [label] * len(selected)
        if len(sequences) < 3:
            raise ValueError(f"genome finds {len(sequences)} sequences of more than {self.longer_than} bases, too few")
        # The examples of a split are in the order of its indices.
        splits = {}
        for split, index in split_indices(len(sequences), self.seed).items():
            examples = (((sequences[i],), labels[i]) for i in index.tolist())
            splits[split] = chunks(examples, split, len(index), progress)
        return splits
