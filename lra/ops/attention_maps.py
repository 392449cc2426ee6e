"""Attention maps: the weights of scores q kᵀ, attention with few queries or few keys, and the landmark product.

i queries, j keys, c landmarks; ``lra.attention.base`` explains the other letters. # before a letter: that size or 1.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .pinv import Inverse, is_unbounded, pinv_matmul
from .precision import computes_in_float16, full_precision, is_slow_fused, upcast

Weights = Literal["softmax", "laplace"]
Impl = Literal["eager", "sdpa", "triton", "triton_rounded"]
# An attention function: (q, k, v, key_mask, bias) -> outputs, such as ``attend_thin``.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
# Biases of the scores of C, U and R.
Biases = tuple[Tensor | None, Tensor | None, Tensor | None]
NO_BIAS: Biases = (None, None, None)


def uses_kernels(impl: Impl) -> bool:
    """Whether an implementation uses the kernels of ``lra.ops.triton``; only then do callers import that package."""
    return impl.startswith("triton")


def check_kernels(impl: Impl, *, count: int, head_dim: int, value_dim: int, pinv: Inverse) -> None:
    """For ``triton*``, raise ValueError if triton is missing or a size or the inverse is not supported.

    Args:
        impl: implementation.
        count: number of landmarks.
        head_dim, value_dim: sizes of a key and of a value.
        pinv: pseudo-inverse.
    """
    if uses_kernels(impl):
        from . import triton as kernels

        kernels.check(count=count, head_dim=head_dim, value_dim=value_dim, pinv=pinv)


def ensure_nonempty(mask: Bool[Tensor, "*batch L"] | None) -> Bool[Tensor, "*batch L"] | None:
    """Mark all tokens of an example as real if none is.

    A softmax over no key is NaN. The outputs of such an example are not used, but a zero gradient times NaN is NaN.
    """
    if mask is None:
        return None
    has_real = mask.any(-1, keepdim=True)
    return mask | ~has_real


def score_scale(
    weights: Weights,
    q: Float[Tensor, "N H L D"],
    mask: Bool[Tensor, "N L"] | None,
) -> float | Float[Tensor, "N 1 1 1"]:
    """Compute the factor of the scores: 1 / √D for softmax, 1 / max(number of real keys, 1) for Laplace weights."""
    if weights == "softmax":
        return q.shape[-1] ** -0.5
    if mask is None:
        return 1 / q.shape[2]
    dtype = torch.promote_types(q.dtype, torch.float32)
    num_real = mask.sum(-1).clamp(min=1)
    num_real = num_real.to(dtype)
    return 1 / num_real[:, None, None, None]


def laplace(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute (1 + erf((x - μ) / (σ √2))) / 2 with μ = √(1/2) and σ = √(1/(4π)) (MEGA: Ma et al. 2023).

    It is a smooth, bounded approximation of relu(x)² with the same value and slope at x = μ. erfc keeps small weights
    accurate, which 1 + erf would round to zero.
    """
    mu = math.sqrt(1 / 2)
    sigma = math.sqrt(1 / (4 * math.pi))
    width = sigma * math.sqrt(2)
    return 0.5 * ((mu - x) / width).erfc()


def attention_weights(
    scores: Float[Tensor, "#N H i j"],
    key_mask: Bool[Tensor, "#N #H j"] | None,
    weights: Weights = "softmax",
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "N H i j"]:
    """Compute the weights of scores.

    Args:
        scores: scaled scores.
        key_mask: real keys, None if all are.
        weights: ``softmax``, or ``laplace``, the Laplace function of each score without normalisation.
        bias: added to the scores, broadcastable.
    """
    if bias is not None:
        scores = scores + bias
    if weights == "laplace":
        laplace_weights = laplace(scores)
        if key_mask is None:
            return laplace_weights
        return laplace_weights * key_mask[:, :, None]
    if key_mask is not None:
        is_padding = ~key_mask[:, :, None]
        scores = scores.masked_fill(is_padding, float("-inf"))
    return scores.softmax(-1)


