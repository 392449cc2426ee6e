"""lra data inspect PATH: what a folder or an archive holds, and how it compares with the official data.

The files of every recognised task are read to their end; other formats are only named. Nothing is written, unpacked or
executed, not even by a pickle.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from posixpath import basename

from lra.config.quoting import command_line, override, quote
from lra.console import visible
from lra.data.progress import reporter
from lra.data.store import META, StoreError, read_provenance
from lra.startup import abandon_stdout, interruptible

from . import image, text
from .archive import expand, sha256, subfolders
from .formats.column_files import NAMES, S4_TOKENIZER, SUFFIXES, find_parts
from .formats.detect import FILE_SUFFIXES
from .survey import Collector
from .survey_files import PathfinderCollector
from .survey_walk import survey_archive, survey_folder

ARCHIVE = re.compile(r".*\.(tar|tgz|gz|xz|bz2)")
# Formats that do not say which task they hold: named, not read.
OTHERS = {
    "*.npz": "arrays",
    "input/*.src": "MEGA's lines of pixels",
}
# Folders that hold the parquet or arrow files of one split.
SPLIT_FOLDERS = {name for names in NAMES.values() for name in names}
# Start of a line that names damage.
FAULT = "  damaged: "
# Nystromformer's script cuts reviews to this number of bytes, as task=text_1k does.
SHORT_REVIEW = 1_000
# How to get a task that the path lacks.
REMEDIES = {
    "listops": "generated: lra data task=listops",
    "pathfinder": "generated: lra data task=pathfinder",
    "retrieval": "not generated: in the release or a copy of it, tsv_data/new_aan_pairs.{train,eval,test}.tsv",
    "text": "aclImdb_v1.tar.gz: lra data task=text",
    "image": "cifar-10-binary.tar.gz: lra data task=image",
}


def main(argv: list[str]) -> int:
    """Print what a path holds.

    Args:
        argv: the path, or -h for the usage.

    Returns:
        The exit status: 0; 1 if a file is damaged, nothing is recognised, the path cannot be read, or there is not
        exactly one path.
    """
    interruptible()
    asks_help = "-h" in argv or "--help" in argv
    if len(argv) != 1 or asks_help:
        print("usage: lra data inspect PATH    (a folder, or an archive)")
        return 0 if asks_help else 1
    try:
        return inspect(expand(argv[0]))
    except KeyboardInterrupt:
        print("lra: interrupted", file=sys.stderr)
    except BrokenPipeError:
        # The reader of the lines is gone, as after | head.
        abandon_stdout()
    return 1


def inspect(path: Path) -> int:
    """Print what a path holds, and return the exit status."""
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        is_part = path.name.endswith((*FILE_SUFFIXES, ".tsv", ".tsv.gz"))
        if is_part and path.is_file():
            raise ValueError(f"{path} is one file of a copy: inspect its folder, {path.parent}")
        with reporter("inspect") as progress:
            survey = survey_archive if path.is_file() else survey_folder
            collectors = list(survey(path, progress))
        other_lines = [*other_copies(path), *column_copies(path)]
    except (ValueError, OSError) as error:
        print(visible(f"lra: {error}"), file=sys.stderr)
        return 1
    lines = [f"layout: {layout(path, collectors)}"]
    for collector in collectors:
        lines += report(collector, path)
    # Lines that concern several tasks, other formats, and tasks without files.
    lines += [*copies(collectors), *other_lines, *missing(collectors)]
    # The names of foreign files may hold anything.
    for line in lines:
        print(visible(line))
    sys.stdout.flush()
    is_damaged = any(collector.faults for collector in collectors) or any(map(is_fault, other_lines))
    is_empty = not (collectors or other_lines)
    return 1 if is_damaged or is_empty else 0


def report(collector: Collector, path: Path) -> Iterator[str]:
    """Describe a task in lines: its splits, what differs from the official data, damage, and the next command."""
    splits = collector.splits
    yield f"\n{collector.task}: {collector.place}"
    for split in splits:
        yield f"  {split}"
    # What is different, what is tolerated and what is damaged.
    differences = collector.differences(splits)
    checksum = other_checksum(collector, path)
    if checksum is not None:
        differences.append(f"{path} has sha256 {checksum}, not the official one")
    yield "  no difference from the official data was found" if not differences else "  not the official data:"
    for line in differences:
        yield f"    {line}"
    for line in collector.tolerated:
        yield f"  tolerated: {line}"
    for line in collector.faults:
        yield f"{FAULT}{line}"
    # Images that are empty or missing are skipped; a table must be whole.
    if not collector.faults or isinstance(collector, PathfinderCollector):
        yield f"  to prepare it: {command(collector, path, checksum)}"


def other_checksum(collector: Collector, path: Path) -> str | None:
    """The sha256 of an archive of reviews or images if it is not the one of the official file."""
    official = {"text": text.OFFICIAL, "image": image.OFFICIAL}.get(collector.task)
    # The Python version of CIFAR-10, whose place is the archive itself, has no official checksum here.
    if official is None or not path.is_file() or collector.place == str(path):
        return None
    checksum = sha256(path)
    return None if checksum == official.sha256 else checksum


def copies(collectors: list[Collector]) -> Iterator[str]:
    """Compare the copies of a task that occurs in several places in one format."""
    places: dict[tuple[type, str], list[Collector]] = {}
    for collector in collectors:
        key = (type(collector), collector.task)
        places.setdefault(key, []).append(collector)
    for (_, task), same_task in places.items():
        if len(same_task) > 1:
            contents = set()
            for collector in same_task:
                contents.add(tuple(split.sha256 for split in collector.splits))
            verdict = "equal" if len(contents) == 1 else "different; choose one of them, see the commands above"
            yield f"\n{task}: {len(same_task)} copies, {verdict}"


def command(collector: Collector, path: Path, checksum: str | None) -> str:
    """The command that prepares the task from its place; ``checksum`` is the sha256 of an unofficial archive."""
    options: dict[str, object] = {"task": collector.task}
    if collector.task == "text":
        longest = max((max(split.lengths, default=0) for split in collector.splits), default=0)
        # If the longest review has this length, the script has cut the longer ones.
        if longest == SHORT_REVIEW:
            options["task"] = "text_1k"
    # Pathfinder: only options that differ from the task's defaults are written.
    if collector.size is not None:
        options["task"] = "pathfinder_x" if collector.size == 128 else "pathfinder"
        if collector.size not in (32, 128):
            options["source.size"] = collector.size
            options["task.length"] = collector.size**2
        if collector.contour != 14:
            options["source.contour"] = collector.contour
    # The reviews and the images of an archive are read from the archive itself.
    is_archive = path.is_file() and collector.option == "source.archive"
    options[collector.option] = quote(path if is_archive else collector.place)
    if checksum is not None:
        options["source.sha256"] = checksum
    arguments = [f"{key}={value}" for key, value in options.items()]
    return command_line("data", *arguments)


def missing(collectors: list[Collector]) -> Iterator[str]:
    """Name the tasks without files and how to get them."""
    tasks = {collector.task.partition(",")[0] for collector in collectors}
    absent = {task: remedy for task, remedy in REMEDIES.items() if task not in tasks}
    if absent:
        yield "\nnot here:"
    for task, remedy in absent.items():
        yield f"  {task:<10} {remedy}"


def layout(path: Path, collectors: list[Collector]) -> str:
    """Recognise the layout by the folders of the tasks."""
    # The official names of the folders decide, then the ones of the other layouts.
    places = [collector.place for collector in collectors]
    kind = "archive" if path.is_file() else "folder"
    if any(basename(place) in ("listops-1000", "tsv_data") for place in places):
        return f"official release of the Long Range Arena ({kind})"
    parts = []
    for place in places:
        parts.append(place.removeprefix(str(path)).strip("/").split("/"))
    doubled = [part for part in parts if part[:2] in (["listops", "listops"], ["pathfinder", "pathfinder"])]
    if doubled:
        return f"Kaggle's copy of the release ({kind})"
    if any(part[-1] in ("listops", "aan") for part in parts):
        return f"S4's data folder ({kind})"
    if not collectors:
        return f"not recognised ({kind})"
    return f"files of one task ({kind})" if len(collectors) == 1 else f"files of several tasks ({kind})"


def other_copies(root: Path) -> Iterator[str]:
    """Name prepared data, archives and copies in formats that are not read here."""
    if root.is_file():
        return
    for folder in subfolders(root):
        # A prepared data set is checked by its own description.
        if (folder / META).is_file():
            yield from _prepared(folder)
            continue
        for pattern, description in OTHERS.items():
            files = sorted(folder.glob(pattern))
            if files:
                yield f"\n{description}: {folder} ({len(files)} files, {_megabytes(files)}; not opened)"
                yield _options(folder)
        for file in sorted(folder.iterdir()):
            # Unlike Path.is_file, os.path.isfile is False for a link into a folder that this user may not enter.
            is_archive = ARCHIVE.fullmatch(file.name) and os.path.isfile(file)
            if is_archive and not file.name.endswith((".tsv.gz", ".fa.gz")):
                yield f"\narchive: {file} ({_megabytes([file])}); {shlex.join(['lra', 'data', 'inspect', str(file)])}"


def column_copies(root: Path) -> Iterator[str]:
    """Name the copies in parquet and arrow files, each by the folder that is given to a task."""
    if root.is_file():
        return
    places: dict[tuple[Path, str], list[Path]] = {}
    for folder in subfolders(root):
        for suffix in SUFFIXES:
            files = sorted(folder.glob(f"*{suffix}"))
            if files:
                # Files in a folder for each split belong to the folder above.
                place = folder.parent if folder.name in SPLIT_FOLDERS else folder
                places.setdefault((place, suffix), []).extend(files)
    for (place, suffix), files in places.items():
        yield f"\n{suffix[1:]} files: {place} ({len(files)} files, {_megabytes(files)}; not opened)"
        # The reader rejects a cache of S4, but nothing in it is damaged.
        if (place / S4_TOKENIZER).is_file():
            yield f"  not read: a cache of S4 with ids of another vocabulary ({S4_TOKENIZER})"
            continue
        # The reader looks for missing files by their names.
        try:
            if find_parts(place):
                yield _options(place)
            else:
                yield f"  not read: no file is named by a split ({', '.join(sorted(SPLIT_FOLDERS))})"
        except ValueError as error:
            yield f"{FAULT}{error}"


def is_fault(line: str) -> bool:
    return line.startswith(FAULT)


def _options(folder: Path) -> str:
    """The options of a copy whose task is not known."""
    release = shlex.quote(override("source.release", folder))
    archive = shlex.quote(override("source.archive", folder))
    return f"  use {release}, for text and image {archive}"


def _prepared(folder: Path) -> Iterator[str]:
    """Describe a prepared data set; damage is a fault."""
    try:
        provenance = read_provenance(folder)
    except StoreError as error:
        yield f"\nprepared data: {folder}"
        yield f"{FAULT}{error}"
        return
    yield f"\nprepared data: {folder} ({provenance['name']} {provenance['version']})"


def _megabytes(files: list[Path]) -> str:
    size = sum(file.stat().st_size for file in files)
    return f"{size / 1e6:,.1f} MB"
