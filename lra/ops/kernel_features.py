"""Linear attention with kernel features, φ(q) (φ(k)ᵀ v), in O(L F E): the product shared by all such mechanisms.

N examples, H heads, L length, E value size, F features.
"""

import torch.nn.functional as F
from torch import Tensor


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
    num_keys = k.shape[2] if mask is None else mask.sum(-1).clamp(min=1)[:, None, None, None]

    # A column of ones next to the values: one product gives numerators and denominators.
    v_ones = F.pad(v, (0, 1), value=1.0)  # (N,H,L,E + 1)
    # Zero values and a zero in the column of ones remove a masked key from both.
    v_ones = zero_padding(v_ones, mask)

    # state = mean_j φ(k_j) [v_j, 1]
    state = k.mT @ v_ones / num_keys  # (N,H,F,E + 1)
    if offset:
        state = state + offset * v_ones.sum(2, keepdim=True) / num_keys

    # [numerator, denominator] = φ(q) state. The offset of the queries multiplies the sum of the state over features, so
    # no tensor with F features is written for it.
    sums = q @ state  # (N,H,L,E + 1)
    if offset:
        sums = sums + offset * state.sum(2, keepdim=True)
    numerator, denominator = sums.split([v.shape[-1], 1], -1)
    denominator = denominator.clamp(min=floor)
    if mask is not None:
        # Without real tokens the denominator is the floor, whose reciprocal squared may overflow in the gradient.
        is_empty = ~mask.any(-1)[:, None, None, None]
        denominator = denominator.masked_fill(is_empty, 1.0)
    return numerator * denominator.reciprocal()


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set x (N,H,L,F) to zero at padded positions, mask (N,L)."""
    return x if mask is None else x * mask[:, None, :, None]
