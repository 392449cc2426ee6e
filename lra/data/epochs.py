"""The order of the training examples: one permutation per epoch, drawn from (seed, epoch)."""

import functools
from dataclasses import dataclass

import numpy as np


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
