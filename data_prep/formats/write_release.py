"""Write the official files of the Long Range Arena: TSV of ListOps and Retrieval, metadata and PNG of Pathfinder."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lra.data.progress import Progress
from lra.data.source import cores

from ..examples import in_order
from ..expressions import CLOSE, OPERATOR, TOKENS
from .layout import Export

# Images per folder, as in the release.
IMAGES_PER_FOLDER = 1000
# Names of the splits in Retrieval's files.
PARTS = {"train": "train", "val": "eval", "test": "test"}


def write_release(task: Export, folder: Path, progress: Progress) -> str:
    """Write the official files and return their description.

    Raises:
        ValueError: the release has no such task, or a text holds a tab or a line end.
    """
    if task.source.name not in WRITERS:
        names = ", ".join(WRITERS)
        others = "npz or parquet" if task.kind == "series" else "pickle, npz or parquet"
        raise ValueError(f"layout=release exists for {names}; {task.source.name} needs {others}")
    return WRITERS[task.source.name](task, folder, progress)


def expression(ids: np.ndarray) -> str:
    """Write stored ids (length,) as the release does, with a round bracket for each step of the binary tree."""
    # An operator with n arguments opens n + 1 round brackets; one closes after each argument, the last one after the
    # square bracket.
    pieces: list[str] = []

    def enclose(start: int) -> None:
        """Open a round bracket before piece ``start``, and close it after the last piece."""
        pieces[start] = f"( {pieces[start]}"
        pieces[-1] += " )"

    # Positions of the open operators in ``pieces``.
    starts: list[int] = []
    for id in ids.tolist():
        pieces.append(TOKENS[id - 1])
        if OPERATOR <= id < CLOSE:
            starts.append(len(pieces) - 1)
            continue
        # A square bracket ends its operator.
        if id == CLOSE:
            enclose(starts.pop())
        # The value that just ended is an argument of the enclosing operator.
        if starts:
            enclose(starts[-1])
    return " ".join(pieces)


def _write_listops(task: Export, folder: Path, progress: Progress) -> str:
    target = folder / "listops-1000"
    target.mkdir()
    for split in task.splits:
        with open(target / f"basic_{split}.tsv", "w", encoding="utf-8", newline="") as file:
            file.write("Source\tTarget\n")
            for (ids,), label in task.examples(split, progress):
                file.write(f"{expression(ids)}\t{label}\n")
    return "`listops-1000/basic_{train,val,test}.tsv`: expression, tab, value, with a first line of column names."


def _write_retrieval(task: Export, folder: Path, progress: Progress) -> str:
    target = folder / "tsv_data"
    target.mkdir()
    for split in task.splits:
        with open(target / f"new_aan_pairs.{PARTS[split]}.tsv", "wb") as file:
            for number, (texts, label) in enumerate(task.examples(split, progress), start=1):
                first, second = (text.tobytes() for text in texts)
                if any(byte in text for text in (first, second) for byte in b"\t\n\r"):
                    raise ValueError(
                        f"{split}, example {number} has a tab or a line end, which the TSV of layout=release cannot "
                        "hold; use layout=npz or parquet"
                    )
                file.write(b"%d.0\t%d\t%d\t%s\t%s\n" % (label, 2 * number - 1, 2 * number, first, second))
    return (
        "`tsv_data/new_aan_pairs.{train,eval,test}.tsv`: label, two numbers instead of the papers' ids, two "
        "texts, separated by tabs. Readers cut a text to 10,000 bytes."
    )


def _write_pathfinder(task: Export, folder: Path, progress: Progress) -> str:
    """Write images in an order from which exported splits of 80, 10 and 10 percent are read back unchanged.

    The release has no splits. ``data_prep.pathfinder.generator`` permutes the images by a fixed seed and cuts them at
    80 and 90 percent; writing example i to place ``order[i]`` inverts that.
    """
    # Imported here, since the generator imports the readers.
    from ..pathfinder.generator import Pathfinder
    from ..pathfinder.listing import FOLDERS

    source = task.source
    assert isinstance(source, Pathfinder)
    size = source.size
    target = folder / f"pathfinder{size}" / FOLDERS[source.contour]
    (target / "metadata").mkdir(parents=True)
    count = task.num_examples
    order = np.random.default_rng(0).permutation(count)
    labels = np.empty(count, np.int64)
    for start in range(0, count, IMAGES_PER_FOLDER):
        (target / "imgs" / str(start // IMAGES_PER_FOLDER)).mkdir(parents=True)

    def save(item: tuple[int, bytes]) -> None:
        place, pixels = item
        image = Image.frombytes("L", (size, size), pixels)
        encoded = io.BytesIO()
        image.save(encoded, "PNG")
        (target / _image_name(place)).write_bytes(encoded.getvalue())

    def images() -> Iterator[tuple[int, bytes]]:
        number = 0
        for split in task.splits:
            for (pixels,), label in task.examples(split, progress):
                labels[order[number]] = label
                yield int(order[number]), pixels.tobytes()
                number += 1

    # Encoding an image releases the interpreter lock, so that threads use all cores.
    for _ in in_order(save, images(), cores()):
        pass
    # One metadata file per folder of images.
    for start in range(0, count, IMAGES_PER_FOLDER):
        places = range(start, min(start + IMAGES_PER_FOLDER, count))
        lines = [_metadata_line(place, int(labels[place])) for place in places]
        (target / "metadata" / f"{start // IMAGES_PER_FOLDER}.npy").write_text("".join(lines))
    return (
        f"`{target.relative_to(folder)}/imgs/<k>/sample_<i>.png` and `metadata/<k>.npy`, texts with folder, file, "
        "number and label of each image. The release has no splits: this package reads the images as splits of 80, 10 "
        "and 10 percent. Exported splits of these sizes are the same when they are read, in the same order."
    )


def _image_name(place: int) -> str:
    return f"imgs/{place // IMAGES_PER_FOLDER}/sample_{place % IMAGES_PER_FOLDER}.png"


def _metadata_line(place: int, label: int) -> str:
    folder, _, file = _image_name(place).rpartition("/")
    return f"{folder} {file} {place % IMAGES_PER_FOLDER} {label}\n"


WRITERS: dict[str, Callable[[Export, Path, Progress], str]] = {
    "listops": _write_listops,
    "retrieval": _write_retrieval,
    "pathfinder": _write_pathfinder,
}
