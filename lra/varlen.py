"""Packed sequences: the real tokens of a batch of sequences of different lengths, without the padding between them.

Shapes: N sequences of at most L tokens, T packed tokens, H heads, width D or E per head, c selected tokens.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

# Sequences of similar lengths that are processed together.
GROUP_SIZE = 8


class VarlenLayout:
    """The layout of the real tokens of N sequences as T packed tokens, in order.

    Attributes:
        mask: the mask (N,L).
        real: number of real tokens (N,) of each sequence; ``lengths`` as a list.
        starts: packed index (N,) of the first token of each sequence.
        positions: position (T,) of each packed token in its sequence.
        filled: True (1,T) for real tokens among the T; None if all are real.
        groups: sequences in the order of their lengths, ``GROUP_SIZE`` at a time.
        tail: number of tokens that were added to make T a multiple of ``multiple``.

    Args:
        mask: real tokens (N,L).
        multiple: T is padded to a multiple of this number, so that products have few shapes. The added tokens are
            copies of the first real token; they change no other token and have no gradient.
    """

    def __init__(self, mask: Tensor, multiple: int = 1):
        self.mask = mask
        # Lengths, and groups of similar lengths.
        self.real = mask.sum(-1)
        self.lengths: list[int] = self.real.tolist()
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        self.groups = [order[first : first + GROUP_SIZE] for first in range(0, len(order), GROUP_SIZE)]

        # Index of each token among the T, valid where the mask is True; and of each packed token among the N L.
        self.starts = self.real.cumsum(0) - self.real
        self._packed_index = self.starts[:, None] + mask.cumsum(-1) - 1  # (N,L)
        self._flat_index = mask.flatten().nonzero()[:, 0]

        # Added tokens at the end.
        self.tail = -len(self._flat_index) % multiple
        added = self._flat_index[:1].expand(self.tail)
        self._padded_flat_index = torch.cat([self._flat_index, added])  # (T,)
        self.positions = self._padded_flat_index % mask.shape[1]
        index = torch.arange(len(self._padded_flat_index), device=mask.device)
        self.filled = index[None] < len(self._flat_index) if self.tail else None

    def pack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Pack (N,...,L,...), L at ``dim``, as (1,...,T,...)."""
        flat = x.movedim(dim, 1).flatten(0, 1)
        packed = flat.index_select(0, self._padded_flat_index)
        return packed[None].movedim(1, dim)

    def unpack(self, x: Tensor, dim: int = 1, fill: float = 0.0) -> Tensor:
        """Unpack (1,...,T,...), T at ``dim``, as (N,...,L,...) with ``fill`` at padded positions."""
        tokens = x.movedim(dim, 1)[0, : len(self._flat_index)]
        flat = tokens.new_full((self.mask.numel(), *tokens.shape[1:]), fill)
        flat = flat.index_copy(0, self._flat_index, tokens)
        return flat.unflatten(0, self.mask.shape).movedim(1, dim)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split a packed x along ``dim`` into the real tokens of its N sequences."""
        return x.narrow(dim, 0, len(self._flat_index)).split(self.lengths, dim)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the tokens of each sequence, in float32 at least: (1,T,d) -> (N,d)."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.cat([tokens.sum(1, dtype=dtype) for tokens in self.split(x, 1)])

    def every(self, count: int) -> Tensor:
        """Return packed indices (N,count) at equal distances in each sequence."""
        # Token i is at position floor(i length / count).
        i = torch.arange(count, device=self.real.device)
        positions = i * self.real[:, None] // count
        return self.starts[:, None] + positions

    def top(self, scores: Tensor, count: int) -> Tensor:
        """Return the packed indices (N,H,count) of the ``count`` highest scores (1,H,T) of each sequence.

        No sequence may be shorter than ``count``.
        """
        # The highest scores per sequence, at padded positions -inf; then positions become packed indices.
        unpacked = self.unpack(scores, 2, float("-inf"))  # (N,H,L)
        positions = unpacked.topk(count, sorted=False).indices
        packed_index = self._packed_index[:, None].expand(-1, positions.shape[1], -1)
        return packed_index.gather(2, positions)

    def packs(self, x: Tensor) -> bool:
        """Whether x is packed (1,H,T,D), as opposed to selected tokens of each sequence (N,H,c,D)."""
        return x.shape[2] == len(self.positions)

    def rows(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split x, packed (1,H,T,D) or selected (N,H,c,D), into N sequences (H,·,D)."""
        return self.split(x[0], 1) if self.packs(x) else x.unbind()

    def join(self, rows: Iterable[Tensor]) -> Tensor:
        """Join sequences (H,·,D) to packed tokens (1,H,T,D), which are (1,T,H,D) in memory."""
        parts = [row.transpose(0, 1) for row in rows]
        # The added tokens get zeros.
        if self.tail:
            parts.append(parts[0].new_zeros(self.tail, *parts[0].shape[1:]))
        return torch.cat(parts)[None].transpose(1, 2)


def gather_packed(x: Tensor, index: Tensor) -> Tensor:
    """Gather the tokens of a packed x (1,H,T,D) at index (N,H,c): (N,H,c,D)."""
    N, _, c = index.shape
    tokens = x.transpose(1, 2).gather(1, _expand(index, x))  # (1,N c,H,D)
    return tokens[0].unflatten(0, (N, c)).transpose(1, 2)


def put_packed(x: Tensor, index: Tensor, tokens: Tensor) -> Tensor:
    """Replace the tokens of a packed x (1,H,T,E) at index (N,H,c) by ``tokens`` (N,H,c,E)."""
    flat = tokens.to(x.dtype).transpose(1, 2).flatten(0, 1)[None]  # (1,N c,H,E)
    return x.transpose(1, 2).scatter(1, _expand(index, x), flat).transpose(1, 2)


def _expand(index: Tensor, x: Tensor) -> Tensor:
    """Expand an index (N,H,c) to (1,N c,H,D), the order of packed tokens in memory."""
    flat = index.transpose(1, 2).flatten(0, 1)
    return flat[None, ..., None].expand(-1, -1, -1, x.shape[-1])
