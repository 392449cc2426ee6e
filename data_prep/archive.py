"""The files of a task's source: where they are, in folders or inside archives, and what identifies them.

Archives are read as streams, without unpacking them to the disk.
"""

import functools
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from posixpath import normpath
from typing import IO, Any

from lra.data.progress import DELAY, Progress, ReadMeter, hash_file, reporter

# Bytes of a file from which hashing may take seconds.
LARGE = 2**27
# Levels of folders below the one that the user names.
DEPTH = 4
# Folders below which no task is: images and image lists of Pathfinder, metadata of macOS.
SKIPPED = {"imgs", "metadata", "__MACOSX"}
# First bytes of a zip archive.
ZIP = b"PK\x03\x04"
# Names of the release archive, looked for where a folder does not hold the files themselves.
ARCHIVES = ("lra_release.gz", "lra_release.tar.gz", "lra_release.tgz", "lra_release.tar")


def expand(path: Path | str) -> Path:
    """Replace a leading ~ by the home folder; a name that has no home folder stays as it is."""
    return Path(os.path.expanduser(path))


def subfolders(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield a folder and the folders below it, level by level and in the order of their names.

    Links to folders are followed; a folder that several paths lead to is yielded once. Hidden folders, those in
    ``SKIPPED`` and those that this user may not read, such as lost+found of a disk, are left out.
    """
    # Breadth first, so that the nearest folder comes first.
    level = [root]
    visited = set()
    for _ in range(depth + 1):
        below: list[Path] = []
        for folder in level:
            real = os.path.realpath(folder)
            if real in visited:
                continue
            visited.add(real)
            children = _children(folder)
            # The root is yielded in any case, so that opening its files gives an error that names them.
            if children is not None or folder == root:
                yield folder
                below += children or []
        level = below


def _children(folder: Path) -> list[Path] | None:
    """The folders in a folder in the order of their names; None if it is not a folder that this user may read."""
    # Names can be listed without the permission to open the files.
    if not os.access(folder, os.R_OK | os.X_OK):
        return None
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if followed(entry.is_dir)]
    except OSError:
        return None
    visible = [name for name in names if not name.startswith(".") and name not in SKIPPED]
    return [folder / name for name in sorted(visible)]


def followed(test: Callable[[], bool]) -> bool:
    """Call ``is_dir`` or ``is_file`` of an entry; False for a link that cannot be followed, such as one to itself."""
    try:
        return test()
    except OSError:
        return False


def split_files(folder: Path, files: Mapping[str, str]) -> dict[str, Path]:
    """Find the files of a task in one folder.

    Args:
        folder: folder that may hold them.
        files: file name of each split.

    Returns:
        The path of each split whose file exists, plain or with .gz appended; the plain one if both exist.
    """
    paths = {}
    for split, name in files.items():
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                paths[split] = path
                break
    return paths


def inside_archive(path: Path) -> tuple[Path, str]:
    """Split lra_release.gz/lra_release/listops-1000 into the archive and the path inside it, "" for the whole.

    A path that leads through no file is returned unchanged.
    """
    # The first part of the path that is a file is the archive.
    for archive in (path, *path.parents):
        if archive.is_file():
            inner = path.relative_to(archive).as_posix()
            return archive, "" if inner == "." else inner
    return path, ""


def ambiguous(option: str, places: list[str]) -> ValueError:
    """Describe several copies with different content and how to choose one of them."""
    listing = "; ".join(f"{option}={place}" for place in places)
    return ValueError(f"{len(places)} copies with different content were found; choose one: {listing}")


def file_identity(path: Path) -> dict[str, Any]:
    """Identify a file by its size and the sha256 of its content.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        status = os.stat(path)
        version = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest = _digest(str(path), status.st_size, *version)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return {"bytes": status.st_size, "sha256": digest}


@functools.lru_cache(256)
def _digest(path: str, size: int, *version: int) -> str:
    """Hash a file. The size and the other numbers, which change with the file, are keys of the cache."""
    return sha256(Path(path))


def sha256(path: Path, progress: Progress | None = None) -> str:
    """The sha256 of a file in hexadecimal digits.

    Args:
        path: path of the file.
        progress: reports the megabytes; None for a separate bar, which only a file of ``LARGE`` bytes or more has.
    """
    size = os.path.getsize(path)
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        if size >= LARGE and progress is None:
            progress = stack.enter_context(reporter(path.name, DELAY))
        meter = stack.enter_context(ReadMeter(str(path), progress, "checksum", size))
        return hash_file(file, meter)


def hash_states(files: Iterable[tuple[str, os.stat_result]]) -> str:
    """Hash the names, sizes, mtimes and ctimes of files, without reading their content.

    Equal hashes mean that no file has changed. The reverse does not hold: an equal copy has other times.

    Args:
        files: name and status of each file.
    """
    sha = hashlib.sha256()
    for name, status in files:
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        line = f"{name} {status.st_size} {times}\n"
        sha.update(line.encode(errors="surrogateescape"))
    return sha.hexdigest()


def archive_in(folder: Path) -> Path | None:
    """Return the archive of the release that a folder holds; None if it holds none."""
    for name in ARCHIVES:
        if (folder / name).is_file():
            return folder / name
    return None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of a damaged compressed file or archive in the block into a ValueError with the remedy."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # An errno means that the system failed, not a decompressor.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # tarfile appends a line for each compression that it tried.
        reason = str(error).partition(":\n")[0]
        raise ValueError(f"{path} is damaged or not an archive ({reason}): get it again") from None


def reject_zip(path: Path) -> None:
    """Raise ValueError if a path is a zip archive, which no reader of archives opens."""
    # An .npz file is a zip archive too, which is read as a part of its folder.
    if not path.is_file() or path.suffix == ".npz":
        return
    with open(path, "rb") as file:
        start = file.read(len(ZIP))
    if start == ZIP:
        raise ValueError(f"{path}: zip archives are not read; unpack it and use the folder")


def is_metadata(name: str) -> bool:
    """Whether a path is one of the files in which macOS keeps attributes of others, such as ._a.tsv."""
    parts = name.split("/")
    return "__MACOSX" in parts or any(part.startswith("._") for part in parts)


def members(path: Path, wanted: Callable[[str], Any], progress: Progress) -> Iterator[tuple[str, IO[bytes]]]:
    """Read files of a tar archive, compressed or not, in its order and in constant memory.

    Args:
        path: path of the archive.
        wanted: true for the name of a file to read; metadata of macOS are skipped in any case.
        progress: reports the bytes read.

    Yields:
        Name and content of each wanted file; the content is readable until the next is requested. Code that reads it
        belongs in a block of ``reading``.

    Raises:
        ValueError: the archive is damaged, or a zip archive.
    """
    reject_zip(path)
    with reading(path), open(path, "rb") as raw, tarfile.open(fileobj=raw) as tar:
        total = os.fstat(raw.fileno()).st_size
        with ReadMeter(str(path), progress, "archive", total) as meter:
            while True:
                # The next member, without the list of all of them that tarfile would build.
                member = tar.next()
                if member is None:
                    break
                name = normpath(member.name)
                if member.islnk() and wanted(name):
                    raise ValueError(f"{path}: {name} is a hard link; pack it again with tar --hard-dereference")
                # Folders and symbolic links have no content.
                is_file = member.isfile() and not is_metadata(name)
                file = tar.extractfile(member) if is_file and wanted(name) else None
                if file is not None:
                    yield name, file
                # tarfile keeps 1 KB for each of the release's millions of files. Its stubs lack the list of them.
                tar.members.clear()  # type: ignore[attr-defined]
                meter.add(raw.tell() - meter.size)
            # tarfile takes the end of a truncated file for the end of the archive, which is a block of zeros.
            if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
                raise tarfile.ReadError("unexpected end of data")
            # The checksum of the compression stands behind the last member. tarfile also takes a damaged header for
            # the end of the archive, but only zeros follow the real end.
            block = tar.fileobj.read(2**20)
            while block:
                if block.strip(b"\0"):
                    raise tarfile.ReadError("data behind its end, or a damaged header")
                block = tar.fileobj.read(2**20)
            meter.add(raw.tell() - meter.size)
