"""Find the files of every task in a folder or an archive, and give them to the collectors."""

import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from posixpath import basename, dirname

from lra.data.progress import Progress, ReadMeter, read_blocks
from lra.data.source import cores

from .archive import DEPTH, is_metadata, members, reading, split_files, subfolders
from .examples import in_order
from .formats.aclimdb import PARTS
from .formats.cifar import Cifar, CifarFolder, open_cifar
from .formats.detect import FORMATS
from .formats.lra_pickle import PickleReader
from .image import PIXELS
from .lines import open_lines
from .pathfinder.listing import BLOCK, CONTOUR_OF_FOLDER
from .survey import Collector, ListOpsCollector, RetrievalCollector, TableCollector
from .survey_files import BatchCollector, CopyCollector, PathfinderCollector, ReviewCollector

TABLES: tuple[type[TableCollector], ...] = (ListOpsCollector, RetrievalCollector)
_FOLDERS = "|".join(CONTOUR_OF_FOLDER)
IMAGES = re.compile(rf"((?:.*/)?pathfinder(\d+)/({_FOLDERS}))/((?:metadata/[^/]+\.npy)|(?:imgs/.+))")
REVIEWS = re.compile(r"(aclImdb)/((?:train|test)/(?:neg|pos)/\d+_\d+\.txt)")
BATCHES = re.compile(r"(cifar-10-batches-bin)/((?:data_batch_[1-5]|test_batch)\.bin)")
PICKLE = re.compile(r"(?:lra-)?(.+)\.(?:train|dev|test)\.pickle")
STEM = re.compile(rf"(listops|text|retrieval|image)|pathfinder(\d+)-({_FOLDERS})")

# (function that makes the collector of a place, folder of the task in the archive, path of a file below that folder).
Route = tuple[Callable[[str], Collector], str, str]


def survey_folder(root: Path, progress: Progress) -> Iterator[Collector]:
    """Read every task in a folder and in the folders up to five levels below it."""
    for folder in subfolders(root, DEPTH + 1):
        for kind in TABLES:
            files = split_files(folder, kind.files)
            if files:
                yield _survey_tables(kind(str(folder)), files, progress)
        # Images: the folder of a contour in a folder of a size.
        absolute = Path(os.path.abspath(folder))
        size = re.fullmatch(r"pathfinder(\d+)", absolute.parent.name)
        if absolute.name in CONTOUR_OF_FOLDER and size is not None:
            yield _survey_images(folder, int(size[1]), CONTOUR_OF_FOLDER[absolute.name], progress)
        # Reviews: a folder with train/pos or test/pos, as the reader finds it; the collector names missing folders.
        # os.path.isdir is false where Path.is_dir raises an error, in a folder that this user may not read.
        if any(os.path.isdir(folder / part / "pos") for part in PARTS):
            yield _survey_reviews(folder, progress)
        # CIFAR-10: batches of the binary or of the Python version.
        if (folder / "data_batch_1.bin").is_file():
            yield _survey_binary_batches(folder, progress)
        if (folder / "data_batch_1").is_file():
            yield _survey_python_batches(folder, progress)
        yield from _survey_pickles(folder, progress)


def survey_archive(path: Path, progress: Progress) -> list[Collector]:
    """Read every task in a tar archive, in one pass."""
    cifar = open_cifar(path)
    if cifar is not None:
        return [_survey_batches(cifar, progress)]
    # A collector for each task and place, in the order of the archive.
    collectors: dict[tuple[Callable[[str], Collector], str], Collector] = {}
    for name, file in members(path, _route, progress):
        route = _route(name)
        if route is None:
            continue
        make_collector, folder, below = route
        place = f"{path}/{folder}".rstrip("/")
        key = (make_collector, place)
        if key not in collectors:
            collectors[key] = make_collector(place)
        # Tables are read by line, other files in blocks.
        with reading(path):
            is_table = isinstance(collectors[key], TableCollector)
            data = file if is_table else read_blocks(file)
            collectors[key].add(below, data)
    return list(collectors.values())


def _route(name: str) -> Route | None:
    """Choose the collector of a member of an archive; None if it belongs to no task."""
    for kind in TABLES:
        if basename(name) in kind.files.values():
            return kind, dirname(name), basename(name)
    match = IMAGES.fullmatch(name)
    if match is not None:
        folder, size, contour, below = match.groups()
        return _image_collector(int(size), CONTOUR_OF_FOLDER[contour]), folder, below
    match = REVIEWS.fullmatch(name)
    if match is not None:
        return ReviewCollector, match[1], match[2]
    match = BATCHES.fullmatch(name)
    if match is not None:
        return BatchCollector, match[1], match[2]
    return None


