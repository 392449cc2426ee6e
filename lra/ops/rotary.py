"""Rotary position embedding (Su et al. 2021, RoFormer, section 3.2)."""

import torch
from torch import Tensor

BASE = 10_000.0  # the slowest pair of features rotates by about 1/BASE for each position


def rotate(x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotate pairs of features by angles proportional to the position, so that q·k depends on the distance.

    Features i and D/2 + i are one pair, rotated by position · BASE^(-2i/D).

    Args:
        x: queries or keys, (...,L,D).
        positions: (L,), None for 0 to L - 1.

    Returns:
        (...,L,D), in the dtype of x; angles are computed in float32 or more.

    Raises:
        ValueError: D is odd.
    """
    *_, L, D = x.shape
    if D % 2:
        raise ValueError(f"rotary positions need an even head size, not {D}")
    kind = torch.promote_types(x.dtype, torch.float32)
    if positions is None:
        positions = torch.arange(L, device=x.device)
    frequency = BASE ** (-torch.arange(0, D, 2, device=x.device, dtype=kind) / D)  # (D/2,)
    angle = positions.to(kind)[:, None] * frequency  # (L,D/2)
    first, second = x.to(kind).chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)
