"""Initial values of parameters."""

from torch import Tensor, nn

# Standard deviation of the standard normal distribution, truncated to [-2, 2].
STD = 0.8796256610342398


def truncated_normal_(tensor: Tensor, *, std: float) -> Tensor:
    """Fill a tensor with truncated normal numbers, as flax's initialisers do.

    A normal distribution is truncated at two of its own standard deviations, so at std · 2 / STD = 2.27 std.

    Args:
        tensor: tensor of any shape, changed in place.
        std: standard deviation of the truncated numbers.

    Returns:
        The tensor.
    """
    # Truncation reduces the standard deviation by the factor STD.
    scale = std / STD
    bound = 2 * scale
    return nn.init.trunc_normal_(tensor, std=scale, a=-bound, b=bound)
