"""Find files by name below a folder, through links to folders, without loops and without visiting a folder twice."""

import os
from collections.abc import Collection
from pathlib import Path

LINKED_LEVELS = 4  # study, task, label and seed: a link may stand for any of them


def find_files(root: Path, names: Collection[str]) -> tuple[list[Path], list[str]]:
    """Find every file with one of the names below a folder.

    Links to folders are followed, because training writes through them: a study, a label or a seed may lie on another
    disk. Each folder is visited once. Real folders come first, so a link to a folder below ``root`` is skipped, and a
    record is never counted twice. A link to a folder that contains ``root`` would search the whole disk and is skipped
    too. Below a linked folder the search ends after ``LINKED_LEVELS`` levels.

    Args:
        root: folder to search; it may be a link itself.
        names: file names.

    Returns:
        The sorted paths of the files, and a message for each link that was skipped and each folder that cannot be read.
    """
    real_root = os.path.realpath(root)
    visited: set[str] = set()
    paths: list[Path] = []
    skipped: list[str] = []

    # Step 1: the real folders. Links to folders are collected for step 2.
    links = _search(root, names, None, visited, paths, skipped)

    # Step 2: the linked folders, in sorted order; the queue grows by links inside them.
    while links:
        link, levels = links.pop(0)
        target = os.path.realpath(link)
        if target in visited:
            skipped.append(f"{link} is a link to {target}, which has been read already")
        elif os.path.commonpath([target, real_root]) == target:
            skipped.append(f"{link} is a link to {target}, which contains {root}; links to a parent are not followed")
        elif levels < 0:
            skipped.append(f"{link} is a link {LINKED_LEVELS + 1} levels below another link and is not followed")
        else:
            links += _search(link, names, levels, visited, paths, skipped)
    return sorted(paths), skipped


def _search(
    root: Path,
    names: Collection[str],
    levels: int | None,
    visited: set[str],
    paths: list[Path],
    skipped: list[str],
) -> list[tuple[Path, int]]:
    """Search a folder without following links, and return the links to folders in it with the levels left for each."""
    links: list[tuple[Path, int]] = []
    pending = [(root, levels)]
    while pending:
        folder, levels_left = pending.pop()
        real = os.path.realpath(folder)
        # A linked folder may contain a folder that another link has led to.
        if real in visited:
            continue
        visited.add(real)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            skipped.append(f"{folder} cannot be read: {error.strerror}")
            continue
        below = None if levels_left is None else levels_left - 1
        for entry in entries:
            path = folder / entry.name
            if entry.name in names:
                # Its reader reports a folder or a pipe with this name.
                paths.append(path)
            elif entry.is_symlink():
                if os.path.isdir(path):
                    links.append((path, LINKED_LEVELS if below is None else below))
                elif not os.path.exists(path):
                    skipped.append(f"{path} is a link to {os.path.realpath(path)}, which does not exist")
            elif entry.is_dir(follow_symlinks=False) and (below is None or below >= 0):
                pending.append((path, below))
    return sorted(links)
