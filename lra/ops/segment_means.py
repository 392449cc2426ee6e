"""The order of real tokens, and means over consecutive segments of them (Nystromformer, SOFT)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .precision import full_precision


def argsort_valid_first(mask: Bool[Tensor, "N L"]) -> Int[Tensor, "N L"]:
    """Sort positions so that the real ones come first; each group keeps its order."""
    # ONNX has no stable sort, so the rank of each position is counted instead.
    real_rank = mask.cumsum(-1)
    num_real = mask.sum(-1, keepdim=True)  # (N,1)
    padding_count = (~mask).cumsum(-1)
    padded_rank = num_real + padding_count
    rank = torch.where(mask, real_rank, padded_rank) - 1  # (N,L)

    # Position p of rank r goes to entry r.
    positions = torch.arange(mask.shape[-1], device=mask.device)
    positions = positions.expand_as(rank)
    order = torch.empty_like(rank)
    return order.scatter_(-1, rank, positions)


@full_precision
def segment_means(
    mask: Bool[Tensor, "N L"],
    count: int,
    *tensors: Float[Tensor, "N H L _"],
) -> tuple[list[Float[Tensor, "N H count _"]], Bool[Tensor, "N count"]]:
    """Average consecutive segments of the real tokens, in float32 or wider.

    Real token r of n_real lies in segment floor(r c / n_real), c = min(count, n_real).

    Args:
        mask: real tokens.
        count: number of segments.
        tensors: queries, keys or values.

    Returns:
        The means of each tensor, zero for a segment without a token, and which segments have one: the first c.
    """
    # The segment of each token.
    n_real = mask.sum(-1, keepdim=True)  # (N,1)
    num_segments = n_real.clamp(max=count)  # (N,1)
    rank = mask.cumsum(-1) - 1  # (N,L)
    divisor = n_real.clamp(min=1)
    segment = rank * num_segments // divisor  # (N,L)
    numbers = torch.arange(count, device=mask.device)
    is_used = numbers < num_segments  # (N,count)

    if mask.device.type == "cpu":
        # Padding goes to an extra segment, number ``count``.
        segment = segment.masked_fill(~mask, count)
        return [_scattered_means(x, segment, count) for x in tensors], is_used

    # A product with the membership matrix: on a GPU additions into shared entries come in no fixed order.
    is_in_segment = segment[:, None] == numbers[:, None]  # (N,count,L)
    is_member = is_in_segment & mask[:, None]
    member = is_member.to(tensors[0].dtype)
    sizes = member.sum(-1, keepdim=True).clamp(min=1)  # (N,count,1)
    weights = member / sizes
    weights = weights[:, None]  # (N,1,count,L)
    return [weights @ x for x in tensors], is_used


def _scattered_means(
    x: Float[Tensor, "N H L D"],
    segment: Int[Tensor, "N L"],
    count: int,
) -> Float[Tensor, "N H count D"]:
    """Add each token to its segment, numbered from 0 to count, and divide by the sizes."""
    N, H, _, D = x.shape
    num_bins = count + 1
    # Tokens of each segment, (N,num_bins).
    ones = torch.ones_like(segment, dtype=x.dtype)
    zeros = torch.zeros(N, num_bins, dtype=x.dtype)
    sizes = zeros.scatter_add(1, segment, ones)

    # Bins of all examples and heads in one index.
    heads = torch.arange(N * H).view(N, H, 1)
    first_bins = heads * num_bins
    index = first_bins + segment[:, None]  # (N,H,L)
    index = index.flatten()
    tokens = x.flatten(0, 2)  # (N H L,D)
    sums = x.new_zeros(N * H * num_bins, D)
    sums = sums.index_add(0, index, tokens)

    # Leave out the last bin, which collects the padding.
    sums = sums.view(N, H, num_bins, D)[:, :, :count]
    divisor = sizes[:, None, :count, None].clamp(min=1)  # (N,1,count,1)
    return sums / divisor
