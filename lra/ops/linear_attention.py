"""Linear attention with kernel features, φ(q) (φ(k)ᵀ v), in O(L F E): Linear, Performer, RFA, cosFormer and Hedgehog.

N examples, H heads, L length, E value size, F features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import full_precision


@full_precision
def linear_attention(
    q: Float[Tensor, "#N H L F"],
    k: Float[Tensor, "#N H L F"],
    v: Float[Tensor, "N H L E"],
    mask: Bool[Tensor, "N L"] | None,
    floor: float = 1e-6,
    offset: float = 0.0,
) -> Float[Tensor, "N H L E"]:
    """Compute Σ_j φ(q_i)·φ(k_j) v_j / max(Σ_j φ(q_i)·φ(k_j), n floor) over the n real keys of each example.

    Args:
        q, k: features φ(q), φ(k) without the offset.
        v: values. Like the features they must be finite at masked positions.
        mask: real tokens; None if all are real.
        floor: lower bound on the denominator divided by the number of real keys, so that its effect does not depend on
            that number.
        offset: constant that is added to every feature of queries and keys.

    Returns:
        The outputs; zero for an example without real tokens.
    """
    # A column of ones next to the values: one product gives numerators and denominators.
    v_ones = F.pad(v, (0, 1), value=1.0)  # (N,H,L,E + 1)
    num_keys: int | Tensor = k.shape[2]
    is_empty = None
    if mask is not None:
        # Zero values and a zero in the column of ones remove a masked key from both.
        v_ones = v_ones * mask[:, None, :, None]
        num_real = mask.sum(-1)
        num_keys = num_real.clamp(min=1)[:, None, None, None]  # (N,1,1,1)
        has_real = mask.any(-1)
        is_empty = ~has_real[:, None, None, None]  # (N,1,1,1)

    # state = mean_j φ(k_j) [v_j, 1]. In this order of factors the gradient of k is contiguous.
    transposed = (v_ones.mT @ k) / num_keys  # (N,H,E + 1,F)
    state = transposed.mT
    if offset:
        value_sums = v_ones.sum(2, keepdim=True)  # (N,H,1,E + 1)
        state = state + offset * value_sums / num_keys
    return _Quotient.apply(q, state, is_empty, floor, offset)


def unit_exp(exponents: Float[Tensor, "N H L F"], dim: int | tuple[int, ...]) -> Float[Tensor, "N H L F"]:
    """Compute exp(x - c) with c the largest exponent over ``dim``; no gradient flows through c."""
    c = exponents.detach().amax(dim, keepdim=True)
    # All of them may be -inf.
    c = c.masked_fill(c.isneginf(), 0.0)
    return (exponents - c).exp()


class _Quotient(torch.autograd.Function):
    """Compute [a, b] = (q + offset) state and a / max(b, floor), zero where ``is_empty``.

    The explicit derivative of the quotient needs half the memory traffic of autograd through its operations.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        state: Tensor,
        is_empty: Tensor | None,
        floor: float,
        offset: float,
    ) -> Tensor:
        sums = q @ state  # (N,H,L,E + 1)
        if offset:
            # The offset of the queries multiplies the sum over features: no tensor with F features is written for it.
            sums += offset * state.sum(2, keepdim=True)

        # Divide the numerators by the denominators, which are at least ``floor``.
        denominator = sums[..., -1:]
        bounded = denominator.clamp(min=floor)
        reciprocal = bounded.reciprocal()  # (N,H,L,1)
        if is_empty is not None:
            reciprocal = reciprocal.masked_fill(is_empty, 0)
        out = sums[..., :-1] * reciprocal  # (N,H,L,E)

        # Below the floor the quotient does not depend on the denominator.
        is_below = denominator < floor
        slope = reciprocal.masked_fill(is_below, 0)
        ctx.save_for_backward(q, state, out, reciprocal, slope)
        ctx.offset = offset
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        q, state, out, reciprocal, slope = ctx.saved_tensors
        # d(a / b) = da / b - (a / b) db / b
        grad_numerator = grad * reciprocal  # (N,H,L,E)
        products = (grad * out).sum(-1, keepdim=True)
        grad_denominator = -products * slope  # (N,H,L,1)
        grad_sums = torch.cat([grad_numerator, grad_denominator], -1)  # (N,H,L,E + 1)
        del grad_numerator

        # Through the product [a, b] = (q + offset) state.
        grad_q = grad_sums @ state.mT
        grad_state = q.mT @ grad_sums
        if ctx.offset:
            grad_state += ctx.offset * grad_sums.sum(2, keepdim=True)
        return grad_q, grad_state, None, None, None
