"""Gathered bands and blocks: attention within pieces of a row, without a matrix over all pairs of positions.

N examples, H heads, L length, D key size, E value size; B blocks of b positions, i queries that see the same j keys.
Blocks are counted from position 0 and the last one is filled with zeros, so they do not depend on a batch's padding.

``attend`` is one softmax over gathered keys. If the keys of a query come in parts of different shape, ``weigh`` gives
each part's unnormalised sums, ``union`` adds them and ``merge`` makes one softmax of them.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = -1e30  # a score whose weight is 0 beside any real score, and that unlike -inf gives no NaN beside another one


def blocks(x: Tensor, size: int, dim: int = 2) -> Tensor:
    """Split dimension ``dim`` of length L into (B, size), with the last block filled with zeros (False)."""
    return _fill(x, dim, 0, -x.shape[dim] % size).unflatten(dim, (-1, size))


def windows(x: Tensor, size: int, left: int, right: int, dim: int = 2) -> Tensor:
    """Extend each block by its neighbours: x (..., L, *rest) -> (..., B, left + size + right, *rest).

    Positions outside the row are zero (False). For x (N,H,L,D) the result is a strided view of one padded copy.

    Args:
        x: L is dimension ``dim``.
        size: size of a block.
        left, right: neighbours on each side.
        dim: dimension of L.
    """
    x = _fill(x, dim, left, -x.shape[dim] % size + right)
    return x.unfold(dim, left + size + right, size).movedim(-1, dim + 1)


def real_blocks(mask: Tensor | None, L: int, size: int, device) -> Tensor | None:
    """Whether each place of the blocks holds a real token, (N or 1, B, size); None if all of them do."""
    if mask is None:
        if L % size == 0:
            return None
        mask = torch.ones(1, L, dtype=torch.bool, device=device)
    return blocks(mask, size, 1)


def gather_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of x (N,H,R,*rest) at index (N,H,*places): (N,H,*places,*rest)."""
    N, H, R = x.shape[:3]
    start = torch.arange(0, N * H * R, R, device=x.device).view(N, H, *[1] * (index.dim() - 2))
    # With a flat index the gradient adds whole rows; that of gather adds single numbers.
    rows = x.reshape(N * H * R, -1).index_select(0, (index + start).flatten())
    return rows.view(*index.shape, *x.shape[3:])


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Compute softmax(q kᵀ / √D) v in each block; a query without any allowed key gets zero.

    Args:
        q: (N,H,B,i,D).
        k: (N,H,B,j,D).
        v: (N,H,B,j,E).
        allowed: the keys of each query, (1,1,B,i or 1,j) or (N,H or 1,B,i or 1,j); None for all.

    Returns:
        (N,H,B,i,E).
    """
    N = q.shape[0]
    if allowed is None:
        return F.scaled_dot_product_attention(*(t.flatten(0, 1) for t in (q, k, v))).unflatten(0, (N, -1))
    some = allowed.any(-1, keepdim=True)
    allowed = allowed | ~some  # for a row without keys some of torch's kernels give zero and others NaN
    if allowed.shape[:2] == (1, 1):  # blocks become heads, so that all examples and heads share one mask
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (N H,B,.,.)
        out = F.scaled_dot_product_attention(q, k, v, allowed[0]).unflatten(0, (N, -1))
    else:
        q, k, v, allowed = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v, allowed))  # (N B,H,.,.)
        out = F.scaled_dot_product_attention(q, k, v, allowed).unflatten(0, (N, -1)).transpose(1, 2)
    return out.masked_fill(~some, 0)


class Part(NamedTuple):
    """The sums over a set of keys for ``merge``: Σ exp(s - top) v, Σ exp(s - top) and the largest score, top."""

    values: Tensor  # (..., i, E)
    total: Tensor  # (..., i, 1)
    top: Tensor  # (..., i, 1), no gradient: the result does not depend on it


def weigh(scores: Tensor, v: Tensor, allowed: Tensor) -> Part:
    """Compute the sums over a set of keys; a row without any allowed key is zero.

    Args:
        scores: (..., i, j).
        v: (..., j, E).
        allowed: bool, broadcastable to scores.
    """
    scores = scores.masked_fill(~allowed, FLOOR)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=FLOOR / 2)
    weights = (scores - top).exp()
    return Part(weights @ v, weights.sum(-1, keepdim=True), top)


def union(parts: list[Part]) -> Part:
    """Add up the sums of disjoint sets of keys."""
    top = torch.stack([part.top for part in parts]).amax(0)
    shares = [(part.top - top).exp() for part in parts]
    total = sum(share * part.total for share, part in zip(shares, parts, strict=True))
    return Part(sum(share * part.values for share, part in zip(shares, parts, strict=True)), total, top)


def merge(parts: list[Part]) -> Tensor:
    """One softmax over the union of disjoint sets of keys; zero if all of them are empty."""
    values, total, _ = union(parts)
    return values / (total + (total == 0))


def _fill(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    return F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [before, after]) if before or after else x
