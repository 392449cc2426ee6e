"""Rotary position embedding (Su et al. 2021, RoFormer, section 3.2)."""

import torch
from torch import Tensor

BASE = 10_000.0  # the slowest pair of features rotates by about 1/BASE per position


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
    dtype = torch.promote_types(x.dtype, torch.float32)
    if positions is None:
        positions = torch.arange(L, device=x.device)

    # The angle of each position and pair.
    even = torch.arange(0, D, 2, device=x.device, dtype=dtype)  # 2i
    frequency = BASE ** (-even / D)  # (D/2,)
    angle = positions.to(dtype)[:, None] * frequency  # (L,D/2)
    cos = angle.cos()
    sin = angle.sin()

    # Rotate the pairs (first, second).
    first, second = x.to(dtype).chunk(2, -1)  # (...,L,D/2)
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    rotated = torch.cat([rotated_first, rotated_second], -1)  # (...,L,D)
    return rotated.to(x.dtype)
