"""Selection of the rows (queries) and columns (keys) that CUR attention keeps: score x pairing -> indices.

No gradient flows through a selection. Kept positions are distinct and real tokens always come before padded ones.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..varlen import VarlenLayout
from . import triton as kernels
from .cur_naive import CUROptions, Pairing, Score
from .precision import to_unit
from .segments import real_first

Resample = Literal["train", "always"]
SCORES, PAIRINGS = get_args(Score), get_args(Pairing)
FUSED = ("sum", "abs", "embed")


@torch.no_grad()
def select(
    q: Tensor,
    k: Tensor,
    options: CUROptions,
    mask: Tensor | None = None,
    *,
    layout: VarlenLayout | None = None,
    draw: Tensor | None = None,
    fused: bool = False,
) -> tuple[Tensor, Tensor]:
    """Select rows and columns by the rules of CURformer (Francois et al. 2025, sections 4 and 6).

    Args:
        q, k: (N,H,L,D), packed (1,H,T,D). mask: (N,L), not of packed rows.
        options: count, score, pairing and class_token of ``CUROptions``.
        layout: places of packed rows, none of them shorter than count; not with score=farthest.
        draw: the random numbers of score=random, one for each side, head and position (2,H,length), the same for every
            example; None draws new ones.
        fused: ``sum``, ``abs`` and ``embed`` in one launch over queries and keys, in float32.

    Returns:
        rows, cols, each int64 (N,H,c) with c = min(count, L), of packed rows places among the T.
    """
    N, H, L, _ = q.shape
    score, count = options.score, min(options.count, L)
    if score == "step":
        kept = every(N, L, count, mask, q.device) if layout is None else layout.every(count)
        kept = kept[:, None].expand(-1, H, -1)
        return kept, kept
    rows, cols = {"separate": (q, k), "same_k": (k, k), "same_q": (q, q), "swapped": (k, q)}[options.pairing]
    if fused and score in FUSED:
        front = options.class_token
        scores = kernels.row_scores(rows, None if rows is cols else cols, mask, score=score, class_token=front)
        kept = scores.topk(count, sorted=False).indices  # (1 or 2,N,H,c)
        return kept[0], kept[-1]
    positions = torch.arange(L, device=q.device) if layout is None else layout.positions

    def best(x: Tensor, side: int) -> Tensor:
        if score == "farthest":
            return farthest(x, count, mask)
        scores = _scores(x, options, None if draw is None else draw[side], positions)
        if layout is not None:
            return layout.top(scores, count)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        return scores.topk(count, sorted=False).indices

    kept = best(rows, 0)
    return kept, kept if rows is cols else best(cols, 1)


def _scores(x: Tensor, options: CUROptions, draw: Tensor | None, positions: Tensor) -> Tensor:
    """Score x (N,H,L,D) at positions (L,), with draw (H,length) for score=random: (N,H,L)."""
    wide = torch.promote_types(x.dtype, torch.float32)  # 16 bits have many equal sums
    match options.score:
        case "sum":
            scores = x.sum(-1, dtype=wide)
        case "abs":
            scores = x.abs().sum(-1, dtype=wide)
        case "embed":
            scores = x[..., 0]
        case "random" if draw is None:
            scores = torch.rand(x.shape[:3], device=x.device)
        case "random":
            scores = draw[:, positions].expand(len(x), -1, -1)
    return scores.masked_fill(positions == 0, float("inf")) if options.class_token else scores


def every(N: int, L: int, count: int, mask: Tensor | None, device) -> Tensor:
    """Select positions floor(i n_real / c) among the real tokens, i = 0 .. c-1: (N, c).

    If there are fewer real tokens than c, all of them are selected, then padded ones.
    """
    i = torch.arange(count, device=device)
    if mask is None:
        return (i * L // count).expand(N, -1)
    real = mask.sum(-1, keepdim=True)  # (N,1)
    rank = torch.where(real >= count, i * real // count, i)
    return real_first(mask).gather(-1, rank)


def farthest(x: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Select by farthest-point traversal (Gonzalez 1985) in O(L count D): x (N,H,L,D) -> int64 (N,H,count), in order.

    The first is the first real token. The largest distance of a real token to the nearest selected one is at most twice
    that of the best selection.
    """
    N, H, _, D = x.shape
    x = (x if x.dtype == torch.float64 else x.float()).flatten(0, 1)  # (N·H,L,D)
    if mask is not None:
        mask = mask.repeat_interleave(H, 0)
        x = x.masked_fill(~mask[..., None], 0)
    x = x * to_unit(x)
    across, squared = x.mT.contiguous(), x.square().sum(-1)
    # to the nearest selected one; padding comes after real tokens, selected ones last
    apart = torch.full_like(squared, float("inf"))
    at = torch.zeros(N * H, 1, dtype=torch.int64, device=x.device)
    if mask is not None:
        apart.masked_fill_(~mask, torch.finfo(x.dtype).min)
        at = mask.to(torch.uint8).argmax(-1, keepdim=True)
    kept = [at]
    for _ in range(count - 1):
        apart.scatter_(1, at, float("-inf"))
        point = x.gather(1, at[..., None].expand(-1, -1, D))  # (N·H,1,D)
        new = torch.baddbmm((squared + squared.gather(1, at))[:, None], point, across, alpha=-2)[:, 0]
        at = torch.minimum(apart, new, out=apart).argmax(-1, keepdim=True)
        kept.append(at)
    return torch.cat(kept, -1).view(N, H, count)


def gather_kept(x: Tensor, index: Tensor) -> Tensor:
    """Gather the rows of x (N,H,L,D), or of a mask x (N,L), at index (N,H,c)."""
    if x.dim() == 2:
        return x[:, None].expand(-1, index.shape[1], -1).gather(2, index)
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))


def put_kept(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Replace the rows of x (N,H,L,E) at index (N,H,c) by ``rows`` (N,H,c,E)."""
    return x.scatter(2, index[..., None].expand_as(rows), rows.to(x.dtype))


def no_row_empty(mask: Tensor | None) -> Tensor | None:
    """Mark all tokens of an example as real if none is: mask (N,L) -> (N,L).

    A softmax over no key is NaN. The rows of such an example are not used, but a zero gradient times NaN is NaN.
    """
    return None if mask is None else mask | ~mask.any(-1, keepdim=True)
