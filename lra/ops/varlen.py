"""Rows of different lengths side by side in one long row, without the padding between them."""

import torch
import torch.nn.functional as F
from torch import Tensor


class VarlenLayout:
    """The places of the real tokens of mask (N,L) among the T = mask.sum() tokens of all rows, in order.

    ``lengths`` and ``real`` (N,) are the numbers of tokens, ``starts`` (N,) the places at which rows begin,
    ``positions`` (T,) those of the tokens in their own rows.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask
        self.real = mask.sum(-1)
        self.lengths: list[int] = self.real.tolist()
        self.starts = self.real.cumsum(0) - self.real
        self._padded = mask.flatten().nonzero()[:, 0]  # (T,) of N·L
        self.positions = self._padded % mask.shape[1]
        self._place = (mask.flatten().cumsum(0) - 1).view_as(mask)  # (N,L) among the T

    def pack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Pack (N,...,L,...), L at ``dim``, as (1,...,T,...)."""
        flat = x.movedim(dim, 1).flatten(0, 1)
        return flat.index_select(0, self._padded)[None].movedim(1, dim)

    def unpack(self, x: Tensor, dim: int = 1, fill: float = 0.0) -> Tensor:
        """Unpack (1,...,T,...), T at ``dim``, as (N,...,L,...) with ``fill`` at padded positions."""
        flat = x.movedim(dim, 1)[0]
        wide = flat.new_full((self.mask.numel(), *flat.shape[1:]), fill).index_copy(0, self._padded, flat)
        return wide.unflatten(0, self.mask.shape).movedim(1, dim)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split a packed x along ``dim`` into its N rows."""
        return x.split(self.lengths, dim)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the tokens of each row: (1,T,d) -> (N,d)."""
        return torch.cat([part.sum(1) for part in self.split(x, 1)])

    def top(self, scores: Tensor, count: int) -> Tensor:
        """Find the ``count`` highest scores (1,H,T) of each row: int64 (N,H,count), places among the T.

        No row may be shorter than ``count``.
        """
        first = self.unpack(scores, 2, float("-inf")).topk(count, sorted=False).indices
        return self._place[:, None].expand(-1, first.shape[1], -1).gather(2, first)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
        """Attend within each row by softmax; q, and k with v, are either packed (1,H,T,·) or kept (N,H,c,·)."""
        parts = zip(*(self._rows(x) for x in (q, k, v)), strict=True)
        rows = [F.scaled_dot_product_attention(*row, dropout_p=dropout_p).transpose(1, 2) for row in parts]
        return torch.cat(rows, 1 if q.shape[2] == len(self.positions) else 0).transpose(1, 2)

    def _rows(self, x: Tensor) -> list[Tensor]:
        """Split rows in their layout in memory, (·,T,H,·), which makes the transposed rows free of copies."""
        x = x.transpose(1, 2)
        return [row.transpose(1, 2) for row in (x.split(1) if len(x) == len(self.lengths) else self.split(x, 1))]


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
