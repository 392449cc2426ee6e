"""A split of a task as a map-style torch dataset, for training loops outside of this package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from .source import Source
from .split import Examples

PAD_ID = 0


class Example(NamedTuple):
    """One example: tokens (L,) int64 or (L, F) float32, two of them for a pair of texts, and a scalar label."""

    tokens: Tensor | tuple[Tensor, Tensor]
    label: Tensor


class PaddedBatch(NamedTuple):
    """tokens (B, L) int64 or (B, L, F) float32, mask (B, L) bool with True = real token, label (B,).

    Pairs of texts have tokens and mask of shape (B, 2, L).
    """

    tokens: Tensor
    mask: Tensor
    label: Tensor


@dataclass(frozen=True, kw_only=True)
class TaskMetadata:
    """The properties of a task that a model needs.

    Attributes:
        name: name of the task.
        metric: name of its metric.
        vocab_size: number of token ids that an embedding needs; None for float features.
        num_features: features per position; None for tokens.
        num_outputs: outputs of a model, the number of classes unless ``is_regression``.
        is_regression: whether labels are real numbers.
        max_length: maximum number of positions.
        num_texts: texts per example, 2 for Retrieval, else 1.
        token_names: names of the ids 0, 1, ...; empty for bytes and grey levels.
        class_names: names of the labels 0, 1, ...; empty where the label is a number itself.
        provenance: name, version and arguments of the data source.
    """

    name: str
    metric: str
    vocab_size: int | None
    num_features: int | None
    num_outputs: int
    is_regression: bool
    max_length: int
    num_texts: int
    token_names: tuple[str, ...]
    class_names: tuple[str, ...]
    provenance: dict[str, Any]


class SequenceDataset(Dataset):
    """One split of a prepared task; ``dataset[i]`` is an ``Example``.

    The split is opened on first use, and again in a process that gets a pickled copy. So the workers of a DataLoader
    share the memory-mapped files instead of copying them.

    Args:
        source: data source of the task.
        root: folder of all data.
        split: name of the split.
        metadata: description of the task.
        limit: tokens read per sequence.
        shift: number added to stored ids, 1 where id 0 would be byte 0 instead of padding.
    """

    def __init__(
        self, *, source: Source, root: Path, split: str, metadata: TaskMetadata, limit: int, shift: int
    ) -> None:
        self.source = source
        self.root = root
        self.split = split
        self.metadata = metadata
        self.limit = limit
        self.shift = shift
        self._stored: Examples | None = None

    @property
    def stored(self) -> Examples:
        """The split in its stored form."""
        if self._stored is None:
            self._stored = self.source.load(self.root)[self.split]
        return self._stored

    @property
    def labels(self) -> Tensor:
        """All labels (n,)."""
        return self.stored.labels

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files itself.
        return self.__dict__ | {"_stored": None}

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> Example:
        """Return one example; a negative index counts from the end. Raises IndexError if it is out of range."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Example]:
        """Return several examples at once, for a DataLoader's batches; indices are as in ``__getitem__``."""
        size = len(self)
        for number in indices:
            if not -size <= number < size:
                raise IndexError(f"index {number} is out of range for {size} examples")
        stored = self.stored
        # Gather the batch at the width of its longest sequence.
        index = torch.as_tensor(indices) % size
        lengths = stored.lengths[index].clamp(max=self.limit)  # (B,T)
        width = max(1, int(lengths.max()))
        tokens, _ = stored.gather(index, width, self.limit)  # (B,T,width) or (B,T,width,F)
        if not tokens.is_floating_point():
            tokens = tokens.long() + self.shift

        # Cut each sequence out of the padded batch.
        examples = []
        for number, label in enumerate(stored.labels[index]):
            pairs = zip(tokens[number], lengths[number].tolist(), strict=True)
            # A copy, since a view would keep the padded batch in memory.
            texts = tuple(sequence[:length].clone() for sequence, length in pairs)
            is_pair = len(texts) > 1
            examples.append(Example(texts if is_pair else texts[0], label))
        return examples

    def collate(self, examples: list[Example]) -> PaddedBatch:
        """Pad examples to the longest sequence of the batch, for a DataLoader's ``collate_fn``.

        The mask excludes padding only. The published protocol also masks black pixels of Image and Pathfinder;
        ``mask & (tokens != 0)`` reproduces that.
        """
        # Pad the texts of all examples together, then restore the dimension of pairs.
        texts: list[Tensor] = []
        for tokens, _ in examples:
            texts.extend(tokens if isinstance(tokens, tuple) else [tokens])
        padded = pad_sequence(texts, batch_first=True, padding_value=PAD_ID)  # (B*T,L) or (B*T,L,F)
        # The mask covers the real tokens of each text.
        lengths = torch.tensor([len(text) for text in texts])
        positions = torch.arange(padded.shape[1])
        mask = positions < lengths[:, None]  # (B*T,L)
        labels = torch.stack([label for _, label in examples])
        if self.metadata.num_texts > 1:
            shape = (len(examples), self.metadata.num_texts)
            padded = padded.unflatten(0, shape)  # (B,2,L)
            mask = mask.unflatten(0, shape)
        return PaddedBatch(padded, mask, labels)