@full_precision
def attend_eager(
    q: Float[Tensor, "N H i D"],
    k: Float[Tensor, "N H j D"],
    v: Float[Tensor, "N H j E"],
    key_mask: Bool[Tensor, "#N #H j"] | None,
    bias: Float[Tensor, "..."] | None,
    *,
    scale: float | Float[Tensor, "#N #H 1 1"],
    weights: Weights = "softmax",
) -> Float[Tensor, "N H i E"]:
    """Materialise the map f(scale q kᵀ + bias), with f given by ``weights``, and apply it to v, in float32 or wider.

    Args:
        q, k, v: queries, keys and values.
        key_mask, bias, weights: see ``attention_weights``.
        scale: factor of the scores.
    """
    scores = (q * scale) @ k.mT  # (N,H,i,j)
    return attention_weights(scores, key_mask, weights, bias) @ v


def sdpa_mask(
    key_mask: Bool[Tensor, "#N #H j"] | None,
    bias: Float[Tensor, "..."] | None,
) -> Float[Tensor, "..."] | Bool[Tensor, "#N #H 1 j"] | None:
    """Combine real keys and a bias of the scores into torch's ``attn_mask``."""
    if key_mask is None:
        return bias
    if bias is None:
        return key_mask[:, :, None]
    is_padding = ~key_mask[:, :, None]
    return bias.masked_fill(is_padding, float("-inf"))


