"""Choose the reader of a copy by the files at its path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..archive import expand, reject_zip
from . import aclimdb, arrays, lra_pickle, pixel_lines
from .aclimdb import AclImdb
from .cifar import Cifar, open_cifar
from .column_files import find_parts
from .columns import ColumnReader
from .layout import Kind, Reader


@dataclass(frozen=True)
class TaskFormat:
    """The properties of a task that readers need: kind of tokens, texts per example and number of classes."""

    kind: Kind
    num_texts: int
    num_classes: int


FORMATS = {
    "listops": TaskFormat("expression", 1, 10),
    "text": TaskFormat("bytes", 1, 2),
    "retrieval": TaskFormat("bytes", 2, 2),
    "image": TaskFormat("pixels", 1, 10),
    "pathfinder": TaskFormat("pixels", 1, 2),
}
# Files of copies that are folders.
FILE_SUFFIXES = (".parquet", ".arrow", ".npz", ".pickle")


def open_copy(
    path: Path | str | None,
    task: str,
    *,
    length: int | None = None,
    columns: Sequence[str] | None = None,
) -> Reader | AclImdb | Cifar | None:
    """Open a copy of Text or Image: unpacked reviews, batches of CIFAR-10, or a format that ``open_reader`` reads.

    Arguments and errors are the same as for ``open_reader``. MEGA's and other scripts write their files next to the
    download from which they make them, so pickles and lines of pixels in the folder come before a download.

    Returns:
        The reader; None if the path is none of these formats, so that the source reads the official one.
    """
    if path is None:
        return None
    folder = expand(path)
    reject_zip(folder)
    has_script_files = lra_pickle.has_files(folder, task) or (task == "image" and pixel_lines.has_files(folder))
    download = None if has_script_files else _open_download(folder, task)
    if download is not None:
        return download
    return open_reader(folder, task, length=length, columns=columns)


def _open_download(path: Path, task: str) -> AclImdb | Cifar | None:
    """Open unpacked reviews, or CIFAR-10 as torchvision's archive or unpacked; None if there are none."""
    if task == "image":
        return open_cifar(path)
    if task == "text" and path.is_dir():
        reviews = aclimdb.find_folder(path)
        return None if reviews is None else AclImdb(reviews)
    return None


def open_reader(
    path: Path | str | None,
    task: str,
    *,
    stem: str | None = None,
    length: int | None = None,
    columns: Sequence[str] | None = None,
    has_official: Callable[[Path], bool] = lambda folder: False,
) -> Reader | None:
    """Open a copy of a task in a format that several tasks share.

    Args:
        path: file or folder; ``~`` is expanded.
        task: name of the task.
        stem: task as its pickles are named; None for the same name.
        length: pixels of an image.
        columns: names of the columns of parquet and arrow files.
        has_official: whether a folder has the official files of the task; then parquet and arrow files below it, which
            may belong to another task, are not read unless ``columns`` are given.

    Returns:
        The reader; None if the path is none of these formats, so that the source reads the official one.

    Raises:
        ValueError: the path is a zip archive or one file of a copy, or a file of the copy is missing. A split that
            parquet or arrow files lack is reported when it is read.
    """
    if path is None:
        return None
    folder = expand(path)
    reject_zip(folder)
    task_format = FORMATS[task]
    options: dict[str, Any] = {
        "num_texts": task_format.num_texts,
        "num_classes": task_format.num_classes,
        "length": length,
    }
    if folder.is_file() and folder.suffix in FILE_SUFFIXES:
        raise ValueError(f"{folder} is one file of a copy: name its folder, {folder.parent}")
    if not folder.is_dir():
        return None
    if lra_pickle.has_files(folder, stem or task):
        return lra_pickle.PickleReader(folder, stem=stem or task, kind=task_format.kind, **options)
    if any((folder / f"{split}.npz").is_file() for split in arrays.SPLITS):
        return arrays.ArrayReader(folder, **options)
    if length is not None and pixel_lines.has_files(folder):
        return pixel_lines.PixelLineReader(folder, num_classes=task_format.num_classes, length=length)
    if columns is None and has_official(folder):
        return None
    if find_parts(folder):
        options |= {"kind": task_format.kind, "columns": columns, "allow_colours": task == "image"}
        return ColumnReader(folder, **options)
    return None
