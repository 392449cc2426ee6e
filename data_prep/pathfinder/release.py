"""The official Pathfinder images, from a folder or streamed from the release archive.

They are curv_contour_length_14/imgs/N/sample_i.png (curv_baseline and curv_contour_length_9 for the shorter curves),
below pathfinder32, pathfinder64, pathfinder128 or pathfinder256. metadata/N.npy beside imgs are texts with a line for
each image: folder, file, number, label and parameters.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from lra.data.source import Progress, no_room

from ..archive import fingerprint, members, reading

FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}

Listed = list[tuple[str, int]]  # (imgs/N/sample_i.png, label) of each image


def listing(metadata: dict[str, Iterable[bytes]], where: str) -> Listed:
    """List the images of metadata/<key>.npy in the order of the keys. Raises ValueError for a bad line or none."""
    if not metadata:
        raise ValueError(f"{where} has no metadata/*.npy: release must be the folder around it or the release archive")
    entries = []
    for stem in sorted(metadata, key=lambda stem: (len(stem), stem)):
        for number, line in enumerate(metadata[stem], start=1):
            fields = line.decode(errors="replace").split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                bad = f"{where}/metadata/{stem}.npy, line {number}"
                raise ValueError(f"{bad}: not a folder, a file, a number and a label")
            entries.append((f"{fields[0]}/{fields[1]}", int(fields[3])))
    return entries


def decode(file: BinaryIO | Path, size: int) -> np.ndarray | None:
    """Decode grey pixels (size, size) uint8; None if the file holds no such image."""
    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("L"))
    except (OSError, UnidentifiedImageError, SyntaxError):
        return None
    return pixels if pixels.shape == (size, size) else None


class Folder:
    """The folder of one contour, or one around it."""

    def __init__(self, path: Path, *, size: int, contour: int):
        inner = FOLDERS[contour]
        around = (path / f"pathfinder{size}" / inner, path / inner, path)
        self.path, self.size = next(folder for folder in around if folder.is_dir() or folder == path), size

    @property
    def identity(self) -> dict[str, Any]:
        listed = hashlib.sha256("\n".join(f"{name} {label}" for name, label in self.listed).encode()).hexdigest()
        return {"images": len(self.listed), "sha256 of names and labels": listed}

    @cached_property
    def listed(self) -> Listed:
        files = self.path.glob("metadata/*.npy")
        return listing({path.stem: path.read_bytes().splitlines() for path in files}, str(self.path))

    def fetch(self, root: Path, progress: Progress) -> None:
        """Do nothing: images are read in place."""

    def pixels(self, name: str) -> np.ndarray | None:
        return decode(self.path / name, self.size)


class Archive:
    """The release archive.

    One pass over it, in `fetch`, stores the decoded images in an unnamed file in `root`, so that memory is bounded and
    a killed process leaves nothing behind.
    """

    def __init__(self, path: Path, *, size: int, contour: int):
        self.path, self.size, self.inner = path, size, f"/pathfinder{size}/{FOLDERS[contour]}/"

    @property
    def identity(self) -> dict[str, Any]:
        return {"archive": fingerprint(self.path)}

    def fetch(self, root: Path, progress: Progress) -> None:
        metadata, self.rows = {}, {}
        root.mkdir(parents=True, exist_ok=True)
        self.images = tempfile.TemporaryFile(dir=root)  # noqa: SIM115 read by `pixels`, closed with this object
        with reading(self.path), no_room(root):
            for name, content in self._members(progress):
                if name.startswith("metadata/") and name.endswith(".npy"):
                    metadata[Path(name).stem] = content.read().splitlines()
                elif name.startswith("imgs/") and (pixels := decode(content, self.size)) is not None:
                    self.rows[name] = len(self.rows) * self.size**2
                    self.images.write(pixels.tobytes())
            self.images.flush()
        self.listed = listing(metadata, f"{self.path}:{self.inner.rstrip('/')}")

    def _members(self, progress: Progress) -> Iterator[tuple[str, BinaryIO]]:
        for name, content in members(self.path, lambda name: self.inner in f"/{name}", progress):
            yield f"/{name}".partition(self.inner)[2], content

    def pixels(self, name: str) -> np.ndarray | None:
        if name not in self.rows:
            return None
        stored = os.pread(self.images.fileno(), self.size**2, self.rows[name])
        return np.frombuffer(stored, np.uint8).reshape(self.size, self.size)
