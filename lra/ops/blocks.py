"""Attention within blocks and bands of a sequence, without a matrix over all pairs of positions.

N examples, H heads, L length, D key size, E value size; B blocks of b positions, i queries that see the same j keys.
Blocks are counted from position 0 and the last one is filled with zeros, so they do not depend on a batch's padding.

``attend_blocks`` is one softmax over gathered keys. If the keys of a query come in parts of different shape,
``attend_part`` gives the unnormalised sums of a part, ``add_parts`` adds them and ``normalise_parts`` divides by their
total: one softmax over all parts.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

# A score whose weight is 0 next to any real score. Unlike -inf it gives no NaN if all scores have this value.
MIN_SCORE = -1e30


def split_blocks(x: Tensor, size: int, dim: int = 2) -> Tensor:
    """Split dimension ``dim`` of length L into (B, size), with the last block filled with zeros (False)."""
    num_padding = -x.shape[dim] % size
    filled = _fill(x, dim, 0, num_padding)
    return filled.unflatten(dim, (-1, size))


def windows(x: Tensor, size: int, left: int, right: int, dim: int = 2) -> Tensor:
    """Extend each block by its neighbours: x (..., L, *rest) -> (..., B, left + size + right, *rest).

    Positions outside the sequence are zero (False). The result is a strided view of x, or of one padded copy.

    Args:
        x: tensor whose dimension ``dim`` is L.
        size: size of a block.
        left, right: positions added on each side.
        dim: dimension of L.
    """
    num_padding = -x.shape[dim] % size
    filled = _fill(x, dim, left, num_padding + right)
    window = left + size + right
    unfolded = filled.unfold(dim, window, size)
    return unfolded.movedim(-1, dim + 1)


def real_blocks(
    mask: Bool[Tensor, "N L"] | None,
    L: int,
    size: int,
    device: torch.device,
) -> Bool[Tensor, "#N B size"] | None:
    """Split a mask into blocks; None if the mask is None and L is a multiple of ``size``."""
    if mask is None:
        if L % size == 0:
            return None
        mask = torch.ones(1, L, dtype=torch.bool, device=device)
    return split_blocks(mask, size, 1)


def band_mask(size: int, num_left: int, num_right: int, device: torch.device) -> Bool[Tensor, "b j"]:
    """Mark the window's keys that lie in the band of each query of a block."""
    num_keys = num_left + size + num_right
    key = torch.arange(num_keys, device=device)
    query = torch.arange(size, device=device)[:, None]
    # Offset of the key from the first key of the query's band.
    offset = key - query
    return (offset >= 0) & (offset <= num_left + num_right)


def gather_blocks(
    x: Shaped[Tensor, "N H R *rest"],
    index: Int[Tensor, "N H *places"],
) -> Shaped[Tensor, "..."]:
    """Gather entries of x, such as blocks or tokens, along dimension 2 of size R: (N,H,*places,*rest)."""
    N, H, R = x.shape[:3]
    # The first entry of each head, broadcastable to index.
    first = torch.arange(0, N * H * R, R, device=x.device)  # (N·H,)
    ones = [1] * (index.dim() - 2)
    first = first.view(N, H, *ones)

    # With a flat index the gradient adds whole entries; the gradient of gather adds single numbers.
    flat_index = (index + first).flatten()
    entries = x.reshape(N * H * R, -1)
    gathered = entries.index_select(0, flat_index)
    return gathered.view(*index.shape, *x.shape[3:])


