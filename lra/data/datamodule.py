"""Batches of a task: gathered by index, in an order that is a function of (seed, step)."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

MULTIPLE = 64  # rows padded to the batch's longest one are rounded up to this, so that few shapes occur
CHUNK = 4096  # examples whose real tokens are counted at a time
AHEAD = 256  # steps whose indices lie on the device


class Batch(NamedTuple):
    """inputs (B,T,L) int or (B,T,L,F) float, mask (B,T,L) bool or None if every token is real, label (B,) int or float.

    positions (B,T,L) int: of the tokens in their rows, each once; None for 0 .. L-1.
    """

    inputs: Tensor
    mask: Tensor | None
    label: Tensor
    positions: Tensor | None = None


@dataclass(frozen=True)
class Order:
    """An endless stream of indices 0 .. n-1: one permutation after the other, each a function of (seed, pass)."""

    n: int
    seed: int

    def __getitem__(self, positions: slice) -> np.ndarray:
        """Indices at positions start .. stop-1 of the stream."""
        at = np.arange(positions.start, positions.stop)
        passes = [(p, at[at // self.n == p] % self.n) for p in np.unique(at // self.n)]
        return np.concatenate([_permutation(self.n, self.seed, p)[places] for p, places in passes])


@functools.lru_cache(maxsize=2)  # a batch may lie in two passes
def _permutation(n: int, seed: int, number: int) -> np.ndarray:
    return np.random.default_rng((seed, number)).permutation(n)


class TaskData(L.LightningDataModule):
    """Train, dev and test batches of one task.

    Training is an endless stream of micro-batches that starts at step ``first_step``; those of one batch go from short
    rows to long ones, and dev and test are sorted by length, to compute little padding. Every example of dev and test
    comes once. Process r of w takes rows r, r + w, ... of each micro-batch, padded as the whole one would be, and
    batches r, r + w, ... of dev and test.

    Args:
        source: a ``lra.data.source.Source``; it prepares itself if it can be generated.
        root: the folder of all data sets.
        length: positions of the model.
        limit: tokens read of a row.
        shift: added to stored tokens, so that byte 0 is not padding.
        masked_id: a stored token that counts as padding (black pixels, as published); a row of nothing else keeps its
            first. None: no such token.
        batch: examples of an optimiser step.
        micro_batch: examples of a forward pass in training, a divisor of ``batch``; None: all of them.
        eval_batch: examples of a forward pass in evaluation; None: ``batch``.
        pad: ``batch`` pads to the longest row of a batch, ``fixed`` to ``length``; ``none`` is ``batch`` for a model
            that packs the rows. ``compact`` is ``batch`` of rows without their masked tokens: real ones come first, in
            order, with their positions.
        mask: False: no mask, so that padding counts as tokens.
        seed: seed of the order of the training examples.
    """

    def __init__(
        self,
        *,
        source,
        root: str,
        length: int,
        limit: int,
        shift: int = 0,
        masked_id: int | None = None,
        batch: int,
        micro_batch: int | None = None,
        eval_batch: int | None = None,
        pad: str = "batch",
        mask: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        micro_batch, eval_batch = micro_batch or batch, eval_batch or batch
        self.source, self.root, self.length, self.limit = source, root, length, min(limit, length)
        self.shift, self.masked_id, self.mask = shift, masked_id, mask
        self.batch, self.micro_batch, self.eval_batch = batch, micro_batch, eval_batch
        self.pad, self.seed, self.first_step = pad, seed, 0
        self.compact = pad == "compact" and masked_id is not None
        self.splits = {}

    def setup(self, stage: str | None = None) -> None:
        if self.splits:
            return
        splits = self.source.open(self.root)
        self.shortest = {name: split.lengths.amin(1).clamp(max=self.limit) for name, split in splits.items()}
        device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
        self.splits = {name: split.to(device) for name, split in splits.items()}
        if self.compact:
            self.row_lengths = {name: self._real_lengths(split) for name, split in self.splits.items()}
        else:
            self.row_lengths = {name: split.lengths.amax(1).clamp(max=self.limit) for name, split in splits.items()}

    @property
    def place(self) -> tuple[int, int]:
        """(rank of this process, number of processes)."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def gather(self, split: str, index: np.ndarray, share: slice = slice(None), here: Tensor | None = None) -> Batch:
        """Return the examples of a split, or a share of them, as wide as all of them together.

        Args:
            split: name of the split.
            index: indices (B,) of the examples.
            share: share of them that is returned.
            here: ``index`` on the device of the rows, None if it is not there yet.
        """
        rows, index, width = self.splits[split], torch.from_numpy(index), self.length
        if self.pad != "fixed":
            longest = max(int(self.row_lengths[split][index].max()), 1)
            width = min(width, -(-longest // MULTIPLE) * MULTIPLE)
        shortest = int(self.shortest[split][index].min())
        index = (without_waiting(index, rows.labels.device) if here is None else here)[share]
        tokens, mask = rows.gather(index, self.limit if self.compact else width, self.limit)
        if self.masked_id is not None:
            mask = mask & (tokens != self.masked_id)
        if self.masked_id is not None or shortest == 0:
            mask[..., 0] |= ~mask.any(-1)  # attention over nothing has no value
        elif shortest >= width:
            mask = None
        positions = None
        if self.compact:
            # Of real tokens, then of padding.
            positions = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
            tokens, mask = tokens.gather(-1, positions), mask.gather(-1, positions)
        inputs = tokens if tokens.is_floating_point() else tokens.long()
        if self.shift:
            inputs = inputs + self.shift if mask is None else (inputs + self.shift) * mask
        return Batch(inputs, mask if self.mask else None, rows.labels[index], positions)

    def _real_lengths(self, split) -> Tensor:
        """The tokens of the longest row of each example that are not masked, at least 1, on the CPU."""
        found = []
        for index in torch.arange(len(split)).split(CHUNK):
            tokens, mask = split.gather(index, self.limit)
            found.append((mask & (tokens != self.masked_id)).sum(-1).amax(1).clamp(min=1).cpu())
        return torch.cat(found)

    def baseline(self, split: str, metric: Callable[[Tensor, Tensor], float]) -> float:
        """Score of the best constant answer: the most frequent class or, if labels are real numbers, their mean."""
        labels = self.splits[split].labels
        if labels.is_floating_point():
            answer = labels.mean()[None]
        else:
            answer = F.one_hot(labels.bincount().argmax(), max(2, int(labels.max()) + 1))
        return metric(answer.expand(len(labels), -1), labels)

    def tokens(self, steps: int) -> int:
        """Tokens of all towers, masked pixels among them, in the batches of the first ``steps`` steps of training."""
        lengths = self.splits["train"].lengths.clamp(max=self.limit).sum(1).cpu()
        n = len(lengths)
        passes, rest = divmod(steps * self.batch, n)
        begun = Order(n, self.seed)[passes * n : passes * n + rest] if rest else []
        return passes * int(lengths.sum()) + int(lengths[begun].sum())

    def train_dataloader(self) -> DataLoader:
        return _loader(_Batches(self._stream))

    def val_dataloader(self) -> DataLoader:
        return _loader(_Batches(lambda: self.evaluation_batches("val")))

    def test_dataloader(self) -> DataLoader:
        return _loader(_Batches(lambda: self.evaluation_batches("test")))

    def _stream(self) -> Iterator[Batch]:
        order, first = Order(len(self.splits["train"]), self.seed), self.first_step * self.batch
        share = slice(self.place[0], None, self.place[1])
        lengths = self.row_lengths["train"].numpy()
        while True:
            steps = order[first : first + AHEAD * self.batch].reshape(AHEAD, self.batch)
            if self.micro_batch < self.batch:
                steps = np.take_along_axis(steps, lengths[steps].argsort(1, kind="stable"), 1)
            here = without_waiting(torch.from_numpy(steps), self.splits["train"].labels.device)
            for step, i in itertools.product(range(AHEAD), range(0, self.batch, self.micro_batch)):
                part = step, slice(i, i + self.micro_batch)
                yield self.gather("train", steps[part], share, here[part])
            first += AHEAD * self.batch

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Yield this process's batches of a split; over all processes every example comes once."""
        index = self.row_lengths[split].argsort(stable=True).numpy()
        here = without_waiting(torch.from_numpy(index), self.splits[split].labels.device)
        rank, world = self.place
        for first in range(rank * self.eval_batch, len(index), world * self.eval_batch):
            part = slice(first, first + self.eval_batch)
            yield self.gather(split, index[part], here=here[part])

    def widths(self) -> int:
        """Count the different widths of the training batches of the first pass."""
        if self.pad == "fixed":
            return 1
        lengths = self.row_lengths["train"].numpy()
        whole = len(lengths) // self.batch * self.batch
        longest = lengths[Order(len(lengths), self.seed)[0:whole]].reshape(-1, self.batch).max(1)
        return len(np.unique(-(-longest // MULTIPLE)))

    def state_dict(self) -> dict:
        return {"step": self.trainer.global_step}

    def load_state_dict(self, state: dict) -> None:
        self.first_step = state["step"]


def without_waiting(index: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, which the host does not wait for: a GPU copies pinned memory by itself."""
    return (index.pin_memory() if device.type == "cuda" else index).to(device, non_blocking=True)


class _Batches(IterableDataset):
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return self.start()


def _loader(batches: _Batches) -> DataLoader:
    return DataLoader(batches, batch_size=None)
