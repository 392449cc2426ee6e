"""The lines of pixels of MEGA's preparation: input/{train,valid,test}.src and label/{train,valid,test}.label.

A line of .src has the grey levels 0..255 of an image line by line, separated by spaces; the same line of .label has its
label. ``examples/mega/lra/data_process.py`` of facebookresearch/mega writes them for CIFAR-10 and Pathfinder, and
``fairseq/tasks/long_range_arena.py`` reads them. The texts of MEGA are token files of fairseq (src-bin/*.bin) with a
vocabulary that no released script writes, so they are not read.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np

from lra.data.progress import Progress

from ..lines import text_lines
from .layout import Reader, SequenceExample, as_label, check_length

PARTS = {"train": "train", "val": "valid", "test": "test"}
REPORT_INTERVAL = 1000  # examples between two reports of the progress


class PixelLineReader(Reader):
    """Reader of one task's lines, in constant memory.

    Args:
        path: folder of input and label.
        num_classes: number of labels.
        length: pixels of an image.

    Raises:
        ValueError: a file is missing.
    """

    def __init__(self, path: Path, *, num_classes: int, length: int):
        # A file of pixels and a file of labels for each split.
        files = {}
        self.label_files = {}
        for split, part in PARTS.items():
            files[split] = path / "input" / f"{part}.src"
            self.label_files[split] = path / "label" / f"{part}.label"
        super().__init__(path, files)
        self.num_classes = num_classes
        self.length = length
        missing = [str(path) for path in self.paths if not path.is_file()]
        if missing:
            raise ValueError(
                f"{', '.join(missing)} is missing: an .src and a .label of train, valid and test are needed"
            )

    @property
    def paths(self) -> list[Path]:
        return [*self.files.values(), *self.label_files.values()]

    def _examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        path = self.files[split]
        label_path = self.label_files[split]
        with open(path, "rb") as pixel_file, open(label_path, "rb") as label_file:
            pixel_lines = text_lines(pixel_file, str(path))
            label_lines = text_lines(label_file, str(label_path))
            # Both files must have the same number of lines.
            for pixel_line, label_line in zip_longest(pixel_lines, label_lines):
                if pixel_line is None or label_line is None:
                    raise ValueError(f"{path} and {label_path} have different numbers of lines")
                number, line = pixel_line
                pixels = self._parse(line, f"{path}, line {number}")
                value = self._parse_label(label_line[1], f"{label_path}, line {number}")
                yield (pixels,), value
                if number % REPORT_INTERVAL == 0:
                    progress(f"{path.name}, lines", number, None)

    def _parse(self, line: bytes, where: str) -> np.ndarray:
        """Convert a line to grey levels (length,) uint8."""
        try:
            pixels = np.array(line.split(), np.int64)
        except (OverflowError, ValueError):
            raise ValueError(f"{where}: not numbers separated by spaces") from None
        check_length(pixels, self.length, where)
        low = pixels.min()
        high = pixels.max()
        if low < 0 or high > 255:
            raise ValueError(f"{where}: grey levels from {low} to {high}, where 0 to 255 are valid")
        return pixels.astype(np.uint8)

    def _parse_label(self, label: bytes, where: str) -> int:
        # A label that is not a number stays a text, which the message quotes.
        value = int(label) if label.isdigit() else label.decode(errors="replace")
        return as_label(value, self.num_classes, where)


def has_files(folder: Path) -> bool:
    """Whether a folder holds at least one file of lines."""
    paths = [folder / "input" / f"{part}.src" for part in PARTS.values()]
    return any(path.is_file() for path in paths)
