"""Find the files of a task in a folder or below it, whatever layout the release has there."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

DEPTH = 4  # levels of folders below the one that the user names
# Folders with thousands of images or with metadata of macOS, which hold no folder of a task.
SKIPPED = {"imgs", "metadata", "__MACOSX"}

# Names of the release archive, looked for where a folder does not hold the files themselves.
ARCHIVES = ("lra_release.gz", "lra_release.tar.gz", "lra_release.tgz", "lra_release.tar")


def expand(path: Path | str) -> Path:
    """Replace a leading ~ by the home folder; a name that has no home folder stays as it is."""
    return Path(os.path.expanduser(path))


def subfolders(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield a folder and the folders below it, level by level and in the order of their names.

    Links to folders are followed; a folder that several paths lead to is yielded once. Hidden folders and those in
    `SKIPPED` are left out.
    """
    # Breadth first, so that the nearest folder comes first.
    level = [root]
    visited = set()
    for _ in range(depth + 1):
        below: list[Path] = []
        for folder in level:
            real = os.path.realpath(folder)
            if real not in visited:
                visited.add(real)
                yield folder
                below += _children(folder)
        level = below


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []
    visible = [name for name in names if not name.startswith(".") and name not in SKIPPED]
    return [folder / name for name in sorted(visible)]


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
