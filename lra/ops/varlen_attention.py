"""Padding-free (varlen) attention: softmax attention within each of N sequences that are packed into one.

Queries, or keys and values, are packed (1,H,T,·) or landmarks of each sequence (N,H,c,·), see ``lra.varlen``.
"""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import is_slow_fused

if TYPE_CHECKING:
    from ..varlen import VarlenLayout

# Lengths are padded to a multiple, because 16-bit products are compiled for every shape.
MULTIPLE = 64


def attend(q: Tensor, k: Tensor, v: Tensor, layout: "VarlenLayout", *, dropout_p: float = 0.0) -> Tensor:
    """Compute softmax(q kᵀ / √D) v within each sequence by torch's fused kernel.

    Args:
        q, k, v: (1,H,T,·) or (N,H,c,·); k and v are both packed or both landmarks.
        layout: positions of the sequences.
        dropout_p: dropout rate of the weights.

    Returns:
        (1,H,T,E) or (N,H,c,E), as q.
    """
    out = []
    for sequence in zip(layout.rows(q), layout.rows(k), layout.rows(v), strict=True):
        # The fused kernel takes a batch of one.
        q_i, k_i, v_i = (x[None] for x in sequence)
        out_i = F.scaled_dot_product_attention(q_i, k_i, v_i, dropout_p=dropout_p)
        out.append(out_i[0])
    if layout.packs(q):
        return layout.join(out)
    return torch.stack(out)


def attend_thin(q: Tensor, k: Tensor, v: Tensor, layout: "VarlenLayout") -> Tensor:
    """Compute ``attend`` for few queries or few keys per sequence, like ``attention_maps.attend_thin``.

    Args:
        q, k, v, layout: see ``attend``.
    """
    if not is_slow_fused(q):
        return attend(q, k, v, layout)
    # Scale the smaller operand.
    scale = q.shape[-1] ** -0.5
    if k.numel() > q.numel():
        q = q * scale
    else:
        k = k * scale
    return _GroupedAttention.apply(q, k, v, layout)


class _GroupedAttention(torch.autograd.Function):
    """softmax(q kᵀ) v within each sequence, for eight sequences of similar lengths at a time.

    16-bit products on a CPU take microseconds to begin, and copy operands that are not contiguous.
    """

    @staticmethod
    def forward(ctx, q, k, v, layout):
        groups = zip(layout.groups, _group(q, layout), _group(k, layout), _group(v, layout), strict=True)
        outputs = []
        saved = []
        for members, q_group, k_group, v_group in groups:
            scores = q_group @ k_group.mT  # (g,H,i,j)
            # Keys beyond the end of a sequence get no weight.
            if layout.packs(k):
                for sequence_scores, member in zip(scores, members, strict=True):
                    sequence_scores[..., layout.lengths[member] :] = float("-inf")
            weights = scores.softmax(-1)
            outputs.append(weights @ v_group)
            saved += [q_group, k_group, v_group, weights]
        ctx.layout = layout
        ctx.is_packed = [layout.packs(x) for x in (q, k, v)]
        ctx.save_for_backward(*saved)
        return _ungroup(outputs, layout.packs(q), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grads = ([], [], [])
        saved = iter(ctx.saved_tensors)
        for g in _group(grad, ctx.layout):
            q = next(saved)
            k = next(saved)
            v = next(saved)
            weights = next(saved)
            dweights = g @ v.mT
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            grads[0].append(dscores @ k)
            grads[1].append(dscores.mT @ q)
            grads[2].append(weights.mT @ g)
        input_grads = []
        for groups, is_packed in zip(grads, ctx.is_packed, strict=True):
            input_grads.append(_ungroup(groups, is_packed, ctx.layout))
        return *input_grads, None


def _group(x: Tensor, layout: "VarlenLayout") -> list[Tensor]:
    """Copy each group of sequences of x, (1,H,T,D) or (N,H,c,D), to (g,H,·,D), with zeros beyond their ends."""
    if not layout.packs(x):
        return [x[group] for group in layout.groups]
    sequences = layout.rows(x)
    padded_groups = []
    for group in layout.groups:
        # The longest sequence of the group, rounded up.
        longest = max(layout.lengths[member] for member in group)
        width = -(-longest // MULTIPLE) * MULTIPLE
        padded = x.new_zeros(len(group), x.shape[1], width, x.shape[3])
        for target, member in zip(padded, group, strict=True):
            target[:, : layout.lengths[member]] = sequences[member]
        padded_groups.append(padded)
    return padded_groups


def _ungroup(groups: Iterable[Tensor], is_packed: bool, layout: "VarlenLayout") -> Tensor:
    """Join groups to (1,H,T,D) if ``is_packed``, otherwise to (N,H,c,D): the inverse of ``_group``."""
    members = chain.from_iterable(layout.groups)
    sequences = dict(zip(members, chain.from_iterable(groups), strict=True))
    if not is_packed:
        return torch.stack([sequences[n] for n in range(len(sequences))])
    return layout.join(sequences[n][:, :length] for n, length in enumerate(layout.lengths))
