"""The official Pathfinder images, from a folder or streamed from the release archive; see ``listing`` for the files."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from lra.console import log
from lra.data.progress import DELAY, Progress, reporter
from lra.data.source import cores, explain_full_disk

from ..archive import DEPTH, ambiguous, file_identity, followed, hash_states, is_metadata, members, reading, subfolders
from ..examples import in_order
from .listing import BLOCK, CONTOUR_OF_FOLDER, FOLDERS, REMEDY, Listed, decode, listing

States = list[tuple[str, os.stat_result]]  # name and state of each file
Images = list[np.ndarray | None]  # pixels (size, size) uint8, None for an image that is empty, unreadable or missing


class Folder:
    """The unpacked images of one contour.

    Args:
        path: the folder of imgs and metadata, or a folder above it.
        size: side of an image in pixels.
        contour: paddles of a target.
    """

    def __init__(self, path: Path, *, size: int, contour: int):
        self.path = path
        self.size = size
        self.inner = FOLDERS[contour]

    @cached_property
    def candidates(self) -> list[Path]:
        """The path if it holds metadata, else every folder of this contour and size at or below it."""
        if (self.path / "metadata").is_dir():
            contour = CONTOUR_OF_FOLDER.get(self.path.absolute().name, CONTOUR_OF_FOLDER.get(self.path.resolve().name))
            if contour is not None and FOLDERS[contour] != self.inner:
                raise ValueError(f"{self.path} holds images of contour {contour}: add source.contour={contour}")
            return [self.path]
        folders = []
        for folder in subfolders(self.path, DEPTH + 1):
            size = re.fullmatch(r"pathfinder(\d+)", Path(os.path.abspath(folder)).parent.name)
            # Leave out the folders of other sizes; a folder whose parent has another name may hold any size.
            is_other_size = size is not None and int(size[1]) != self.size
            if folder.name == self.inner and not is_other_size:
                folders.append(folder)
        return folders

    @cached_property
    def folder(self) -> Path:
        """The folder that is read. Raises ValueError if there are copies with different content."""
        if not self.candidates:
            return self.path
        first = self.candidates[0]
        for copy in self.candidates[1:]:
            if not _is_equal(first, copy):
                places = [str(folder) for folder in self.candidates]
                raise ambiguous("source.release", places)
        return first

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The content of the images, whatever their place; images that are missing are part of it."""
        return _identity(self.folder)

    @cached_property
    def listed(self) -> Listed:
        return _listing(self.folder)

    def stamp(self) -> str | None:
        """Summarise the state of the files; None if the folder does not exist."""
        if not self.path.exists():
            return None
        states = []
        for folder in self.candidates:
            states += _states(folder)
        return hash_states(states)

    def fetch(self, root: Path, progress: Progress) -> None:
        """Log the folder if it is not the path; images are read in place."""
        if self.folder != self.path:
            log(f"reading {self.folder}")

    def pixels(self, names: list[str]) -> tuple[Images, int]:
        """Read and decode images in the calling thread; returns them and the number of bytes read."""
        contents = [_content(self.folder / name) for name in names]
        images = [decode(content, self.size) for content in contents]
        num_bytes = sum(len(content) for content in contents if content)
        return images, num_bytes

    def close(self) -> None:
        """Do nothing: no file is open."""


def _listing(folder: Path) -> Listed:
    metadata = {}
    for path in folder.glob("metadata/*.npy"):
        if not is_metadata(path.name):
            content = path.read_bytes()
            metadata[path.stem] = content.splitlines()
    return listing(metadata, str(folder))


def _states(folder: Path) -> States:
    """The name and the state of every file of a contour, sorted by name in each of its folders."""
    states = []
    folders = [folder / "metadata", *sorted(folder.glob("imgs/*"))]
    with reporter(folder.name, DELAY) as progress:
        for number, subfolder in enumerate(folders, start=1):
            if subfolder.is_dir():
                states += _states_of_files(subfolder)
            progress("folders", number, len(folders))
    return states


def _states_of_files(folder: Path) -> States:
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if followed(entry.is_file)]
    files.sort(key=lambda entry: entry.name)
    # scandir knows the kind of an entry without another system call, but not its size.
    states = []
    for entry in files:
        name = f"{folder.name}/{entry.name}"
        states.append((name, entry.stat()))
    return states


def _sizes(folder: Path) -> dict[str, int]:
    return {name: status.st_size for name, status in _states(folder)}


def _is_equal(first: Path, second: Path) -> bool:
    """Whether two folders hold the same images."""
    # Names, labels and sizes differ in most cases, so no image has to be read.
    if _listing(first) != _listing(second) or _sizes(first) != _sizes(second):
        return False
    return _identity(first) == _identity(second)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _identity(folder: Path) -> dict[str, Any]:
    """Count the listed images that are there and not empty, and hash all names, labels and contents."""
    entries = _listing(folder)
    starts = range(0, len(entries), BLOCK)

    # The line of each image, and whether the image is there and not empty.
    def digests(start: int) -> list[tuple[str, bool]]:
        lines = []
        for name, label in entries[start : start + BLOCK]:
            data = _content(folder / name)
            digest = "missing" if data is None else hashlib.sha256(data).hexdigest()
            line = f"{name} {label} {digest}\n"
            lines.append((line, bool(data)))
        return lines

    # Threads read ahead, the lines are hashed in the order of the listing.
    sha = hashlib.sha256()
    images = 0
    finished = 0
    with reporter(folder.name, DELAY) as progress:
        for lines in in_order(digests, starts, cores()):
            for line, is_there in lines:
                sha.update(line.encode())
                images += is_there
            finished += len(lines)
            progress("checksums of images", finished, len(entries))
    return {"images": images, "sha256": sha.hexdigest()}


