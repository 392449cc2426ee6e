"""Convolutions along the sequence: the control ``conv``, long convolutions and Hyena.

One sequence of n tokens, one filter per channel. ``positions`` (n,) holds the tokens' positions in the padded sequence:
0 .. n - 1 if no padding precedes them. Convolutions are written as banded matrices, one for each channel.

Sources: Fu et al. 2023 (long convolutions), section 3; Poli et al. 2023 (Hyena), section 3; the released code of both.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor


def short_convolution(
    V: Float[Tensor, "n d"], positions: Int[Tensor, "n"], filters: Float[Tensor, "d width"], *, causal: bool
) -> Float[Tensor, "n d"]:
    """Compute the control ``conv``, a baseline without attention: y_i = Σ_j w_(j-i) v_j / Σ_j |w_(j-i)|.

    The sums run over the tokens in reach of the filter.
    The token itself has the last entry of the filter if ``causal``, else the middle one.
    """
    width = filters.shape[1]
    center = width - 1 if causal else width // 2
    # The entry of the filter for output i and token j.
    entry = positions - positions[:, None] + center  # (n, n)
    inside = (entry >= 0) & (entry < width)
    W = filters[:, entry.clamp(0, width - 1)] * inside  # (d, n, n)
    numerator = torch.einsum("cij,jc->ic", W, V)
    return numerator / W.abs().sum(dim=2).T


def long_convolution(
    U: Float[Tensor, "n d"],
    positions: Int[Tensor, "n"],
    behind: Float[Tensor, "d lags"],
    ahead: Float[Tensor, "d lags"] | None = None,
) -> Float[Tensor, "n d"]:
    """Convolve with filters K as long as the sequence, K * u.

    The layer of long convolutions is K * u + D u with K = ``squash(weights)`` and a learned D of each channel. Hyena
    takes K from ``hyena_filter``.

    Args:
        U: inputs.
        positions: positions of the tokens.
        behind: filters over the token itself (lag 0) and earlier ones.
        ahead: filters over later tokens, the next one first; None for a causal layer.
    """
    lag = positions[:, None] - positions  # i - j, (n, n)
    W = behind[:, lag.clamp(min=0)] * (lag >= 0)  # (d, n, n)
    if ahead is not None:
        W = W + ahead[:, (-lag - 1).clamp(min=0)] * (lag < 0)
    return torch.einsum("cij,jc->ic", W, U)


def squash(weights: Float[Tensor, "d lags"], threshold: float) -> Float[Tensor, "d lags"]:
    """Compute the regularised filter of a long convolution, sign(k) max(|k| - λ, 0) (section 3.2)."""
    return weights.sign() * (weights.abs() - threshold).clamp(min=0)


def hyena_filter(
    length: int,
    longest: int,
    layers: list[Callable],
    last: Callable,
    frequency: Float[Tensor, "hidden"],
    decay: Float[Tensor, "channels"],
    *,
    features: int,
    shift: float = 0.0,
) -> Float[Tensor, "channels {length}"]:
    """Compute Hyena's filters, h(l) = network(encoding of l) (exp(-δ t) + shift) with t = l / (longest - 1).

    Args:
        length: number of lags l = 0, 1, ...
        longest: maximum length of a sequence.
        layers, last: linear maps of the network; a sine follows each of ``layers``.
        frequency: factor inside the sines.
        decay: δ of each filter. Each channel of the layer has order - 1 filters, which lie side by side.
        features: size of the encoding: t, then cosines and negative sines of (features - 1) / 2 frequencies.
        shift: added to the window.
    """
    lag = torch.arange(length, dtype=decay.dtype)[:, None]  # (length, 1)
    t = lag / max(longest - 1, 1)
    bands = (features - 1) // 2
    f = torch.linspace(1e-4, bands - 1, bands, dtype=decay.dtype)
    angle = 2 * math.pi * f * lag / longest
    hidden = torch.cat([t, angle.cos(), -angle.sin()], dim=1)
    for layer in layers:
        hidden = torch.sin(frequency * layer(hidden))
    window = torch.exp(-decay * t) + shift
    return (last(hidden) * window).T


def hyena(
    x: list[Float[Tensor, "n d"]],
    V: Float[Tensor, "n d"],
    filters: list[Callable],
    D: Float[Tensor, "filters d"],
) -> Float[Tensor, "n d"]:
    """Compute v ← h_i * (x_i v) + D_i (x_i v) for i = order - 1, ..., 1, then x_0 v, as in the released code.

    Definition 3.1 of the paper is v ← x_i (h_i * v), with one filter for each gate. The released code leaves out the
    first filter and adds the skip connections D_i. Gates and v are linear maps of the layer's input, followed by a
    convolution over three tokens. The result gets an output projection.

    Args:
        x: gates x_0, ..., x_(order-1); ``order`` is their number.
        V: values v.
        filters: convolutions with h_(order-1), ..., h_1.
        D: skip connections D_(order-1), ..., D_1.
    """
    for x_i, convolve, D_i in zip(reversed(x[1:]), filters, D, strict=True):
        gated = x_i * V
        V = convolve(gated) + D_i * gated
    return x[0] * V
