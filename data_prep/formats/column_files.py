"""Find the parquet and arrow files of each split, and reject copies whose files are missing or would be read twice.

Files of a split begin with its name and a dash or a dot, in the folder or in ``data/``, or lie in a folder of that name
up to two levels down, as the hub of the ``datasets`` package stores them. The cache of the package puts the name of the
data set and a dash in front.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ..archive import is_metadata

NAMES = {"train": ("train",), "val": ("validation", "valid", "val", "dev", "eval"), "test": ("test",)}
SUFFIXES = (".parquet", ".arrow")
# Where the files of a split are below a folder.
PLACES = ("{}[-.]*", "{}/*", "data/{}[-.]*", "*/{}/*", "*-{}[-.]*")
# A file of several, such as train-00000-of-00002; older versions of the package append a checksum.
SHARD = re.compile(r"(?P<stem>(.*[-._])?)(?P<number>\d+)-of-(?P<total>\d+)(-[0-9a-f]{16})?")
MOST_MISSING = 5  # missing files that are named; further ones are counted
# S4 keeps its tokenizer next to the folders of the splits.
S4_TOKENIZER = "tokenizer.pkl"


@dataclass(frozen=True)
class Style:
    """How the files of a split are named; files of two styles may hold the same examples.

    Args:
        suffix: .parquet or .arrow.
        pattern: name of a shard without its number, such as train-*-of-00002; the name of a file of the whole split,
            such as train or imdb-train; empty for other names, of which a split may have several.
    """

    suffix: str
    pattern: str


def find_parts(folder: Path) -> dict[str, list[Path]]:
    """Find the files of each split, in order; a split without files is left out.

    Raises:
        ValueError: a file is missing among files that state their number, files are named in two styles, the splits
            are in two places, or they are a cache of S4.
    """
    parts = {}
    # The first file in each place.
    places: dict[str, Path] = {}
    for split, names in NAMES.items():
        place, files = _first_files(folder, names)
        if files:
            _check_styles(files)
            _check_shards(files)
            _reject_s4_cache(files[0])
            parts[split] = files
            places.setdefault(place, files[0])
    if len(places) > 1:
        first, second = list(places.values())[:2]
        raise ValueError(f"{first} and {second} are splits in two layouts, maybe of two copies: keep one layout")
    return parts


def _first_files(folder: Path, names: tuple[str, ...]) -> tuple[str, list[Path]]:
    """List the files of the first name and place that has any, so that no split is read twice.

    Returns:
        The place, one of ``PLACES``, and the files; both empty if there are none.
    """
    for name in names:
        for pattern in PLACES:
            candidates = [path for path in folder.glob(pattern.format(name)) if path.suffix in SUFFIXES]
            files = sorted(path for path in candidates if not is_metadata(path.name))
            if files:
                return pattern, files
    return "", []


def _reject_s4_cache(file: Path) -> None:
    """Raise ValueError if a file is in a cache of the S4 repository, whose ids belong to other vocabularies."""
    cache = file.parent.parent
    if (cache / S4_TOKENIZER).is_file():
        reason = f"is a cache of S4 with ids of another vocabulary ({S4_TOKENIZER})"
        raise ValueError(f"{cache} {reason}: name the data it was made from")


def _check_styles(files: list[Path]) -> None:
    """Raise ValueError if files of a split are in two folders or are named in two styles."""
    first = files[0]
    for other in files[1:]:
        if other.parent != first.parent:
            raise ValueError(f"{first} and {other} are in two folders: name the folder of one copy")
        if _style(other) != _style(first):
            reason = "are named in two styles and may hold the same examples twice"
            raise ValueError(f"{first} and {other} {reason}: keep one of them")


def _style(path: Path) -> Style:
    shard = SHARD.fullmatch(path.stem)
    if shard is not None:
        pattern = f"{shard['stem']}*-of-{shard['total']}"
    else:
        last_word = path.stem.rpartition("-")[2]
        is_whole_split = any(last_word in names for names in NAMES.values())
        pattern = path.stem if is_whole_split else ""
    return Style(path.suffix, pattern)


def _check_shards(files: list[Path]) -> None:
    """Raise ValueError if shards are missing or occur twice, by the number of shards in their names."""
    first = SHARD.fullmatch(files[0].stem)
    # All files have one style, so all of them are shards or none is.
    if first is None:
        return
    total = int(first["total"])
    paths: dict[int, Path] = {}
    for path in files:
        shard = SHARD.fullmatch(path.stem)
        number = int(shard["number"]) if shard is not None else 0
        if number in paths:
            raise ValueError(f"{paths[number]} and {path} are the same part of {total:,}: keep one of them")
        paths[number] = path
    # Most programs count from 0, some from 1.
    start = 1 if total in paths and 0 not in paths else 0
    missing = [number for number in range(start, start + total) if number not in paths]
    if missing:
        width = len(first["number"])
        suffix = files[0].suffix
        names = [f"{first['stem']}{number:0{width}}-of-{first['total']}{suffix}" for number in missing[:MOST_MISSING]]
        if len(missing) > MOST_MISSING:
            names.append(f"{len(missing) - MOST_MISSING:,} more")
        raise ValueError(f"{files[0].parent} lacks {', '.join(names)}: {files[0].name} is one of {total:,} files")
