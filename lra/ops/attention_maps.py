"""Attention maps: the weights of scores q kᵀ, attention with few queries or few keys, and the landmark product.

i queries, j keys, c landmarks; ``lra.attention.base`` explains the other letters.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .pinv import Inverse, is_unbounded, pinv_matmul
from .precision import full_precision, is_slow_fused

Weights = Literal["softmax", "laplace"]
WEIGHTS = get_args(Weights)
Impl = Literal["eager", "sdpa", "triton", "triton_rounded"]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
NO_BIAS = (None, None, None)


def uses_kernels(impl: Impl) -> bool:
    """Whether an implementation is the package ``lra.ops.triton``, which is imported on its first use."""
    return impl.startswith("triton")


def check_kernels(impl: Impl, *, count: int, head_dim: int, value_dim: int, pinv: Inverse) -> None:
    """Raise ValueError if ``impl`` is a Triton kernel that does not support these sizes or this inverse.

    Args:
        impl: implementation.
        count: number of landmarks.
        head_dim, value_dim: sizes of a key and of a value.
        pinv: pseudo-inverse.
    """
    if uses_kernels(impl):
        from . import triton as kernels

        kernels.check(count=count, head_dim=head_dim, value_dim=value_dim, pinv=pinv)


def ensure_nonempty(mask: Tensor | None) -> Tensor | None:
    """Mark all tokens of an example as real if none is: mask (N,L) -> (N,L).

    A softmax over no key is NaN. The outputs of such an example are not used, but a zero gradient times NaN is NaN.
    """
    return None if mask is None else mask | ~mask.any(-1, keepdim=True)


def score_scale(weights: Weights, q: Tensor, mask: Tensor | None) -> float | Tensor:
    """Compute the factor of the scores: 1 / √D for softmax, 1 / the number of real keys for Laplace weights.

    Args:
        weights: function of the scores.
        q: (N,H,L,D).
        mask: (N,L).

    Returns:
        A number, or (N,1,1,1).
    """
    if weights == "softmax":
        return q.shape[-1] ** -0.5
    if mask is None:
        return 1 / q.shape[2]
    num_real = mask.sum(-1).clamp(min=1).to(torch.promote_types(q.dtype, torch.float32))
    return 1 / num_real[:, None, None, None]


def laplace(x: Tensor) -> Tensor:
    """Compute (1 + erf((x - μ) / (σ √2))) / 2 with μ = √(1/2) and σ = √(1/(4π)) (MEGA: Ma et al. 2023).

    It is a smooth, bounded approximation of relu(x)² with the same value and slope at x = μ. erfc keeps small weights
    accurate, which 1 + erf would round to zero.
    """
    mu = math.sqrt(1 / 2)
    sigma = math.sqrt(1 / (4 * math.pi))
    return 0.5 * ((mu - x) / (sigma * math.sqrt(2))).erfc()


def attention_weights(
    scores: Tensor, key_mask: Tensor | None, weights: Weights = "softmax", bias: Tensor | None = None
) -> Tensor:
    """Compute the weights of scores (N,H,i,j).

    Args:
        scores: scaled scores.
        key_mask: real keys (N,H,j) or broadcastable, None if all are.
        weights: ``softmax``, or ``laplace``, the Laplace function of each score without normalisation.
        bias: added to the scores.
    """
    if bias is not None:
        scores = scores + bias
    if weights == "laplace":
        laplace_weights = laplace(scores)
        return laplace_weights if key_mask is None else laplace_weights * key_mask[:, :, None]
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, :, None], float("-inf"))
    return scores.softmax(-1)


@full_precision
def attend_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float | Tensor,
    weights: Weights = "softmax",
) -> Tensor:
    """Compute f(scale q kᵀ + bias) v with the map written out, in float32 or wider.

    Args:
        q: (N,H,i,D).
        k: (N,H,j,D).
        v: (N,H,j,E).
        key_mask, bias, weights: see ``attention_weights``.
        scale: factor of the scores.
    """
    scores = q * scale @ k.mT  # (N,H,i,j)
    return attention_weights(scores, key_mask, weights, bias) @ v


def sdpa_mask(key_mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Combine real keys (N,H,j), or broadcastable, and a bias (N,H,i,j) into torch's ``attn_mask``."""
    if key_mask is None:
        return bias
    if bias is None:
        return key_mask[:, :, None]
    return bias.masked_fill(~key_mask[:, :, None], float("-inf"))


