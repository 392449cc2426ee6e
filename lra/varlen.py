"""Rows of different lengths side by side in one long row, without the padding between them."""

from collections.abc import Callable

import torch
from torch import Tensor


class VarlenLayout:
    """The places of the real tokens of all rows in one long row of T tokens, in order.

    ``lengths`` and ``real`` (N,) are the numbers of real tokens, ``starts`` (N,) the places at which rows begin,
    ``positions`` (T,) the positions of the tokens in their own rows, ``mask`` (N,L) as given.

    Args:
        mask: real tokens (N,L).
        tile: rows are padded to multiples of tile with a copied token: the first real token of all, which changes no
            other and has no gradient.
        whole: T is padded to a multiple of whole, a multiple of tile. Few lengths T are few shapes of matrix products.
    """

    def __init__(self, mask: Tensor, tile: int = 1, whole: int = 1):
        self.mask = mask
        self.real = mask.sum(-1)
        self.lengths: list[int] = self.real.tolist()
        self.widths = [-(-length // tile) * tile for length in self.lengths]
        self.widths[-1] += -sum(self.widths) % whole
        width = torch.tensor(self.widths, device=mask.device)
        self.starts = width.cumsum(0) - width
        self._place = self.starts[:, None] + mask.cumsum(-1) - 1  # (N,L) among the T
        self._real = mask.flatten().nonzero()[:, 0]  # of N·L
        self._padded, self.filled = self._real, None  # (T,) of N·L; which of the T are real, None if all are
        if sum(self.widths) > len(self._real):
            self._at = self._place[mask]
            self._padded = self._real[:1].repeat(sum(self.widths)).index_copy(0, self._at, self._real)
            self.filled = mask.new_zeros(1, len(self._padded)).index_fill(1, self._at, True)
        self.positions = self._padded % mask.shape[1]

    def pack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Pack (N,...,L,...), L at ``dim``, as (1,...,T,...)."""
        flat = x.movedim(dim, 1).flatten(0, 1)
        return flat.index_select(0, self._padded)[None].movedim(1, dim)

    def unpack(self, x: Tensor, dim: int = 1, fill: float = 0.0) -> Tensor:
        """Unpack (1,...,T,...), T at ``dim``, as (N,...,L,...) with ``fill`` at padded positions."""
        flat = x.movedim(dim, 1)[0]
        flat = flat if self.filled is None else flat[self._at]
        wide = flat.new_full((self.mask.numel(), *flat.shape[1:]), fill).index_copy(0, self._real, flat)
        return wide.unflatten(0, self.mask.shape).movedim(1, dim)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split a packed x along ``dim`` into the real tokens of its N rows."""
        if self.filled is None:
            return x.split(self.lengths, dim)
        rows = zip(x.split(self.widths, dim), self.lengths, strict=True)
        return tuple(row.narrow(dim, 0, length) for row, length in rows)

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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        """Attend within each row; q, and k with v, are either packed (1,H,T,·) or kept (N,H,c,·).

        Args:
            q, k, v: queries, keys and values.
            attention: called with q, k, v of a row (1,H,·,·) and the number of its real keys, which come first.
        """
        T = len(self.positions)
        real = self.lengths if k.shape[2] == T else [k.shape[2]] * len(k)
        rows = zip(*map(self._rows, (q, k, v)), real, strict=True)
        out = [attention(*row).transpose(1, 2) for row in rows]
        return torch.cat(out, 1 if q.shape[2] == T else 0).transpose(1, 2)

    def _rows(self, x: Tensor) -> list[Tensor]:
        """Split rows in their layout in memory, (·,T,H,·), which makes the transposed rows free of copies."""
        x = x.transpose(1, 2)
        rows = x.split(self.widths, 1) if x.shape[1] == len(self.positions) else x.split(1)
        return [row.transpose(1, 2) for row in rows]


def gather_packed(x: Tensor, index: Tensor) -> Tensor:
    """Gather the tokens of a packed x (1,H,T,D) at index (N,H,c): (N,H,c,D)."""
    N, H, c = index.shape
    return x.gather(2, _wide(index, x)).view(H, N, c, -1).transpose(0, 1)


def put_packed(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Replace the tokens of a packed x (1,H,T,E) at index (N,H,c) by ``rows`` (N,H,c,E)."""
    return x.scatter(2, _wide(index, x), rows.to(x.dtype).transpose(0, 1).flatten(1, 2)[None])


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Expand an index (N,H,c) to (1,H,N c,D)."""
    return index.transpose(0, 1).flatten(1)[None, ..., None].expand(-1, -1, -1, x.shape[-1])
