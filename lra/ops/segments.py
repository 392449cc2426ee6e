"""Consecutive segments of the real tokens of a row, over which Nystromformer and SOFT average."""

import torch
from torch import Tensor

from .precision import full_precision


def real_first(mask: Tensor) -> Tensor:
    """Sort positions, those of real tokens before those of padding: (N,L) -> int64 (N,L)."""
    place = torch.where(mask, mask.cumsum(-1), mask.sum(-1, keepdim=True) + (~mask).cumsum(-1)) - 1
    here = torch.arange(mask.shape[-1], device=mask.device).expand_as(place)
    return torch.empty_like(place).scatter_(-1, place, here)  # ONNX has no stable sort


@full_precision
def segment_means(mask: Tensor, count: int, *rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Average consecutive segments of the real tokens: token r of n_real lies in segment floor(r c / n_real).

    Args:
        mask: (N,L).
        count: number of segments.
        rows: tensors (N,H,L,D).

    Returns:
        The means of each tensor (N,H,count,D), and whether a segment has a token (N,count), which the first
        c = min(count, n_real) have.
    """
    total = mask.sum(-1, keepdim=True)  # (N,1)
    used = total.clamp(max=count)
    segment = (mask.cumsum(-1) - 1) * used // total.clamp(min=1)  # (N,L)
    number = torch.arange(count, device=mask.device)
    member = ((segment[:, None] == number[:, None]) & mask[:, None]).to(rows[0].dtype)
    mean = (member / member.sum(-1, keepdim=True).clamp(min=1))[:, None]  # (N,1,count,L)
    return [mean @ x for x in rows], number < used
