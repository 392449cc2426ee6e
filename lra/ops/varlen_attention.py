"""Padding-free (varlen) attention: softmax attention within each of N sequences that are packed into one.

Queries, or keys and values, are packed (1,H,T,·) or landmarks of each sequence (N,H,c,·), see ``lra.varlen``.
"""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import is_slow_fused

if TYPE_CHECKING:
    from ..varlen import VarlenLayout

# Padded lengths are multiples of this, so that there are few shapes: oneDNN compiles 16-bit products for each shape.
MULTIPLE = 64


def attend_packed(
    q: Float[Tensor, "Nq H i D"],
    k: Float[Tensor, "Nk H j D"],
    v: Float[Tensor, "Nk H j E"],
    layout: "VarlenLayout",
    *,
    dropout_p: float = 0.0,
) -> Float[Tensor, "Nq H i E"]:
    """Compute softmax(q kᵀ / √D) v within each sequence by torch's fused kernel.

    Args:
        q, k, v: packed (1,H,T,·) or landmarks (N,H,c,·); k and v are both packed or both landmarks.
        layout: layout of the packed sequences.
        dropout_p: dropout rate of the weights.
    """
    out = []
    sequences = zip(layout.sequences(q), layout.sequences(k), layout.sequences(v), strict=True)
    for sequence in sequences:
        # The fused kernel needs a batch dimension.
        q_i, k_i, v_i = (x[None] for x in sequence)
        out_i = F.scaled_dot_product_attention(q_i, k_i, v_i, dropout_p=dropout_p)
        out.append(out_i[0])
    if layout.is_packed(q):
        return layout.join(out)
    return torch.stack(out)


def attend_thin(
    q: Float[Tensor, "Nq H i D"],
    k: Float[Tensor, "Nk H j D"],
    v: Float[Tensor, "Nk H j E"],
    layout: "VarlenLayout",
) -> Float[Tensor, "Nq H i E"]:
    """Compute ``attend_packed`` for few queries or few keys, in bfloat16 on a CPU by a materialised map for speed."""
    if not is_slow_fused(q):
        return attend_packed(q, k, v, layout)
    # Scale the smaller operand.
    scale = q.shape[-1] ** -0.5
    if k.numel() > q.numel():
        q = q * scale
    else:
        k = k * scale
    return _GroupedAttention.apply(q, k, v, layout)


class _GroupedAttention(torch.autograd.Function):
    """Compute softmax(q kᵀ) v within each sequence, for one of ``VarlenLayout.groups`` (similar lengths) at a time.

    Groups save calls: 16-bit products on a CPU take microseconds to begin, and copy operands that are not contiguous.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: "VarlenLayout") -> Tensor:
        q_groups = _group(q, layout)
        k_groups = _group(k, layout)
        v_groups = _group(v, layout)
        outputs = []
        saved = []
        for members, q_group, k_group, v_group in zip(layout.groups, q_groups, k_groups, v_groups, strict=True):
            scores = q_group @ k_group.mT  # (g,H,i,j)
            # Keys beyond the end of a sequence get no weight.
            if layout.is_packed(k):
                for sequence_scores, member in zip(scores, members, strict=True):
                    length = layout.lengths[member]
                    sequence_scores[..., length:] = float("-inf")
            weights = scores.softmax(-1)
            group_output = weights @ v_group
            outputs.append(group_output)
            saved += [q_group, k_group, v_group, weights]
        ctx.layout = layout
        ctx.is_packed = [layout.is_packed(x) for x in (q, k, v)]
        ctx.save_for_backward(*saved)
        return _ungroup(outputs, layout.is_packed(q), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_grads = []
        k_grads = []
        v_grads = []
        saved = iter(ctx.saved_tensors)
        for group_grad in _group(grad, ctx.layout):
            q = next(saved)
            k = next(saved)
            v = next(saved)
            weights = next(saved)
            dweights = group_grad @ v.mT
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            q_grads.append(dscores @ k)
            k_grads.append(dscores.mT @ q)
            v_grads.append(weights.mT @ group_grad)
        q_packed, k_packed, v_packed = ctx.is_packed
        grad_q = _ungroup(q_grads, q_packed, ctx.layout)
        grad_k = _ungroup(k_grads, k_packed, ctx.layout)
        grad_v = _ungroup(v_grads, v_packed, ctx.layout)
        return grad_q, grad_k, grad_v, None


def _group(x: Float[Tensor, "B H i D"], layout: "VarlenLayout") -> list[Float[Tensor, "g H _ D"]]:
    """Copy each group of sequences of x, (1,H,T,D) with zeros beyond their ends, or (N,H,c,D)."""
    if not layout.is_packed(x):
        return [x[group] for group in layout.groups]
    sequences = layout.sequences(x)
    padded_groups = []
    for group in layout.groups:
        # The longest sequence of the group, rounded up.
        longest = max(layout.lengths[member] for member in group)
        num_multiples = -(-longest // MULTIPLE)
        padded = x.new_zeros(len(group), x.shape[1], num_multiples * MULTIPLE, x.shape[3])
        for target, member in zip(padded, group, strict=True):
            length = layout.lengths[member]
            target[:, :length] = sequences[member]
        padded_groups.append(padded)
    return padded_groups


def _ungroup(groups: Iterable[Tensor], is_packed: bool, layout: "VarlenLayout") -> Tensor:
    """Join groups to (1,H,T,D) if ``is_packed``, otherwise to (N,H,c,D): the inverse of ``_group``."""
    members = chain.from_iterable(layout.groups)
    tensors = chain.from_iterable(groups)
    sequences = dict(zip(members, tensors, strict=True))
    ordered = [sequences[n] for n in range(len(sequences))]
    if not is_packed:
        return torch.stack(ordered)
    # Without the zeros beyond their ends.
    unpadded = []
    for sequence, length in zip(ordered, layout.lengths, strict=True):
        unpadded.append(sequence[:, :length])
    return layout.join(unpadded)
