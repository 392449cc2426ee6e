"""Batches of a task: sequences gathered by index; the examples of a training step depend on (seed, step) only."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from .source import Source
from .split import EpochPermutation, Examples

# Widths of padded batches are rounded up to a multiple of this, at most to ``length``, so that few shapes occur.
MULTIPLE = 64
# Examples whose unmasked tokens are counted at a time.
CHUNK = 4096
# Training steps whose indices are on the device at a time.
AHEAD = 256


class Batch(NamedTuple):
    """B examples with T sequences each, padded to L tokens.

    inputs (B,T,L) int or (B,T,L,F) float; mask (B,T,L) bool, None if every token counts; label (B,) int or float;
    positions (B,T,L) int: position of each token in its sequence, all distinct; None for 0 .. L-1.
    """

    inputs: Tensor
    mask: Tensor | None
    label: Tensor
    positions: Tensor | None = None


class TaskData(L.LightningDataModule):
    """Training, validation and test batches of one task.

    Training is an endless stream of micro-batches that starts at step ``first_step``. If a batch has several
    micro-batches, it is sorted by length before it is divided, to compute little padding; so are validation and test
    sets. Evaluation visits every example once. Rank r of w takes the examples r, r + w, ... of each training
    micro-batch, padded to the width of the whole micro-batch, and the evaluation batches r, r + w, ...

    Args:
        source: a ``lra.data.source.Source``; generated sources prepare themselves.
        root: folder of all data sets.
        length: maximum sequence length of the model.
        limit: tokens read per sequence, at most ``length``.
        shift: number added to stored tokens; 1 if they are bytes, so that id 0 means padding and not byte 0.
        masked_id: a stored token that counts as padding (black pixels, as published); in a sequence of such tokens
            only, the first one counts as real. None: no such token.
        batch: examples per optimiser step, of all ranks together.
        micro_batch: examples per forward and backward pass, of all ranks together, a divisor of ``batch``; None:
            ``batch``.
        eval_batch: examples per forward pass of a rank in evaluation; None: ``batch``.
        pad: ``batch`` pads to the longest sequence of a (micro-)batch, rounded up to ``MULTIPLE``; ``fixed`` pads to
            ``length``. ``none`` pads as ``batch`` does, for a model that packs the sequences or encodes groups of
            similar lengths. ``compact`` pads as ``batch`` does. With ``masked_id`` it first removes these tokens, the
            others keep their order, and batches have ``positions``.
        mask: False: no batch has a mask, so padding counts as tokens.
        seed: seed of the order of the training examples.
    """

    def __init__(
        self,
        *,
        source: Source,
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
        self.source = source
        self.root = root
        self.length = length
        self.limit = min(limit, length)
        self.shift = shift
        self.masked_id = masked_id
        self.has_mask = mask
        self.batch = batch
        self.micro_batch = micro_batch or batch
        self.eval_batch = eval_batch or batch
        self.pad = pad
        self.compact = pad == "compact" and masked_id is not None
        self.seed = seed
        self.first_step = 0
        self.splits: dict[str, Examples] = {}

    def setup(self, stage: str | None = None) -> None:
        if self.splits:
            return
        splits = self.source.open(self.root)
        device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
        self.splits = {name: split.to(device) for name, split in splits.items()}

        # Lengths (n,) of the shortest and the longest sequence of each example stay on the CPU, to choose shapes there.
        self.shortest = {}
        self.longest = {}
        for name, split in splits.items():
            lengths = split.lengths.clamp(max=self.limit)  # (n,T)
            self.shortest[name] = lengths.amin(1)
            if self.compact:
                self.longest[name] = self._unmasked_lengths(self.splits[name])
            else:
                self.longest[name] = lengths.amax(1)

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.trainer.world_size if self.trainer else 1

    def gather(
        self, split: str, index: np.ndarray, share: slice = slice(None), device_index: Tensor | None = None
    ) -> Batch:
        """Return examples of a split, or a part of them, padded to the width of all of them.

        Args:
            split: name of the split.
            index: indices (B,) of the examples.
            share: the part that is returned.
            device_index: ``index`` on the device of the data; None if it is not there yet.
        """
        stored = self.splits[split]
        host_index = torch.from_numpy(index)
        width = self._width(split, host_index)
        shortest = int(self.shortest[split][host_index].min())
        if device_index is None:
            device_index = copy_async(host_index, stored.labels.device)
        part = device_index[share]

        # Compaction removes tokens before it cuts to the width, so it needs whole sequences.
        stored_width = self.limit if self.compact else width
        tokens, is_real = stored.gather(part, stored_width, self.limit)  # (B,T,L)
        if self.masked_id is not None:
            is_real = is_real & (tokens != self.masked_id)
        may_be_empty = self.masked_id is not None or shortest == 0
        if may_be_empty:
            # A softmax over no key is undefined: the first token of an empty sequence counts as real.
            is_real[..., 0] |= ~is_real.any(-1)
        # No mask if the task masks no token and the batch has no padding.
        mask = is_real if self.masked_id is not None or shortest < width else None

        positions = None
        if self.compact:
            # Positions of the real tokens in their order, then of the masked ones.
            is_masked = (~is_real).to(torch.uint8)
            positions = is_masked.argsort(dim=-1, stable=True)[..., :width]
            tokens = tokens.gather(-1, positions)
            mask = is_real.gather(-1, positions)

        # Stored id + shift. With a shift, masked tokens get id 0; without one, they keep their id.
        inputs = tokens if tokens.is_floating_point() else tokens.long()
        if self.shift:
            inputs = inputs + self.shift
            if mask is not None:
                inputs = inputs * mask
        if not self.has_mask:
            mask = None
        return Batch(inputs, mask, stored.labels[part], positions)

    def _width(self, split: str, index: Tensor) -> int:
        """Return the number of positions L of a batch of the examples index (B,)."""
        if self.pad == "fixed":
            return self.length
        lengths = self.longest[split][index]  # (B,)
        longest = max(int(lengths.max()), 1)
        return min(self.length, round_up(longest))

    def _unmasked_lengths(self, examples: Examples) -> Tensor:
        """Return the largest number of unmasked tokens in a sequence of each example, at least 1: (n,) on the CPU."""
        counts = []
        for index in torch.arange(len(examples)).split(CHUNK):
            tokens, mask = examples.gather(index, self.limit)
            unmasked = mask & (tokens != self.masked_id)  # (B,T,L)
            longest = unmasked.sum(-1).amax(1)  # (B,)
            counts.append(longest.clamp(min=1).cpu())
        return torch.cat(counts)

    def baseline(self, split: str, metric: Callable[[Tensor, Tensor], float]) -> float:
        """Score a constant answer: the most frequent class of the split or, if labels are real numbers, their mean."""
        labels = self.splits[split].labels
        if labels.is_floating_point():
            answer = labels.mean()[None]
        else:
            num_classes = max(2, int(labels.max()) + 1)
            answer = F.one_hot(labels.bincount().argmax(), num_classes)
        return metric(answer.expand(len(labels), -1), labels)

    def count_tokens(self, steps: int) -> int:
        """Count the tokens of all sequences, masked pixels included, in the batches of the first ``steps`` steps."""
        lengths = self.splits["train"].lengths.clamp(max=self.limit)  # (n,T)
        lengths = lengths.sum(1).cpu()  # (n,)
        n = len(lengths)
        # Whole epochs, and the first examples of an unfinished one.
        epochs, remainder = divmod(steps * self.batch, n)
        num_tokens = epochs * int(lengths.sum())
        if remainder:
            first = epochs * n
            last_epoch = EpochPermutation(n, self.seed)[first : first + remainder]
            num_tokens += int(lengths[last_epoch].sum())
        return num_tokens

    def train_dataloader(self) -> DataLoader:
        return _loader(_Batches(self._training_batches))

    def val_dataloader(self) -> DataLoader:
        return _loader(_Batches(lambda: self.evaluation_batches("val")))

    def test_dataloader(self) -> DataLoader:
        return _loader(_Batches(lambda: self.evaluation_batches("test")))

    def _training_batches(self) -> Iterator[Batch]:
        """Yield this rank's micro-batches without end, from step ``first_step`` on."""
        stream = EpochPermutation(len(self.splits["train"]), self.seed)
        lengths = self.longest["train"].numpy()
        device = self.splits["train"].labels.device
        share = slice(self.rank, None, self.world_size)
        first = self.first_step * self.batch
        while True:
            # The indices of the next AHEAD steps, copied to the device at once.
            last = first + AHEAD * self.batch
            indices = stream[first:last].reshape(AHEAD, self.batch)
            if self.micro_batch < self.batch:
                # Short sequences first within each batch.
                by_length = lengths[indices].argsort(1, kind="stable")
                indices = np.take_along_axis(indices, by_length, 1)
            device_indices = copy_async(torch.from_numpy(indices), device)
            for step in range(AHEAD):
                for start in range(0, self.batch, self.micro_batch):
                    part = slice(start, start + self.micro_batch)
                    yield self.gather("train", indices[step, part], share, device_indices[step, part])
            first = last

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Yield this rank's batches of a split; over all ranks every example comes once."""
        index = self.longest[split].argsort(stable=True).numpy()
        device_index = copy_async(torch.from_numpy(index), self.splits[split].labels.device)
        start = self.rank * self.eval_batch
        stride = self.world_size * self.eval_batch
        for first in range(start, len(index), stride):
            part = slice(first, first + self.eval_batch)
            yield self.gather(split, index[part], device_index=device_index[part])

    def count_widths(self) -> int:
        """Count the different widths of the undivided batches that fit into the first epoch, at least one batch."""
        if self.pad == "fixed":
            return 1
        lengths = self.longest["train"].numpy()
        num_batches = max(1, len(lengths) // self.batch)
        index = EpochPermutation(len(lengths), self.seed)[0 : num_batches * self.batch]
        batch_lengths = lengths[index].reshape(num_batches, self.batch)
        longest = batch_lengths.max(1)
        return len(np.unique(round_up(longest)))

    def state_dict(self) -> dict:
        return {"step": self.trainer.global_step if self.trainer else self.first_step}

    def load_state_dict(self, state: dict) -> None:
        self.first_step = state["step"]


def round_up(length):
    """Round a length, or an array of them, up to a multiple of ``MULTIPLE``."""
    return -(-length // MULTIPLE) * MULTIPLE


def copy_async(index: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device; from pinned memory, a GPU copies while the CPU continues."""
    if device.type == "cuda":
        index = index.pin_memory()
    return index.to(device, non_blocking=True)


class _Batches(IterableDataset):
    """A dataset that iterates over the batches of ``start()``."""

    def __init__(self, start: Callable[[], Iterator[Batch]]):
        self.start = start

    def __iter__(self) -> Iterator[Batch]:
        return self.start()


def _loader(batches: _Batches) -> DataLoader:
    # The dataset yields whole batches.
    return DataLoader(batches, batch_size=None)
