"""The unpacked aclImdb folder of the IMDb reviews: {train,test}/{neg,pos}/<id>_<rating>.txt."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra.data.progress import Progress, ReadMeter

from ..archive import hash_states

LABELS = {"neg": 0, "pos": 1}
FILE = re.compile(r"\d+_\d+\.txt")
PARTS = ("train", "test")
REPORT_INTERVAL = 1000  # files between two reports of the progress


class AclImdb:
    """The reviews of an unpacked folder, in the order of the official archive's sorted names.

    Args:
        path: the folder aclImdb.

    Raises:
        ValueError: one of the four folders of reviews is missing or empty.
    """

    def __init__(self, path: Path):
        self.path = path
        self.names: dict[str, list[str]] = {}
        for part in PARTS:
            self.names[part] = []
            # Negative reviews come before positive ones, as in the sorted names of the archive.
            for sentiment in LABELS:
                folder = path / part / sentiment
                files = sorted(name for name in _names(folder) if FILE.fullmatch(name))
                if not files:
                    raise ValueError(f"{folder} holds no <id>_<rating>.txt: the folder of reviews is incomplete")
                self.names[part] += [f"{sentiment}/{name}" for name in files]

    @property
    def identity(self) -> dict[str, Any]:
        """Number of the reviews, and a checksum of their names and contents."""
        digest = hashlib.sha256()
        for name, path in self._paths():
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
        return {"reviews": sum(map(len, self.names.values())), "sha256": digest.hexdigest()}

    def stamp(self) -> str:
        """Summarise the state of the files without reading them.

        Raises:
            ValueError: reviews were added to the folder or removed from it after it was opened.
        """
        # A copy that is still being made has more files each time it is listed.
        if AclImdb(self.path).names != self.names:
            raise ValueError(f"{self.path}: reviews were added or removed since it was opened; run the command again")
        return hash_states((name, path.stat()) for name, path in self._paths())

    def _paths(self) -> Iterator[tuple[str, Path]]:
        """Yield name and path of each review."""
        for part, names in self.names.items():
            for name in names:
                yield f"{part}/{name}", self.path / part / name

    def read(self, progress: Progress) -> dict[str, list[tuple[tuple[bytes], int]]]:
        """Read text and label of every review of train and test.

        Raises:
            ValueError: a file cannot be read, or has no text.
        """
        total = sum(map(len, self.names.values()))
        num_read = 0
        reviews: dict[str, list[tuple[tuple[bytes], int]]] = {}
        with ReadMeter(str(self.path)) as meter:
            for part, names in self.names.items():
                reviews[part] = []
                for name in names:
                    path = self.path / part / name
                    try:
                        text = path.read_bytes()
                    except OSError as error:
                        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
                    meter.add(len(text))
                    # Without white space around it, as TFDS's imdb_reviews stores a review.
                    review = text.strip()
                    if not review:
                        raise ValueError(f"{path} is empty: get the reviews again")
                    sentiment = name.partition("/")[0]
                    reviews[part].append(((review,), LABELS[sentiment]))
                    # Reported now and then, since a report takes longer than a file.
                    num_read += 1
                    if num_read % REPORT_INTERVAL == 0 or num_read == total:
                        progress("reviews", num_read, total)
        return reviews


def find_folder(path: Path) -> Path | None:
    """Find the folder of the reviews, which is the path or its subfolder aclImdb; None if there is none."""
    for folder in (path, path / "aclImdb"):
        if (folder / "train" / "pos").is_dir() or (folder / "test" / "pos").is_dir():
            return folder
    return None


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []
