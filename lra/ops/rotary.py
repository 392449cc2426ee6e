"""Rotary position embedding (Su et al. 2021, RoFormer, section 3.2)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BASE = 10_000.0  # the slowest pair of features rotates by about 1/BASE per position


def rotate(
    x: Float[Tensor, "*heads L D"],
    positions: Int[Tensor, "L"] | None = None,
) -> Float[Tensor, "*heads L D"]:
    """Rotate pairs of features by angles proportional to the position, so that q·k depends on the distance.

    Features i and D/2 + i are one pair, rotated by the angle position · BASE^(-2i/D).

    Args:
        x: queries or keys.
        positions: position of each token, None for 0 to L - 1.

    Returns:
        The rotated vectors, in the dtype of x; angles are computed in float32 or more.

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
    two_i = torch.arange(0, D, 2, device=x.device, dtype=dtype)
    frequency = BASE ** (-two_i / D)  # (D/2,)
    columns = positions.to(dtype)[:, None]  # (L,1)
    angle = columns * frequency  # (L,D/2)
    cos = angle.cos()
    sin = angle.sin()

    # Rotate the pairs (first, second).
    wide = x.to(dtype)
    first, second = wide.chunk(2, -1)  # (...,L,D/2)
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    rotated = torch.cat([rotated_first, rotated_second], -1)  # (...,L,D)
    return rotated.to(x.dtype)
