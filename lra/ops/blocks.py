"""Attention within blocks and bands of a sequence, without a matrix over all pairs of positions.

N examples, H heads, L length, D key size, E value size; B blocks of b positions, i queries that see the same j keys.
Blocks are counted from position 0 and the last one is filled with zeros, so they do not depend on a batch's padding.

``attend`` is one softmax over gathered keys. If the keys of a query come in parts of different shape, ``weigh`` gives
each part's unnormalised sums, ``union`` adds them and ``merge`` divides by their total: one softmax over all parts.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# A score whose weight is 0 next to any real score. Unlike -inf it gives no NaN if all scores have this value.
FLOOR = -1e30


def blocks(x: Tensor, size: int, dim: int = 2) -> Tensor:
    """Split dimension ``dim`` of length L into (B, size), with the last block filled with zeros (False)."""
    num_padding = -x.shape[dim] % size
    filled = _fill(x, dim, 0, num_padding)
    return filled.unflatten(dim, (-1, size))


def windows(x: Tensor, size: int, left: int, right: int, dim: int = 2) -> Tensor:
    """Extend each block by its neighbours: x (..., L, *rest) -> (..., B, left + size + right, *rest).

    Positions outside the sequence are zero (False). For x (N,H,L,D) the result is a strided view of one padded copy.

    Args:
        x: tensor whose dimension ``dim`` is L.
        size: size of a block.
        left, right: neighbours on each side.
        dim: dimension of L.
    """
    num_padding = -x.shape[dim] % size
    filled = _fill(x, dim, left, num_padding + right)
    window = left + size + right
    return filled.unfold(dim, window, size).movedim(-1, dim + 1)


def real_blocks(mask: Tensor | None, L: int, size: int, device: torch.device) -> Tensor | None:
    """Split a mask into blocks, (N or 1,B,size); None if every position of every block holds a real token."""
    if mask is None:
        if L % size == 0:
            return None
        mask = torch.ones(1, L, dtype=torch.bool, device=device)
    return blocks(mask, size, 1)


def key_mask(mask: Tensor | None) -> Tensor | None:
    """Expand a mask (N,L) to (N,1,1,L) for torch's attention; an example without real tokens sees all its positions.

    For a query without keys some of torch's kernels give NaN.
    """
    if mask is None:
        return None
    mask = mask | ~mask.any(-1, keepdim=True)
    return mask[:, None, None]


def gather_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Gather entries of x (N,H,R,*rest) at index (N,H,*places): (N,H,*places,*rest)."""
    N, H, R = x.shape[:3]
    # The first entry of each head, broadcastable to index.
    first = torch.arange(0, N * H * R, R, device=x.device)  # (N·H,)
    ones = [1] * (index.dim() - 2)
    first = first.view(N, H, *ones)
    # With a flat index the gradient adds whole entries; the gradient of gather adds single numbers.
    flat_index = (index + first).flatten()
    gathered = x.reshape(N * H * R, -1).index_select(0, flat_index)
    return gathered.view(*index.shape, *x.shape[3:])


def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, scale: float | None = None) -> Tensor:
    """Compute softmax(q kᵀ / √D) v in each block; a query without any allowed key gets zero.

    Args:
        q: (N,H,B,i,D).
        k: (N,H,B,j,D).
        v: (N,H,B,j,E).
        allowed: the keys of each query, (1,1,B,i or 1,j) or (N,H or 1,B,i or 1,j); None for all.
        scale: factor of the scores; None for 1 / √D.

    Returns:
        (N,H,B,i,E).
    """
    N = q.shape[0]
    if allowed is None:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (N H,B,.,.)
        out = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return out.unflatten(0, (N, -1))

    # For a query without keys some of torch's kernels give zero and others NaN, so it gets all keys first.
    has_key = allowed.any(-1, keepdim=True)
    allowed = allowed | ~has_key
    if allowed.shape[:2] == (1, 1):
        # Blocks stand where torch expects heads, so all examples and heads share one mask.
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (N H,B,.,.)
        out = F.scaled_dot_product_attention(q, k, v, allowed[0], scale=scale)
        out = out.unflatten(0, (N, -1))
    else:
        q, k, v, allowed = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v, allowed))  # (N B,H,.,.)
        out = F.scaled_dot_product_attention(q, k, v, allowed, scale=scale)
        out = out.unflatten(0, (N, -1)).transpose(1, 2)
    return out.masked_fill(~has_key, 0)


def hide_keys(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move a mask of keys into the scores, so that ``attend`` needs none with an entry for each example and pair.

    A further column, 1 for queries and ``FLOOR`` for padded keys, gives their scores that value; v gets a column of
    zeros, since torch's fused kernel takes values as wide as keys. A query with padded keys only gets their mean.

    Args:
        q, k, v: (N,H,L,D).
        real: real keys (N,L).

    Returns:
        q, k, v (N,H,L,D + 1), for ``attend`` with ``scale`` = 1 / √D.
    """
    is_padding = ~real[:, None, :, None]
    bias = torch.zeros_like(k[..., :1]).masked_fill(is_padding, FLOOR)  # (N,H,L,1)
    q = F.pad(q, (0, 1), value=1.0)
    k = torch.cat([k, bias], -1)
    v = F.pad(v, (0, 1))
    return q, k, v


class Part(NamedTuple):
    """Sums over a set of keys for ``merge``, with scores s and the largest of them, top."""

    values: Tensor  # Σ exp(s - top) v, (..., i, E)
    total: Tensor  # Σ exp(s - top), (..., i, 1)
    top: Tensor  # (..., i, 1), no gradient: the result does not depend on it


def weigh(scores: Tensor, v: Tensor, allowed: Tensor | None) -> Part:
    """Compute the sums over a set of keys; a query without any allowed key gets zero.

    Args:
        scores: (..., i, j).
        v: values (..., j, E).
        allowed: bool, broadcastable to scores; None if every query attends to all keys.
    """
    if allowed is not None:
        scores = scores.masked_fill(~allowed, FLOOR)
    top = scores.detach().amax(-1, keepdim=True)  # (..., i, 1)
    if allowed is not None:
        # Without an allowed key all scores are FLOOR, and FLOOR - FLOOR / 2 has the exponential 0.
        top = top.clamp(min=FLOOR / 2)
    weights = (scores - top).exp()
    values = weights @ v  # (..., i, E)
    total = weights.sum(-1, keepdim=True)
    return Part(values, total, top)


def union(parts: list[Part]) -> Part:
    """Add the sums over disjoint sets of keys."""
    top = torch.stack([part.top for part in parts]).amax(0)
    values, total = 0, 0
    for part in parts:
        # The factor that replaces the part's shift by the common one.
        share = (part.top - top).exp()
        values = values + share * part.values
        total = total + share * part.total
    return Part(values, total, top)


def merge(parts: list[Part]) -> Tensor:
    """Compute one softmax over the union of disjoint sets of keys; zero if all of them are empty."""
    values, total, _ = union(parts)
    return values / (total + (total == 0))


def _fill(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Add zeros (False) before and after the entries of dimension ``dim``."""
    if not before and not after:
        return x
    # F.pad counts dimensions from the last one.
    trailing_dims = x.dim() - 1 - dim
    padding = [0, 0] * trailing_dims + [before, after]
    return F.pad(x, padding)
