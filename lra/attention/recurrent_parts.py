"""Parts of recurrent layers: the short convolution, initial decays and step sizes.

``GatedDeltaNet`` has all steps of such a layer: it projects its input to queries, keys and values, lets neighbouring
tokens mix in a short convolution, runs the recurrence, normalises each head and gates the result. Others omit some.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Range, require_range


def mask_tokens(
    x: Float[Tensor, "N L *rest"],
    mask: Bool[Tensor, "N L"] | None,
) -> Float[Tensor, "N L *rest"]:
    """Set padded positions to zero, also where x is infinite or NaN; ``base.zero_padding`` multiplies instead."""
    if mask is None:
        return x
    is_padding = ~mask
    # As many dimensions as x.
    while is_padding.ndim < x.ndim:
        is_padding = is_padding[..., None]
    return x.masked_fill(is_padding, 0)


class ShortConvolution(nn.Module):
    """A depth-wise convolution over ``width`` tokens. Padded positions are zero in its input and in its output.

    Args:
        channels: number of channels, each with its own filter.
        width: tokens that a filter sees: the token and width - 1 earlier ones if causal, else (width - 1) // 2
            earlier ones and the rest later.
        causal: whether the filter sees no later token.
        bias: whether each channel has a bias.
        activation: whether SiLU follows.
    """

    def __init__(self, channels: int, width: int, *, causal: bool, bias: bool = False, activation: bool = True):
        super().__init__()
        self.activation = activation
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)
        self.earlier = width - 1 if causal else (width - 1) // 2
        self.later = width - 1 - self.earlier

    def forward(
        self,
        x: Float[Tensor, "N L channels"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L channels"]:
        x = mask_tokens(x, mask).mT  # (N,channels,L)
        padded = F.pad(x, (self.earlier, self.later))
        convolved = self.conv(padded).mT  # (N,L,channels)
        if self.activation:
            convolved = F.silu(convolved)
        return mask_tokens(convolved, mask)


def log_decays_by_horizon(heads: int, shortest: int, longest: int) -> Float[Tensor, " H"]:
    """Return log decays of the heads, whose horizons 1 / (1 - decay) are log-spaced.

    They go from ``shortest`` to ``longest`` tokens. A single head gets the longest horizon.
    """
    longest = max(longest, shortest)
    if heads == 1:
        # For one head logspace would return the shortest horizon.
        shortest = longest
    horizons = torch.logspace(math.log10(shortest), math.log10(longest), heads, dtype=torch.float64)
    log_decays = torch.log1p(-1 / horizons)
    return log_decays.float()


def inverse_softplus(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Compute y with softplus(y) = x: y = x + log(1 - exp(-x))."""
    one_minus_exp = -torch.expm1(-x)
    return x + torch.log(one_minus_exp)


def initial_step_biases(count: int, step_min: float, step_max: float) -> Float[Tensor, " count"]:
    """Draw step sizes log-uniformly and return biases b with softplus(b) = step size (Gu and Dao 2023).

    Raises:
        ValueError: step_max is below step_min.
    """
    require_range("step_max", step_max, Range(step_min), "step_min")
    log_steps = torch.empty(count).uniform_(math.log(step_min), math.log(step_max))
    return inverse_softplus(log_steps.exp())
