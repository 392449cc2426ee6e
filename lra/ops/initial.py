"""Random numbers that parameters begin with."""

from torch import Tensor, nn

STD = 0.8796256610342398  # of the standard normal distribution between -2 and 2


def truncated_normal_(tensor: Tensor, *, std: float) -> Tensor:
    """Fill a tensor with normal numbers within two deviations of the untruncated distribution (flax's initialisers).

    Args:
        tensor: tensor of any shape, changed in place.
        std: standard deviation of the truncated numbers.

    Returns:
        The tensor.
    """
    scale = std / STD
    return nn.init.trunc_normal_(tensor, std=scale, a=-2 * scale, b=2 * scale)