def attend_blocks(
    q: Float[Tensor, "N H B i D"],
    k: Float[Tensor, "N H B j D"],
    v: Float[Tensor, "N H B j E"],
    allowed: Bool[Tensor, "#N #H B _ j"] | None = None,
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H B i E"]:
    """Compute softmax(q kᵀ / √D) v in each block; a query without any allowed key gets zero.

    Args:
        q, k, v: queries, keys and values of each block.
        allowed: the keys of each query, or of all queries of a block; None for all. Shape (N,1 or H,...) or
            (1,1,...).
        scale: factor of the scores; None for 1 / √D.
    """
    N = q.shape[0]
    if allowed is None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (N H,B,.,.)
        out = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return out.unflatten(0, (N, -1))

    # For a query without keys some of torch's kernels give zero and others NaN, so it gets all keys first.
    has_key = allowed.any(-1, keepdim=True)
    allowed = allowed | ~has_key
    if allowed.shape[:2] == (1, 1):
        # torch's head dimension holds the blocks here, so that all examples and heads share one mask.
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (N H,B,.,.)
        shared = allowed[0]
        out = F.scaled_dot_product_attention(q, k, v, shared, scale=scale)
        out = out.unflatten(0, (N, -1))
    else:
        q, k, v, allowed = (_blocks_first(x) for x in (q, k, v, allowed))  # (N B,H,.,.)
        out = F.scaled_dot_product_attention(q, k, v, allowed, scale=scale)
        out = out.unflatten(0, (N, -1))  # (N,B,H,i,E)
        out = out.transpose(1, 2)
    return out.masked_fill(~has_key, 0)


def _blocks_first(x: Shaped[Tensor, "N H B i j"]) -> Shaped[Tensor, "NB H i j"]:
    """Make every block an example: (N,H,B,.,.) -> (N B,H,.,.)."""
    return x.transpose(1, 2).flatten(0, 1)


def hide_keys(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L D"],
    real: Bool[Tensor, "N L"],
) -> tuple[Float[Tensor, "N H L D+1"], Float[Tensor, "N H L D+1"], Float[Tensor, "N H L D+1"]]:
    """Encode a mask of keys as a further feature of q and k, so that ``attend_blocks`` needs no mask per example.

    The feature is 1 for queries, 0 for real keys and ``MIN_SCORE`` for padded keys, so the scores of padded keys are
    about ``MIN_SCORE`` / √D. v gets a column of zeros, since torch's fused kernel takes values as wide as keys. A query
    whose keys are all padded gets the mean of their values.

    Args:
        q, k, v: queries, keys and values, not float16, which has no ``MIN_SCORE``.
        real: real keys.

    Returns:
        q, k and v of width D + 1, for ``attend_blocks`` with ``scale`` = 1 / √D. The last column of its output is zero.
    """
    is_padding = ~real[:, None, :, None]
    bias = torch.zeros_like(k[..., :1])  # (N,H,L,1)
    bias = bias.masked_fill(is_padding, MIN_SCORE)
    wide_q = F.pad(q, (0, 1), value=1.0)
    wide_k = torch.cat([k, bias], -1)
    wide_v = F.pad(v, (0, 1))
    return wide_q, wide_k, wide_v


class Part(NamedTuple):
    """Sums over a set of keys for ``normalise_parts``, with scores s and the largest of them, top."""

    # Σ exp(s - top) v
    values: Float[Tensor, "*queries E"]
    # Σ exp(s - top)
    total: Float[Tensor, "*queries 1"]
    # The largest score, at least MIN_SCORE / 2. It has no gradient, since the result does not depend on it.
    top: Float[Tensor, "*queries 1"]


def attend_part(
    scores: Float[Tensor, "*heads i j"],
    v: Float[Tensor, "*heads j E"],
    allowed: Bool[Tensor, "..."] | None,
) -> Part:
    """Compute the sums over a set of keys; a query without any allowed key gets zero.

    Args:
        scores: scaled scores.
        v: values.
        allowed: broadcastable to scores; None if every query attends to all keys.
    """
    if allowed is not None:
        scores = scores.masked_fill(~allowed, MIN_SCORE)
    top = scores.detach().amax(-1, keepdim=True)  # (*heads,i,1)
    if allowed is not None:
        # Without an allowed key all scores are MIN_SCORE, and MIN_SCORE - MIN_SCORE / 2 has the exponential 0.
        top = top.clamp(min=MIN_SCORE / 2)
    weights = (scores - top).exp()
    values = weights @ v  # (*heads,i,E)
    total = weights.sum(-1, keepdim=True)
    return Part(values, total, top)


def add_parts(parts: list[Part]) -> Part:
    """Add the sums over disjoint sets of keys."""
    tops = torch.stack([part.top for part in parts])
    top = tops.amax(0)
    values: Any = 0
    total: Any = 0
    for part in parts:
        # The factor that replaces the part's largest score by the largest of all parts.
        rescale = (part.top - top).exp()
        values = values + rescale * part.values
        total = total + rescale * part.total
    return Part(values, total, top)


def normalise_parts(parts: list[Part]) -> Tensor:
    """Compute one softmax over the union of disjoint sets of keys; zero if all of them are empty."""
    values, total, _ = add_parts(parts)
    is_empty = total == 0
    return values / (total + is_empty)


def _fill(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Add zeros (False) before and after the entries of dimension ``dim``."""
    if not before and not after:
        return x
    # F.pad counts dimensions from the last one.
    trailing_dims = x.dim() - 1 - dim
    padding = [0, 0] * trailing_dims + [before, after]
    return F.pad(x, padding)