# Cached, so that images of one size and contour share a function, which is part of the collector's key.
@functools.cache
def _image_collector(size: int, contour: int) -> Callable[[str], Collector]:
    return functools.partial(PathfinderCollector, size=size, contour=contour)


def _survey_tables(collector: TableCollector, files: dict[str, Path], progress: Progress) -> TableCollector:
    """Read the tables of a task; a damaged compressed file is a fault."""
    for path in files.values():
        try:
            with open_lines(path, progress, path.name) as lines:
                collector.add(path.name, lines)
        except ValueError as error:
            collector.faults.append(str(error))
    return collector


def _survey_images(folder: Path, size: int, contour: int, progress: Progress) -> PathfinderCollector:
    """Read the images of a contour by threads."""
    collector = PathfinderCollector(str(folder), size, contour)
    # The list of images, then the images that are there.
    for path in sorted(folder.glob("metadata/*.npy")):
        if not is_metadata(path.name):
            collector.add(f"metadata/{path.name}", [path.read_bytes()])
    names = []
    for path in folder.glob("imgs/*/*.png"):
        if not is_metadata(path.name):
            names.append(f"imgs/{path.parent.name}/{path.name}")
    names.sort()

    # A thread reads and decodes a block of images.
    def read(start: int) -> tuple[dict[str, bytes | str], int]:
        digests: dict[str, bytes | str] = {}
        num_bytes = 0
        for name in names[start : start + BLOCK]:
            # Such as a link whose target is missing; preparation skips such an image.
            try:
                content = (folder / name).read_bytes()
            except OSError as error:
                digests[name] = f"cannot be read: {error.strerror}"
                continue
            digests[name] = collector.digest(content)
            num_bytes += len(content)
        return digests, num_bytes

    finished = 0
    starts = range(0, len(names), BLOCK)
    with ReadMeter(str(folder)) as meter:
        for digests, num_bytes in in_order(read, starts, cores()):
            for name, digest in digests.items():
                collector.add_digest(name, digest)
            finished += len(digests)
            meter.add(num_bytes)
            progress(f"pathfinder{size}", finished, len(names))
    return collector


def _survey_reviews(folder: Path, progress: Progress) -> ReviewCollector:
    collector = ReviewCollector(str(folder))
    # Each review is a file; other files in these folders are left out.
    paths: list[Path] = []
    for part in ReviewCollector.folders:
        paths += (folder / part).glob("*")
    with ReadMeter(str(folder)) as meter:
        for finished, path in enumerate(sorted(paths), start=1):
            name = path.relative_to(folder).as_posix()
            if ReviewCollector.member.fullmatch(name):
                content = path.read_bytes()
                meter.add(len(content))
                collector.add(name, [content])
            progress("reviews", finished, len(paths))
    return collector


def _survey_binary_batches(folder: Path, progress: Progress) -> BatchCollector:
    """Read the binary version of CIFAR-10; the collector names a batch that is missing."""
    collector = BatchCollector(str(folder))
    paths = sorted(folder.glob("*_batch*.bin"))
    for finished, path in enumerate(paths, start=1):
        collector.add(path.name, [path.read_bytes()])
        progress("batches", finished, len(paths))
    return collector


def _survey_python_batches(folder: Path, progress: Progress) -> BatchCollector:
    try:
        return _survey_batches(CifarFolder(folder, ""), progress)
    except ValueError as error:
        collector = BatchCollector(str(folder))
        collector.faults.append(str(error))
        return collector


def _survey_batches(cifar: Cifar, progress: Progress) -> BatchCollector:
    """Read batches of CIFAR-10, converted to records of the binary version."""
    collector = BatchCollector(str(cifar.path))
    try:
        for name, batch_records, _ in cifar.batches(progress):
            collector.add(name, [batch_records])
    except ValueError as error:
        collector.faults.append(str(error))
    return collector


def _survey_pickles(folder: Path, progress: Progress) -> Iterator[CopyCollector]:
    """Read the pickles of Nystromformer and Skyformer, without executing anything in them."""
    # The tasks of the folder, by the names of their files.
    stems = set()
    for path in folder.glob("*.pickle"):
        name = PICKLE.fullmatch(path.name)
        if name is not None:
            stems.add(name[1])
    for stem in sorted(stems):
        match = STEM.fullmatch(stem)
        if match is None:
            continue
        # Only images have a fixed length.
        task, size, contour = match.groups()
        length = PIXELS if task == "image" else None
        options = {}
        if size is not None:
            task = "pathfinder"
            length = int(size) ** 2
            options = {"size": int(size), "contour": CONTOUR_OF_FOLDER[contour]}
        collector = CopyCollector(str(folder), task, **options)
        try:
            reader = PickleReader(folder, stem=stem, length=length, **asdict(FORMATS[task]))
            collector.read(reader, progress)
        except ValueError as error:
            collector.faults.append(str(error))
        yield collector
