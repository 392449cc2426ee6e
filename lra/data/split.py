"""The examples of one split, in memory or memory-mapped: how batches are gathered, and the order of training.

The sequences of a split are concatenated.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class ExampleChunk(NamedTuple):
    """A chunk of n examples with T sequences each, 2 for pairs of texts and else 1.

    tokens (total,) or (total, F), lengths (n * T,) int, labels (n,) int64 or float32.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


class Examples(Protocol):
    """The n examples of a split, which are stored or generated when they are read; see ``Split`` for the members."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def lengths(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def to(self, device: torch.device | str) -> "Examples": ...

    def gather(self, index: Tensor, width: int, limit: int | None = None) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Split:
    """One split of n examples with T sequences each.

    Args:
        tokens: all sequences, one after the other, (total,) or (total, F).
        offsets: the start of each sequence in ``tokens``, then the end of the last one, (n * T + 1,) int64.
        labels: labels (n,).
        towers: T, 2 for pairs of texts and else 1.
    """

    tokens: Tensor
    offsets: Tensor
    labels: Tensor
    towers: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """Stored length of every sequence, (n, T) int64."""
        return self.offsets.diff().view(-1, self.towers)

    def to(self, device: torch.device | str) -> "Split":
        """Copy the split to a device."""
        tokens = self.tokens.to(device)
        offsets = self.offsets.to(device)
        labels = self.labels.to(device)
        return Split(tokens, offsets, labels, self.towers)

    def gather(self, index: Tensor, width: int, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Gather the examples index (B,), padded with zeros.

        Args:
            index: numbers of the examples.
            width: width of the result; a longer sequence is cut.
            limit: tokens read per sequence; None for all.

        Returns:
            Tokens (B, T, width[, F]) in the stored dtype and mask (B, T, width), True = real.
        """
        index = index.to(self.offsets.device)
        towers = torch.arange(self.towers, device=index.device)
        # The T sequences of an example follow each other.
        first_tower = index[:, None] * self.towers  # (B, 1)
        sequences = first_tower + towers  # (B, T)
        first = self.offsets[sequences]
        end = self.offsets[sequences + 1]
        longest = width if limit is None else min(limit, width)
        lengths = (end - first).clamp(max=longest)  # (B, T)

        # Padding reads token 0 and is zeroed afterwards.
        position = torch.arange(width, device=index.device)
        mask = position < lengths[..., None]  # (B, T, width)
        token_index = first[..., None] + position  # (B, T, width)
        token_index.masked_fill_(~mask, 0)
        features = self.tokens.shape[1:]
        tokens = self.tokens.index_select(0, token_index.view(-1))  # (B T width[, F])
        tokens = tokens.view(*token_index.shape, *features)
        ones = (1,) * len(features)
        padding = ~mask.view(*mask.shape, *ones)
        return tokens.masked_fill_(padding, 0), mask


@dataclass(frozen=True)
class EpochPermutation:
    """An endless stream of the indices 0 .. n-1: a new permutation for every epoch, drawn from (seed, epoch)."""

    n: int
    seed: int

    def __getitem__(self, positions: slice) -> np.ndarray:
        """Return the indices at positions start .. stop-1 of the stream."""
        stream = np.arange(positions.start, positions.stop)
        epochs = stream // self.n
        # The slice may cover parts of several epochs.
        parts = []
        for epoch in np.unique(epochs):
            offsets = stream[epochs == epoch] % self.n
            parts.append(_permutation(self.n, self.seed, epoch)[offsets])
        return np.concatenate(parts)


# The next slice often begins in the epoch in which this one ends.
@functools.lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)
