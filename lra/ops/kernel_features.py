"""Kernel feature attention, φ(q) (φ(k)ᵀ v): the product that linear attention, Performer and similar ones share.

N examples, H heads, L length, E value size, F features.
"""

from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, floor: float = 1e-6) -> Tensor:
    """q·mean(k vᵀ) / max(q·mean(k), floor) with features q, k (N,H,L,F), v (N,H,L,E) -> (N,H,L,E).

    Means over the real keys instead of sums make the effect of the floor independent of their number.

    Args:
        q, k: features (N,H,L,F).
        v: (N,H,L,E).
        mask: (N,L).
        floor: least denominator.

    Returns:
        (N,H,L,E).
    """
    total = k.shape[2] if mask is None else mask.sum(-1).clamp(min=1)[:, None, None, None]
    k = zero_padding(k, mask)
    return q @ (k.mT @ v / total) / (q @ (k.sum(2)[..., None] / total)).clamp(min=floor)


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set x (N,H,L,F) to zero at padded positions, mask (N,L)."""
    return x if mask is None else x * mask[:, None, :, None]