def attend_thin(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kᵀ / √D + bias) v for few queries or few keys.

    Torch's fused kernel computes it in O(i + j) memory. In bfloat16 on a CPU the backward pass of that kernel is slow,
    so there the map is written out in O(i j) memory (``is_slow_fused``); sums are in float32, scores and weights are
    rounded.

    Args:
        q: (N,H,i,D).
        k: (N,H,j,D).
        v: (N,H,j,E).
        key_mask, bias: see ``attention_weights``.

    Returns:
        (N,H,i,E).
    """
    if not is_slow_fused(q):
        return F.scaled_dot_product_attention(q, k, v, sdpa_mask(key_mask, bias))
    scale = q.shape[-1] ** -0.5
    # Autocast would compute the softmax in float32.
    with torch.autocast("cpu", enabled=False):
        # Scale the smaller operand.
        scores = q * scale @ k.mT if q.shape[2] < k.shape[2] else q @ (k * scale).mT
        return attention_weights(scores, key_mask, "softmax", bias) @ v


def landmark_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    *,
    pinv: Inverse,
    mask: Tensor | None = None,
    q_landmark_mask: Tensor | None = None,
    k_landmark_mask: Tensor | None = None,
    weights: Weights = "softmax",
    bias: tuple[Tensor | None, Tensor | None, Tensor | None] = NO_BIAS,
    attend: Attend | None = None,
    impl: Impl = "sdpa",
) -> tuple[Tensor, Tensor | None]:
    """Compute C · U⁺ · (R v) from right to left, the product that CUR and Nystromformer share.

        C = f(q k_landmarksᵀ)    U = f(q_landmarks k_landmarksᵀ)    R = f(q_landmarks kᵀ)    f: softmax, scores / √D

    Padded landmarks change nothing: a padded key landmark has no weight in C and U, and a padded query landmark is a
    row of zeros in U. U is computed from the landmarks. For CUR it equals the selected rows of C, and avoids a scatter
    in the backward pass.

    Args:
        q, k: (N,H,L,D).
        v: (N,H,L,E).
        q_landmarks, k_landmarks: (N,H,c,D).
        pinv: pseudo-inverse, (N,H,c,c) -> (N,H,c,c).
        mask: (N,L).
        q_landmark_mask, k_landmark_mask: real landmarks (N,H,c), or broadcastable.
        weights: ``softmax`` | ``laplace``, f with MEGA's scale; ``laplace`` needs impl=eager.
        bias: added to the scores of C, U and R, (N,H,L,c), (N,H,c,c) and (N,H,c,L), or broadcastable.
        attend: attention for C and R of packed sequences, see ``lra.ops.varlen_attention``; only with impl=sdpa.
        impl: ``eager`` writes every map out in float32. ``sdpa`` computes C and R by ``attend_thin``. ``triton`` is
            ``lra.ops.triton``, for softmax without a bias and the cubic inverse; it returns None for R v.
            ``triton_rounded`` is faster for 16-bit inputs, with larger errors.

    Returns:
        C U⁺ R v (N,H,L,E) and R v (N,H,c,E). O(L c (D + E) + c³) time.
    """
    if uses_kernels(impl):
        from . import triton as kernels

        masks = {"mask": mask, "row_mask": q_landmark_mask, "col_mask": k_landmark_mask}
        landmarks = {"q_kept": q_landmarks, "k_kept": k_landmarks}
        return kernels.three_factor(q, k, v, pinv=pinv, **landmarks, **masks, impl=impl), None

    scale = score_scale(weights, q, mask)
    bias_C, bias_U, bias_R = bias

    # U is small, so it is always computed in full precision.
    U = _inner_map(q_landmarks, k_landmarks, scale, q_landmark_mask, k_landmark_mask, weights, bias_U)  # (N,H,c,c)

    product = _product
    if impl == "eager":
        attend = partial(attend_eager, scale=scale, weights=weights)
        product = full_precision(_product)
    elif attend is not None:
        product = torch.autocast(q.device.type, enabled=False)(_product)
    else:
        attend = attend_thin
        # U⁺ R v may leave the range of float16, although the result does not.
        if v.dtype == torch.float16 and is_unbounded(pinv):
            product = full_precision(_product)

    maps = (bias_C, bias_R, None if mask is None else mask[:, None], k_landmark_mask)
    out, rv = product(q, k, v, q_landmarks, k_landmarks, partial(pinv_matmul, pinv, U), attend, maps)
    return (out if impl == "eager" else out.to(v.dtype)), rv


def _product(q, k, v, q_landmarks, k_landmarks, multiply_inverse, attend, maps) -> tuple[Tensor, Tensor]:
    """Compute C (U⁺ (R v)) and R v; ``maps`` are the biases of C and R and the real keys of R and of C."""
    bias_C, bias_R, key_mask, landmark_mask = maps
    rv = attend(q_landmarks, k, v, key_mask, bias_R)  # (N,H,c,E)
    w = multiply_inverse(rv).to(v.dtype)  # (N,H,c,E)
    return attend(q, k_landmarks, w, landmark_mask, bias_C), rv


@full_precision
def _inner_map(q_landmarks, k_landmarks, scale, q_landmark_mask, k_landmark_mask, weights, bias) -> Tensor:
    """Compute U (N,H,c,c); rows of padded landmarks are zero."""
    scores = q_landmarks * scale @ k_landmarks.mT
    U = attention_weights(scores, k_landmark_mask, weights, bias)
    return U if q_landmark_mask is None else U * q_landmark_mask[..., None]
