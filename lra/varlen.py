"""Rows of different lengths side by side in one long row, without the padding between them."""

from collections.abc import Iterable

import torch
from torch import Tensor


class VarlenLayout:
    """The places of the real tokens of all rows in one long row of T tokens, in order.

    ``lengths`` and ``real`` (N,) are the numbers of real tokens, ``starts`` (N,) the places at which rows begin,
    ``positions`` (T,) the positions of the tokens in their own rows, ``mask`` (N,L) as given. ``filled`` (1,T) marks
    the real tokens among the T, None if all are. ``groups`` are the rows in order of their lengths, eight at a time.

    Args:
        mask: real tokens (N,L).
        whole: T is padded to a multiple of whole, so that products have few shapes, with copies of the first real token
            of all, which change no other and have no gradient.
    """

    def __init__(self, mask: Tensor, whole: int = 1):
        self.mask = mask
        self.real = mask.sum(-1)
        self.lengths: list[int] = self.real.tolist()
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        self.groups = [order[first : first + 8] for first in range(0, len(order), 8)]
        self.starts = self.real.cumsum(0) - self.real
        self._place = self.starts[:, None] + mask.cumsum(-1) - 1  # (N,L) among the T
        self._real = mask.flatten().nonzero()[:, 0]  # of N·L
        self.tail = -len(self._real) % whole
        self._padded = torch.cat([self._real, self._real[:1].expand(self.tail)])  # (T,) of N·L
        self.positions = self._padded % mask.shape[1]
        place = torch.arange(len(self._padded), device=mask.device)
        self.filled = place[None] < len(self._real) if self.tail else None

    def pack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Pack (N,...,L,...), L at ``dim``, as (1,...,T,...)."""
        flat = x.movedim(dim, 1).flatten(0, 1)
        return flat.index_select(0, self._padded)[None].movedim(1, dim)

    def unpack(self, x: Tensor, dim: int = 1, fill: float = 0.0) -> Tensor:
        """Unpack (1,...,T,...), T at ``dim``, as (N,...,L,...) with ``fill`` at padded positions."""
        flat = x.movedim(dim, 1)[0, : len(self._real)]
        wide = flat.new_full((self.mask.numel(), *flat.shape[1:]), fill).index_copy(0, self._real, flat)
        return wide.unflatten(0, self.mask.shape).movedim(1, dim)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split a packed x along ``dim`` into the real tokens of its N rows."""
        return x.narrow(dim, 0, len(self._real)).split(self.lengths, dim)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the tokens of each row in float32 at least: (1,T,d) -> (N,d)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.cat([part.sum(1, dtype=wide) for part in self.split(x, 1)])

    def every(self, count: int) -> Tensor:
        """Find ``count`` places among the T at equal distances in each row, (N,count)."""
        i = torch.arange(count, device=self.real.device)
        return self.starts[:, None] + i * self.real[:, None] // count

    def top(self, scores: Tensor, count: int) -> Tensor:
        """Find the ``count`` highest scores (1,H,T) of each row: int64 (N,H,count), places among the T.

        No row may be shorter than ``count``.
        """
        first = self.unpack(scores, 2, float("-inf")).topk(count, sorted=False).indices
        return self._place[:, None].expand(-1, first.shape[1], -1).gather(2, first)

    def packs(self, x: Tensor) -> bool:
        """Whether x is packed (1,H,T,D), not kept tokens of each row (N,H,c,D)."""
        return x.shape[2] == len(self.positions)

    def rows(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split x, packed (1,H,T,D) or kept (N,H,c,D), into N rows (H,·,D)."""
        return self.split(x[0], 1) if self.packs(x) else x.unbind()

    def join(self, rows: Iterable[Tensor]) -> Tensor:
        """Join rows (H,·,D) to packed ones (1,H,T,D), (1,T,H,D) in memory."""
        parts = [row.transpose(0, 1) for row in rows]
        if self.tail:
            parts.append(parts[0].new_zeros(self.tail, *parts[0].shape[1:]))
        return torch.cat(parts)[None].transpose(1, 2)


def gather_packed(x: Tensor, index: Tensor) -> Tensor:
    """Gather the tokens of a packed x (1,H,T,D) at index (N,H,c): (N,H,c,D)."""
    N, _, c = index.shape
    return x.transpose(1, 2).gather(1, _wide(index, x))[0].unflatten(0, (N, c)).transpose(1, 2)


def put_packed(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Replace the tokens of a packed x (1,H,T,E) at index (N,H,c) by ``rows`` (N,H,c,E)."""
    kept = rows.to(x.dtype).transpose(1, 2).flatten(0, 1)[None]
    return x.transpose(1, 2).scatter(1, _wide(index, x), kept).transpose(1, 2)


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Expand an index (N,H,c) to (1,N c,H,D), the order of packed rows in memory."""
    return index.transpose(1, 2).flatten(0, 1)[None, ..., None].expand(-1, -1, -1, x.shape[-1])
