"""Linear attention with kernel features, φ(q) (φ(k)ᵀ v), in O(L F E): the product shared by all such mechanisms.

N examples, H heads, L length, E value size, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, floor: float = 1e-6, offset: float = 0.0) -> Tensor:
    """Compute Σ_j φ(q_i)·φ(k_j) v_j / max(Σ_j φ(q_i)·φ(k_j), n floor) over the n real keys of each example.

    Args:
        q, k: features φ(q), φ(k) without the offset, (N,H,L,F). They must be finite at masked positions.
        v: values (N,H,L,E).
        mask: real tokens (N,L); None if all are real.
        floor: smallest denominator, as a mean over the keys, which makes its effect independent of their number.
        offset: constant that is added to every feature of queries and keys.

    Returns:
        (N,H,L,E); zero for an example without real tokens.
    """
    # A column of ones next to the values: one product gives numerators and denominators.
    v_ones = F.pad(v, (0, 1), value=1.0)  # (N,H,L,E + 1)
    num_keys = k.shape[2]
    is_empty = None
    if mask is not None:
        # Zero values and a zero in the column of ones remove a masked key from both.
        v_ones = zero_padding(v_ones, mask)
        num_keys = mask.sum(-1).clamp(min=1)[:, None, None, None]  # (N,1,1,1)
        is_empty = ~mask.any(-1)[:, None, None, None]  # (N,1,1,1)

    # state = mean_j φ(k_j) [v_j, 1]. In this order of factors the gradient of k is contiguous.
    state = (v_ones.mT @ k / num_keys).mT  # (N,H,F,E + 1)
    if offset:
        state = state + offset * v_ones.sum(2, keepdim=True) / num_keys
    return _Quotient.apply(q, state, is_empty, floor, offset)


class _Quotient(torch.autograd.Function):
    """[a, b] = (q + offset) state and a / max(b, floor).

    The derivative of a quotient, written out, reads and writes half as much as the derivatives of its operations.
    """

    @staticmethod
    def forward(ctx, q: Tensor, state: Tensor, is_empty: Tensor | None, floor: float, offset: float) -> Tensor:
        sums = q @ state  # (N,H,L,E + 1)
        if offset:
            # The offset of the queries multiplies the sum over features: no tensor with F features is written for it.
            sums += offset * state.sum(2, keepdim=True)
        denominator = sums[..., -1:]
        reciprocal = denominator.clamp(min=floor).reciprocal()  # (N,H,L,1)
        if is_empty is not None:
            reciprocal = reciprocal.masked_fill(is_empty, 0)
        out = sums[..., :-1] * reciprocal  # (N,H,L,E)
        # Below the floor the quotient does not depend on the denominator.
        slope = reciprocal.masked_fill(denominator < floor, 0)
        ctx.save_for_backward(q, state, out, reciprocal, slope)
        ctx.offset = offset
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        q, state, out, reciprocal, slope = ctx.saved_tensors
        # d(a / b) = da / b - (a / b) db / b
        grad_numerator = grad * reciprocal  # (N,H,L,E)
        grad_denominator = -(grad * out).sum(-1, keepdim=True) * slope  # (N,H,L,1)
        grad_sums = torch.cat([grad_numerator, grad_denominator], -1)  # (N,H,L,E + 1)
        del grad_numerator
        grad_q = grad_sums @ state.mT
        grad_state = q.mT @ grad_sums
        if ctx.offset:
            grad_state += ctx.offset * grad_sums.sum(2, keepdim=True)
        return grad_q, grad_state, None, None, None


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set x (N,H,L,F) to zero at padded positions, mask (N,L)."""
    return x if mask is None else x * mask[:, None, :, None]
