"""Kernel feature attention, φ(q) (φ(k)ᵀ v): the product that linear attention, Performer and their kin share.

N examples, H heads, L length, E value size, F features.
"""

from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, floor: float = 1e-6) -> Tensor:
    """q·mean(k vᵀ) / max(q·mean(k), floor) with features q, k (N,H,L,F), v (N,H,L,E) -> (N,H,L,E).

    Means over the real keys rather than sums, so that what the floor means does not depend on their number.
    """
    total = k.shape[2] if mask is None else mask.sum(-1).clamp(min=1)[:, None, None, None]
    k = zero_padding(k, mask)
    return q @ (k.mT @ v / total) / (q @ (k.sum(2)[..., None] / total)).clamp(min=floor)


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (N,H,L,F) with zeros at padded positions, mask (N,L)."""
    return x if mask is None else x * mask[:, None, :, None]
