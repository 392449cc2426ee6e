"""Consecutive segments of the real tokens of a sequence, over which Nystromformer and SOFT average."""

import torch
from torch import Tensor

from .precision import full_precision


def real_first(mask: Tensor) -> Tensor:
    """Order positions so that the real ones come first, both groups in their order: (N,L) -> int64 (N,L)."""
    # ONNX has no stable sort, so the rank of each position is counted instead.
    real_rank = mask.cumsum(-1)
    num_real = mask.sum(-1, keepdim=True)
    padded_rank = num_real + (~mask).cumsum(-1)
    rank = torch.where(mask, real_rank, padded_rank) - 1  # (N,L)
    positions = torch.arange(mask.shape[-1], device=mask.device).expand_as(rank)
    return torch.empty_like(rank).scatter_(-1, rank, positions)


@full_precision
def segment_means(mask: Tensor | None, count: int, *rows: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Average consecutive segments of the real tokens: token r of n_real lies in segment floor(r c / n_real).

    Args:
        mask: real tokens (N,L); None if all are real.
        count: number of segments.
        rows: tensors (N,H,L,D).

    Returns:
        The means of each tensor (N,H,count,D), and whether a segment has a token (N,count), which the first
        c = min(count, n_real) have; None if all of them have.
    """
    N, _, L, _ = rows[0].shape
    # Segments of equal width.
    if mask is None and L % count == 0:
        means = [x.unflatten(2, (count, -1)).mean(3) for x in rows]
        return means, None
    if mask is None:
        mask = torch.ones(N, L, dtype=torch.bool, device=rows[0].device)

    # The segment of each token.
    n_real = mask.sum(-1, keepdim=True)  # (N,1)
    num_segments = n_real.clamp(max=count)  # (N,1)
    rank = mask.cumsum(-1) - 1  # (N,L)
    segment = rank * num_segments // n_real.clamp(min=1)  # (N,L)
    numbers = torch.arange(count, device=mask.device)
    is_used = numbers < num_segments  # (N,count)

    if mask.device.type == "cpu":
        # The number `count` collects the padding.
        segment = segment.masked_fill(~mask, count)
        return [_scattered_means(x, segment, count) for x in rows], is_used

    # A product with the membership matrix: on a GPU additions into shared entries come in no fixed order.
    is_member = (segment[:, None] == numbers[:, None]) & mask[:, None]  # (N,count,L)
    member = is_member.to(rows[0].dtype)
    sizes = member.sum(-1, keepdim=True).clamp(min=1)  # (N,count,1)
    weights = (member / sizes)[:, None]  # (N,1,count,L)
    return [weights @ x for x in rows], is_used


def _scattered_means(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """Add each token of x (N,H,L,D) to its segment (N,L), numbered from 0 to count: means (N,H,count,D)."""
    N, H, _, D = x.shape
    num_bins = count + 1
    # Tokens of each segment, (N,num_bins).
    ones = torch.ones_like(segment, dtype=x.dtype)
    sizes = torch.zeros(N, num_bins, dtype=x.dtype).scatter_add(1, segment, ones)

    # Bins of all examples and heads in one index.
    first_bins = torch.arange(N * H).view(N, H, 1) * num_bins
    index = (first_bins + segment[:, None]).flatten()  # (N H L)
    tokens = x.flatten(0, 2)  # (N H L,D)
    sums = x.new_zeros(N * H * num_bins, D).index_add(0, index, tokens)
    sums = sums.view(N, H, num_bins, D)[:, :, :count]
    divisor = sizes[:, None, :count, None].clamp(min=1)  # (N,1,count,1)
    return sums / divisor