def attend_thin(
    q: Float[Tensor, "N H i D"],
    k: Float[Tensor, "N H j D"],
    v: Float[Tensor, "N H j E"],
    key_mask: Bool[Tensor, "#N #H j"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "N H i E"]:
    """Compute softmax(q kᵀ / √D + bias) v for few queries or few keys.

    Torch's fused kernel computes it in O(i + j) memory, on a CPU only if values are as wide as keys and the bias needs
    no gradient. In bfloat16 on a CPU the backward pass of that kernel is slow, so there the map is materialised in
    O(i j) memory (``is_slow_fused``): sums in float32; scores, bias and weights rounded to bfloat16.

    Args:
        q, k, v: queries, keys and values.
        key_mask: real keys, None if all are.
        bias: added to the scores, broadcastable.
    """
    if not is_slow_fused(q):
        attn_mask = sdpa_mask(key_mask, bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask)
    scale = q.shape[-1] ** -0.5
    # Autocast would compute the softmax in float32.
    with torch.autocast("cpu", enabled=False):
        # Scale the smaller operand.
        if q.shape[2] < k.shape[2]:
            scaled_q = q * scale
            scores = scaled_q @ k.mT
        else:
            scaled_k = k * scale
            scores = q @ scaled_k.mT
        # A float32 bias would promote the scores.
        if bias is not None:
            bias = bias.to(scores.dtype)
        weights = attention_weights(scores, key_mask, "softmax", bias)
        return weights @ v


def landmark_product(
    q: Float[Tensor, "Nq H L D"],
    k: Float[Tensor, "Nq H L D"],
    v: Float[Tensor, "Nq H L E"],
    q_landmarks: Float[Tensor, "N H c D"],
    k_landmarks: Float[Tensor, "N H c D"],
    *,
    pinv: Inverse,
    mask: Bool[Tensor, "Nq L"] | None = None,
    q_landmark_mask: Bool[Tensor, "#N #H c"] | None = None,
    k_landmark_mask: Bool[Tensor, "#N #H c"] | None = None,
    weights: Weights = "softmax",
    bias: Biases = NO_BIAS,
    attend: Attend | None = None,
    impl: Impl = "sdpa",
) -> tuple[Float[Tensor, "Nq H L E"], Float[Tensor, "N H c E"] | None]:
    """Compute C (U⁺ (R v)), the product that CUR and Nystromformer share.

        C = f(q k_landmarksᵀ)    U = f(q_landmarks k_landmarksᵀ)    R = f(q_landmarks kᵀ)    f: softmax, scores / √D

    Padded landmarks change nothing: a padded key landmark has no weight in C and U, and a padded query landmark is a
    row of zeros in U. For CUR, U without padding equals the selected rows of C; computing it from the landmarks avoids
    a scatter in the backward pass.

    Args:
        q, k, v: queries, keys and values; Nq = N, or Nq = 1 and L = T for packed sequences.
        q_landmarks, k_landmarks: selected or averaged queries and keys.
        pinv: pseudo-inverse, (N,H,c,c) -> (N,H,c,c).
        mask: real tokens; None for packed sequences.
        q_landmark_mask, k_landmark_mask: real landmarks.
        weights: ``softmax`` | ``laplace``, f with MEGA's scale; ``laplace`` needs impl=eager.
        bias: added to the scores of C, U and R, (N,H,L,c), (N,H,c,c) and (N,H,c,L), or broadcastable.
        attend: attention for C and R of packed sequences, see ``lra.ops.varlen_attention``; only with impl=sdpa.
        impl: ``eager`` materialises every map in float32 or wider. ``sdpa`` applies C and R by ``attend_thin``, or by
            ``attend``. ``triton`` is ``lra.ops.triton``, for softmax and the cubic inverse; it ignores ``weights`` and
            ``bias``, and returns None for R v. ``triton_rounded`` is faster for 16-bit inputs, with larger errors.

    Returns:
        C U⁺ R v, and R v, which is None for ``triton*``. For eager both are in float32 or wider, otherwise in the dtype
        of v, except that R v is in float32 if U⁺ R v may overflow float16. O(L c (D + E) + c³) time.
    """
    if uses_kernels(impl):
        from . import triton as kernels

        out = kernels.landmark_product(
            q,
            k,
            v,
            q_landmarks=q_landmarks,
            k_landmarks=k_landmarks,
            mask=mask,
            row_mask=q_landmark_mask,
            col_mask=k_landmark_mask,
            pinv=pinv,
            impl=impl,
        )
        return out, None

    scale = score_scale(weights, q, mask)
    bias_C, bias_U, bias_R = bias
    # U is small, so it is always computed in float32 or wider.
    U = _inner_map(q_landmarks, k_landmarks, scale, q_landmark_mask, k_landmark_mask, weights, bias_U)  # (N,H,c,c)

    # The attention that applies R and C.
    is_packed = attend is not None
    if impl == "eager":
        attend = partial(attend_eager, scale=scale, weights=weights)
    elif attend is None:
        attend = attend_thin

    # U⁺ R v may exceed the range of float16 even if C U⁺ R v does not. It gets the dtype of v, and autocast's in the
    # product with C, so v is upcast and autocast disabled.
    may_overflow = computes_in_float16(v) and is_unbounded(pinv) and not is_packed
    in_float32 = impl == "eager" or may_overflow
    dtype = v.dtype
    if in_float32:
        q, k, v, q_landmarks, k_landmarks, bias_C, bias_R = upcast((q, k, v, q_landmarks, k_landmarks, bias_C, bias_R))
    # Autocast would round float32 inputs again; packed sequences keep the dtype that they have.
    disables_autocast = in_float32 or is_packed
    autocast = torch.autocast(q.device.type, enabled=False) if disables_autocast else nullcontext()

    key_mask = None if mask is None else mask[:, None]  # (N,1,L)
    with autocast:
        # R v, then U⁺ (R v), then C (U⁺ (R v)).
        rv = attend(q_landmarks, k, v, key_mask, bias_R)  # (N,H,c,E)
        weighted_rv = pinv_matmul(pinv, U, rv).to(v.dtype)  # (N,H,c,E)
        out = attend(q, k_landmarks, weighted_rv, k_landmark_mask, bias_C)  # (Nq,H,L,E)
    if impl == "eager":
        return out, rv
    return out.to(dtype), rv


@full_precision
def _inner_map(
    q_landmarks: Float[Tensor, "N H c D"],
    k_landmarks: Float[Tensor, "N H c D"],
    scale: float | Float[Tensor, "N 1 1 1"],
    q_landmark_mask: Bool[Tensor, "#N #H c"] | None,
    k_landmark_mask: Bool[Tensor, "#N #H c"] | None,
    weights: Weights,
    bias: Float[Tensor, "..."] | None,
) -> Float[Tensor, "N H c c"]:
    """Compute U; rows of padded landmarks are zero."""
    scores = (q_landmarks * scale) @ k_landmarks.mT
    U = attention_weights(scores, k_landmark_mask, weights, bias)
    if q_landmark_mask is None:
        return U
    return U * q_landmark_mask[..., None]
