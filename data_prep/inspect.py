"""python -m data_prep inspect PATH: what a folder or an archive holds, and how it compares to the official data.

The files of every task are read to their end. Nothing is written, unpacked or executed; pickles are not opened.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import basename, dirname

from lra.data.progress import Progress, reporter
from lra.data.source import cores
from lra.data.store import META, StoreError, stored

from .archive import is_metadata, members, reading
from .examples import in_order
from .lines import bounded_lines
from .locate import DEPTH, expand, split_files, subfolders
from .pathfinder.release import BLOCK, FOLDERS
from .release import open_plain
from .survey import Collector, ListOpsCollector, RetrievalCollector, TableCollector
from .survey_files import BatchCollector, PathfinderCollector, ReviewCollector, blocks

TABLES: tuple[type[TableCollector], ...] = (ListOpsCollector, RetrievalCollector)
CONTOURS = {name: contour for contour, name in FOLDERS.items()}
IMAGES = re.compile(rf"((?:.*/)?pathfinder(\d+)/({'|'.join(CONTOURS)}))/((?:metadata/[^/]+\.npy)|(?:imgs/.+))")
REVIEWS = re.compile(r"((?:.*/)?aclImdb)/((?:train|test)/(?:neg|pos)/\d+_\d+\.txt)")
BATCHES = re.compile(r"((?:.*/)?cifar-10-batches-bin)/((?:data_batch_[1-5]|test_batch)\.bin)")
ARCHIVE = re.compile(r".*\.(tar|tgz|gz|xz|bz2)")
# Copies that other readers open, see docs/data.md: they are named, not read.
OTHERS = {
    "lra-*.pickle": "pickles of Nystromformer and Skyformer",
    "*.parquet": "parquet files",
    "*.arrow": "arrow files",
    "*.npz": "arrays",
    "data_batch_1": "the Python version of CIFAR-10",
}


def main(argv: list[str]) -> int:
    """Print what a path holds.

    Args:
        argv: the path.

    Returns:
        The exit status: 0, or 1 if a file is damaged or no task is recognised.
    """
    asks_help = bool({"-h", "--help"} & set(argv))
    if len(argv) != 1 or asks_help:
        print("usage: python -m data_prep inspect PATH    (a folder, or the release archive)")
        return 0 if asks_help else 1
    path = expand(argv[0])
    if not path.exists():
        print(f"lra: {path} does not exist", file=sys.stderr)
        return 1
    try:
        with reporter("inspect") as progress:
            collectors = list(survey_archive(path, progress) if path.is_file() else survey_folder(path, progress))
    except (ValueError, OSError) as error:
        print(f"lra: {error}", file=sys.stderr)
        return 1
    print(f"layout: {layout(path, collectors)}")
    other_lines = list(other_copies(path))
    for collector in collectors:
        print(*report(collector, path), sep="\n")
    # Lines that concern several tasks, other formats, and tasks without files.
    for line in [*copies(collectors), *other_lines, *missing(collectors)]:
        print(line)
    is_damaged = any(collector.faults for collector in collectors)
    is_empty = not (collectors or other_lines)
    return 1 if is_damaged or is_empty else 0


def report(collector: Collector, path: Path) -> Iterator[str]:
    """Describe a task in lines: its splits, what differs from the official data, damage, and the next command."""
    splits = collector.splits
    yield f"\n{collector.task}: {collector.place}"
    for split in splits:
        yield f"  {split}"
    differences = collector.differences(splits)
    yield "  consistent with the official data" if not differences else "  not the official data:"
    for line in differences:
        yield f"    {line}"
    for line in collector.tolerated:
        yield f"  tolerated: {line}"
    for line in collector.faults:
        yield f"  damaged: {line}"
    # Images that are empty or missing are skipped; a table must be whole.
    if not collector.faults or isinstance(collector, PathfinderCollector):
        yield f"  to prepare it: {command(collector, path)}"


def copies(collectors: list[Collector]) -> Iterator[str]:
    """Compare the places of a task that is there several times."""
    places: dict[str, list[Collector]] = {}
    for collector in collectors:
        places.setdefault(collector.task, []).append(collector)
    for task, same_task in places.items():
        if len(same_task) > 1:
            contents = set()
            for collector in same_task:
                contents.add(tuple(split.sha256 for split in collector.splits))
            verdict = "equal" if len(contents) == 1 else "different; choose one of them, see the commands above"
            yield f"\n{task}: {len(same_task)} copies, {verdict}"


def command(collector: Collector, path: Path) -> str:
    """The command that prepares the task from its place."""
    place = collector.place
    # Only options that differ from the task's defaults are written.
    if isinstance(collector, PathfinderCollector):
        options = {"task": "pathfinder_x" if collector.size == 128 else "pathfinder"}
        if collector.size not in (32, 128):
            options |= {"source.size": collector.size, "task.length": collector.size**2}
        if collector.contour != 14:
            options["source.contour"] = collector.contour
    else:
        options = {"task": collector.task}
    # The reviews and the images of an archive are read from the archive itself.
    if path.is_file() and collector.option == "source.archive":
        place = str(path)
    options[collector.option] = place
    arguments = [f"{key}={value}" for key, value in options.items()]
    return shlex.join(["python", "-m", "data_prep", *arguments])


def missing(collectors: list[Collector]) -> Iterator[str]:
    """Name the tasks without files and how to get them."""
    tasks = {collector.task.partition(",")[0] for collector in collectors}
    remedies = {
        "listops": "generated: python -m data_prep task=listops",
        "pathfinder": "generated: python -m data_prep task=pathfinder",
        "retrieval": "in the release only: tsv_data/new_aan_pairs.{train,eval,test}.tsv",
        "text": "aclImdb_v1.tar.gz: python -m data_prep task=text",
        "image": "cifar-10-binary.tar.gz: python -m data_prep task=image",
    }
    absent = {task: remedy for task, remedy in remedies.items() if task not in tasks}
    if absent:
        yield "\nnot here:"
    for task, remedy in absent.items():
        yield f"  {task:<10} {remedy}"


def layout(path: Path, collectors: list[Collector]) -> str:
    """Recognise the layout by the folders of the tasks."""
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


def survey_folder(root: Path, progress: Progress) -> Iterator[Collector]:
    """Read every task in a folder and in the folders below it."""
    for folder in subfolders(root, DEPTH + 1):
        for kind in TABLES:
            files = split_files(folder, kind.files)
            if files:
                collector = kind(str(folder))
                for path in files.values():
                    add_table(collector, path, progress)
                yield collector
        size = re.fullmatch(r"pathfinder(\d+)", folder.parent.name)
        if folder.name in CONTOURS and size is not None:
            yield survey_images(folder, int(size[1]), progress)
        if (folder / "train" / "pos").is_dir() and (folder / "test").is_dir():
            yield survey_reviews(folder, progress)
        if (folder / "data_batch_1.bin").is_file():
            collector = BatchCollector(str(folder))
            for path in sorted(folder.glob("*_batch*.bin")):
                collector.add(path.name, [path.read_bytes()])
            yield collector


def add_table(collector: TableCollector, path: Path, progress: Progress) -> None:
    """Read a table; a damaged compressed file is a fault."""
    try:
        with reading(path), open_plain(path) as file:
            lines = counted(bounded_lines(file, str(path)), path.name, progress)
            collector.add(path.name, lines)
    except ValueError as error:
        collector.faults.append(str(error))


def counted(lines: Iterable[bytes], name: str, progress: Progress) -> Iterator[bytes]:
    """Report the megabytes of the lines that pass, every 4 MiB."""
    size = 0
    for line in lines:
        before = size >> 22
        size += len(line)
        if size >> 22 > before:
            progress(f"{name}, MB", round(size / 1e6), None)
        yield line


def survey_images(folder: Path, size: int, progress: Progress) -> PathfinderCollector:
    """Read the images of a contour by threads."""
    collector = PathfinderCollector(str(folder), size, CONTOURS[folder.name])
    for path in sorted(folder.glob("metadata/*.npy")):
        if not is_metadata(path.name):
            collector.add(f"metadata/{path.name}", [path.read_bytes()])
    names = sorted(f"imgs/{path.parent.name}/{path.name}" for path in folder.glob("imgs/*/*.png"))
    names = [name for name in names if not is_metadata(name)]
    batches = [names[first : first + BLOCK] for first in range(0, len(names), BLOCK)]

    def digests(batch: list[str]) -> list[tuple[str, bytes | str]]:
        return [(name, collector.digest((folder / name).read_bytes())) for name in batch]

    finished = 0
    for batch in in_order(digests, batches, cores()):
        for name, digest in batch:
            collector.add_digest(name, digest)
        finished += len(batch)
        progress(f"pathfinder{size}", finished, len(names))
    return collector


def survey_reviews(folder: Path, progress: Progress) -> ReviewCollector:
    collector = ReviewCollector(str(folder))
    paths: list[Path] = []
    for part in ("train/neg", "train/pos", "test/neg", "test/pos"):
        paths += (folder / part).glob("*")
    for finished, path in enumerate(sorted(paths), start=1):
        name = path.relative_to(folder).as_posix()
        if ReviewCollector.member.fullmatch(name):
            collector.add(name, [path.read_bytes()])
        progress("reviews", finished, len(paths))
    return collector


def survey_archive(path: Path, progress: Progress) -> list[Collector]:
    """Read every task in a tar archive, in one pass."""
    collectors: dict[tuple[str, str], Collector] = {}
    for name, file in members(path, lambda name: route(name) is not None, progress):
        kind, folder, below = route(name)
        key = (str(kind), folder)
        if key not in collectors:
            collectors[key] = make_collector(kind, f"{path}/{folder}".rstrip("/"))
        with reading(path):
            is_table = isinstance(collectors[key], TableCollector)
            collectors[key].add(below, bounded_lines(file, name) if is_table else blocks(file.read))
    return list(collectors.values())


def route(name: str) -> tuple[object, str, str] | None:
    """Return the kind of collector, the folder and the path below it of a member; None if it belongs to no task."""
    for kind in TABLES:
        if basename(name) in kind.files.values():
            return kind, dirname(name), basename(name)
    match = IMAGES.fullmatch(name)
    if match is not None:
        folder, size, contour, below = match.groups()
        return (int(size), CONTOURS[contour]), folder, below
    for pattern, kind in ((REVIEWS, ReviewCollector), (BATCHES, BatchCollector)):
        match = pattern.fullmatch(name)
        if match is not None:
            return kind, match[1], match[2]
    return None


def make_collector(kind: object, place: str) -> Collector:
    if isinstance(kind, tuple):
        size, contour = kind
        return PathfinderCollector(place, size, contour)
    return kind(place)


def other_copies(root: Path) -> Iterator[str]:
    """Name prepared data, archives and copies in formats that are not read here."""
    if root.is_file():
        return
    for folder in subfolders(root):
        if (folder / META).is_file():
            try:
                provenance = stored(folder)
                yield f"\nprepared data: {folder} ({provenance['name']} {provenance['version']})"
            except StoreError as error:
                yield f"\nprepared data: damaged: {error}"
            continue
        for pattern, description in OTHERS.items():
            files = sorted(folder.glob(pattern))
            if files:
                size = sum(file.stat().st_size for file in files)
                yield f"\n{description}: {folder} ({len(files)} files, {size / 1e6:,.1f} MB; not opened)"
        for file in sorted(folder.iterdir()):
            if file.is_file() and ARCHIVE.fullmatch(file.name) and not file.name.endswith((".tsv.gz", ".fa.gz")):
                yield f"\narchive: {file} ({file.stat().st_size / 1e6:,.1f} MB); python -m data_prep inspect {file}"
