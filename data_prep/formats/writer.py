"""A task's data for the writers of all layouts, read in order and in parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lra.data.progress import Progress
from lra.data.source import Source

CHUNK = 512  # examples read at a time


@dataclass(frozen=True, kw_only=True)
class Export:
    """The data of a task.

    Args:
        source: data source.
        splits: opened splits.
        kind: ``display`` of the task: expression, bytes, pixels or series.
        limit: tokens that the task reads of a sequence.
        length: positions of the model.
        shift: number added to stored ids.
    """

    source: Source
    splits: Mapping[str, Any]
    kind: str
    limit: int
    length: int
    shift: int

    @property
    def num_examples(self) -> int:
        return sum(len(split) for split in self.splits.values())

    def examples(self, name: str, progress: Progress) -> Iterator[tuple[list[np.ndarray], int | float]]:
        """Read the examples of a split in order.

        Args:
            name: name of the split.
            progress: reports the examples.

        Yields:
            Stored tokens (length,) or (length, F) of each text, and the label.
        """
        split = self.splits[name]
        for start in range(0, len(split), CHUNK):
            index = torch.arange(start, min(start + CHUNK, len(split)))
            # Padded to the longest sequence of the part, then cut.
            lengths = split.lengths[index]  # (n,T)
            tokens, _ = split.gather(index, int(lengths.max()))  # (n,T,width) or (n,T,width,F)
            labels = split.labels[index].tolist()
            for number, label in enumerate(labels):
                pairs = zip(tokens[number], lengths[number].tolist(), strict=True)
                yield [sequence[:length].numpy() for sequence, length in pairs], label
            progress(name, start + len(index), len(split))
