"""Weights of scores q kᵀ: softmax over the keys, the Laplace function of each score, a Gaussian kernel.

Shapes as in ``lra.attention.base``: i queries, j keys.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from .precision import full_precision

Weights = Literal["softmax", "laplace"]
WEIGHTS = get_args(Weights)


def scale(kind: str, q: Tensor, mask: Tensor | None) -> float | Tensor:
    """The factor of the scores of q (N,H,L,D): 1 / √D for softmax, 1 / the number of real keys for Laplace weights."""
    if kind == "softmax":
        return q.shape[-1] ** -0.5
    if mask is None:
        return 1 / q.shape[2]
    real = mask.sum(-1).clamp(min=1).to(torch.promote_types(q.dtype, torch.float32))
    return 1 / real[:, None, None, None]


def weigh(scores: Tensor, keys: Tensor | None, kind: str, bias: Tensor | None = None) -> Tensor:
    """Compute the weights of scores.

    Args:
        scores: (N,H,i,j).
        keys: real keys (N,H,j) or broadcastable, None if all are.
        kind: ``softmax`` | ``laplace``.
        bias: added to the scores.

    Returns:
        (N,H,i,j).
    """
    if bias is not None:
        scores = scores + bias
    if kind == "laplace":
        weights = laplace(scores)
        return weights if keys is None else weights * keys[:, :, None]
    if keys is not None:
        scores = scores.masked_fill(~keys[:, :, None], float("-inf"))
    return scores.softmax(-1)


@full_precision
def attend_written_out(q, k, v, keys: Tensor | None, bias: Tensor | None, *, factor, weights: Weights = "softmax"):
    """Compute f(factor q kᵀ + bias) v by ``weigh``, f of ``weights``: q (N,H,i,D), k, v (N,H,j,·) -> (N,H,i,E)."""
    return weigh(q * factor @ k.mT, keys, weights, bias) @ v


def allowed(keys: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Combine real keys, (N,H,j) or broadcastable, and the bias (N,H,i,j) into torch's attn_mask."""
    if keys is None:
        return bias
    return keys[:, :, None] if bias is None else bias.masked_fill(~keys[:, :, None], float("-inf"))


def laplace(x: Tensor) -> Tensor:
    """(1 + erf((x - μ) / (σ √2))) / 2 with μ = √(1/2), σ = √(1/(4π)) (MEGA: Ma et al. 2023).

    A smooth, bounded approximation of relu(x)² with the same value and slope at x = μ. erfc is accurate for small
    weights.
    """
    mean, deviation = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
    return 0.5 * ((mean - x) / (deviation * math.sqrt(2))).erfc()


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-||x_i - y_j||² / 2): x (...,i,D), y (...,j,D) -> (...,i,j)."""
    return (x @ y.mT - x.square().sum(-1)[..., None] / 2 - y.square().sum(-1)[..., None, :] / 2).exp()