@dataclass
class _Copy:
    """The images of one folder of an archive: where their pixels are stored, and digests of all files."""

    metadata: dict[str, list[bytes]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, data: bytes, where: str) -> bool:
        """Note a file; False if its image is stored already. Raises ValueError if a repetition has another content."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        before = self.digests.setdefault(name, digest)
        if before != digest:
            remedy = "unpack it, which keeps the last copy, and set source.release to the folder"
            raise ValueError(f"{where}/{name} is in the archive twice with different content: {remedy}")
        return self.positions.get(name) is None


class Archive:
    """The images of one size and contour in the release archive.

    One pass over it, in ``fetch``, stores the decoded images in an unnamed file in ``root``, so that memory is bounded
    and a killed process leaves nothing behind.

    Args:
        path: the archive.
        inside: folder in the archive that holds the images, at any depth; "" for the whole archive.
        size: side of an image in pixels.
        contour: paddles of a target.
    """

    def __init__(self, path: Path, *, inside: str = "", size: int, contour: int):
        self.path = path
        self.inside = inside
        self.size = size
        self.inner = f"pathfinder{size}/{FOLDERS[contour]}"
        # The folder of the contour, and the path below it.
        self.member = re.compile(rf"((?:.*/)?{self.inner})/((metadata|imgs)/.+)")

    @cached_property
    def identity(self) -> dict[str, Any]:
        identity = {"archive": file_identity(self.path)}
        return identity | {"inside": self.inside} if self.inside else identity

    def stamp(self) -> str | None:
        return hash_states([(self.inside, self.path.stat())])

    def fetch(self, root: Path, progress: Progress) -> None:
        copies: dict[str, _Copy] = {}
        root.mkdir(parents=True, exist_ok=True)
        self.images = tempfile.TemporaryFile(dir=root)  # noqa: SIM115 read by ``pixels``, closed by ``close``
        count = 0
        with reading(self.path), explain_full_disk(root):
            for folder, name, content in self._members(progress):
                copy = copies.setdefault(folder, _Copy())
                data = content.read()
                is_new = copy.add(name, data, f"{self.path}/{folder}")
                if name.startswith("metadata/") and name.endswith(".npy"):
                    copy.metadata[Path(name).stem] = data.splitlines()
                elif name.startswith("imgs/") and is_new:
                    pixels = decode(data, self.size)
                    if pixels is not None:
                        # The position is a count of images written, not of names: names repeat in some archives.
                        copy.positions[name] = count * self.size**2
                        count += 1
                        self.images.write(pixels.tobytes())
            self.images.flush()
        self._choose(copies)

    def _members(self, progress: Progress) -> Iterator[tuple[str, str, IO[bytes]]]:
        """Yield the folder of the contour, the name below it and the content of each file of this size and contour."""
        inside = f"{self.inside}/" if self.inside else ""

        def wanted(name: str) -> re.Match | None:
            return self.member.fullmatch(name) if name.startswith(inside) else None

        for name, content in members(self.path, wanted, progress):
            match = wanted(name)
            if match is not None:
                folder, below, _ = match.groups()
                yield folder, below, content

    def _choose(self, copies: dict[str, _Copy]) -> None:
        """Take the first folder of the contour. Raises ValueError if there is none or another one has other files."""
        folders = list(copies)
        if not folders:
            raise ValueError(f"{self.path}:/{self.inner} has no metadata/*.npy: {REMEDY}")
        first = copies[folders[0]]
        is_ambiguous = any(copy.digests != first.digests for copy in copies.values())
        if is_ambiguous:
            places = [f"{self.path}/{folder}" for folder in folders]
            raise ambiguous("source.release", places)
        where = f"{self.path}:/{folders[0]}"
        self.listed = listing(first.metadata, where)
        self.positions = first.positions
        if len(folders) > 1:
            log(f"{self.path}: {' and '.join(folders)} are equal")

    def pixels(self, names: list[str]) -> tuple[Images, int]:
        """Return the images that ``fetch`` decoded, and the number of bytes read."""
        images = [self._image(name) for name in names]
        num_images = sum(image is not None for image in images)
        return images, num_images * self.size**2

    def close(self) -> None:
        """Remove the decoded images, and the file: workers of a DataLoader get a copy of the source by pickle."""
        self.images.close()
        del self.images

    def _image(self, name: str) -> np.ndarray | None:
        if name not in self.positions:
            return None
        # Threads share the file, so each read names its position.
        num_bytes = self.size**2
        data = os.pread(self.images.fileno(), num_bytes, self.positions[name])
        return np.frombuffer(data, np.uint8).reshape(self.size, self.size)
