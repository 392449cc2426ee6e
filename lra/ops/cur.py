"""CUR attention as functions (CURformer: Francois et al., Machine Learning 114:139, 2025).

``lra/reference/cur.py`` has the equations for one head of one sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..options import Range, require_choice, require_range
from .attention_maps import NO_BIAS, Impl, Weights, check_kernels, ensure_nonempty, landmark_product, uses_kernels
from .pinv import Inverse, cubic, exact
from .selection import Pairing, Score, SelectionOptions, gather_mask, gather_tokens, scatter_tokens, select

if TYPE_CHECKING:
    from ..varlen import VarlenLayout

Bias = Callable[[Tensor, Tensor], Tensor]  # positions of queries (..., i) and of keys (..., j) -> (..., i, j)
Columns = Literal["kept", "cells"]


@dataclass(frozen=True, kw_only=True)
class CUROptions(SelectionOptions):
    """Options of CUR attention, in addition to ``SelectionOptions``.

    Args:
        pinv: pseudo-inverse, (...,c,c) -> (...,c,c).
        copy_rv: whether selected queries have their exact outputs, R v.
        weights: function of the scores: ``softmax``, or ``laplace`` of MEGA.
        impl: implementation, see ``lra.ops.attention_maps.landmark_product``.

    Raises:
        ValueError: weights=laplace without impl=eager, or an option outside its choices.
    """

    pinv: Inverse = partial(cubic, steps=4)
    copy_rv: bool = True
    weights: Weights = "softmax"
    impl: Impl = "sdpa"

    def __post_init__(self):
        if self.weights != "softmax" and self.impl != "eager":
            raise ValueError(f"weights={self.weights} needs impl=eager, not {self.impl}")


def cur(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    mask: Bool[Tensor, "N L"] | None,
    options: CUROptions,
    *,
    layout: "VarlenLayout | None" = None,
    draw: Float[Tensor, "2 H _"] | None = None,
    bias: Bias | None = None,
) -> Float[Tensor, "N H L E"]:
    """Compute C · U⁺ · R v with C = f(q k_Jᵀ), U = f(q_I k_Jᵀ), R = f(q_I kᵀ), selected queries I and keys J.

    f(x) = softmax(x / √D) or, with weights=laplace, MEGA's function of x / (number of real keys).

    Args:
        q, k, v: queries, keys and values; N = 1 and L = T for packed sequences.
        mask: real tokens, None for packed sequences.
        options: see ``CUROptions``.
        layout: ``VarlenLayout`` if the sequences are packed. Each sequence must then have at least ``count`` tokens,
            and impl=sdpa, bias=None and a score other than farthest are required. None of this is checked.
        draw: random numbers of score=random, see ``lra.ops.selection.select``.
        bias: a position bias, evaluated only for the entries of C, U and R; not with ``triton*``.

    Returns:
        The outputs. O(L c (D + E) + c³) time.

    Raises:
        ValueError: a position bias with impl=triton*.
    """
    fused = uses_kernels(options.impl)
    if fused and bias is not None:
        raise ValueError(f"impl={options.impl} takes no position bias; use impl=sdpa or eager")
    if layout is not None:
        return _packed_cur(q, k, v, options, layout, draw)
    mask = ensure_nonempty(mask)

    # 1. Select queries I and keys J.
    I, J = select(q, k, options, mask, draw=draw, fused=fused)  # (N,H,c)
    if fused:
        from . import triton as kernels

        # The kernels gather, and copy R v, themselves.
        return kernels.landmark_product(
            q,
            k,
            v,
            pinv=options.pinv,
            rows=I,
            cols=J,
            mask=mask,
            copy_rv=options.copy_rv,
            impl=options.impl,
        )

    # Gather the selected queries and keys, and evaluate the position bias for the entries of C, U and R.
    q_I = gather_tokens(q, I)  # (N,H,c,D)
    k_J = gather_tokens(k, J)  # (N,H,c,D)
    biases = NO_BIAS
    if bias is not None:
        positions = torch.arange(q.shape[2], device=q.device)
        bias_C = bias(positions, J)
        bias_U = bias(I, J)
        bias_R = bias(I, positions)
        biases = (bias_C, bias_U, bias_R)

    # 2. and 3. The maps, and the product C (U⁺ (R v)).
    out, rv = landmark_product(
        q,
        k,
        v,
        q_I,
        k_J,
        pinv=options.pinv,
        mask=mask,
        q_landmark_mask=gather_mask(mask, I),
        k_landmark_mask=gather_mask(mask, J),
        weights=options.weights,
        bias=biases,
        impl=options.impl,
    )

    # 4. The rows R v are exact for the selected queries.
    if options.copy_rv:
        assert rv is not None  # only kernels return None
        return scatter_tokens(out, I, rv)
    return out


def _packed_cur(
    q: Float[Tensor, "1 H T D"],
    k: Float[Tensor, "1 H T D"],
    v: Float[Tensor, "1 H T E"],
    options: CUROptions,
    layout: "VarlenLayout",
    draw: Float[Tensor, "2 H _"] | None,
) -> Float[Tensor, "1 H T E"]:
    """Compute ``cur`` of packed sequences, whose landmarks are (N,H,c,·)."""
    from ..varlen import gather_packed, scatter_packed
    from . import varlen_attention

    def attend_sequences(q: Tensor, k: Tensor, v: Tensor, _mask: Tensor | None, _bias: Tensor | None) -> Tensor:
        return varlen_attention.attend_thin(q, k, v, layout)

    # The steps of ``cur``, without masks and biases.
    I, J = select(q, k, options, layout=layout, draw=draw)  # (N,H,c)
    q_I = gather_packed(q, I)  # (N,H,c,D)
    k_J = gather_packed(k, J)  # (N,H,c,D)
    out, rv = landmark_product(
        q,
        k,
        v,
        q_I,
        k_J,
        pinv=options.pinv,
        weights=options.weights,
        attend=attend_sequences,
    )
    if options.copy_rv:
        assert rv is not None  # only kernels return None
        return scatter_packed(out, I, rv)
    return out


def cur_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    count: int = 64,
    score: Score = "step",
    pairing: Pairing = "separate",
    class_token: bool = False,
    steps: int | None = 4,
    copy_rv: bool = True,
    columns: Columns = "kept",
    impl: Impl = "sdpa",
) -> Float[Tensor, "N H L E"]:
    """Compute CUR attention with the arguments of torch's scaled_dot_product_attention.

    Differences from torch: queries and keys belong to the same L tokens with H heads each, the outputs of padded
    queries are undefined, and neither dropout, a causal form nor ``enable_gqa`` is supported.

    Args:
        query, key: (N,H,L,D).
        value: (N,H,L,E).
        attn_mask: real tokens for all heads and queries: bool, True = real, (N,L) or (N,1,1,L), N may be 1.
            A matrix is (N,L), in torch (L,L).
        dropout_p, is_causal: must be 0 and False.
        scale: factor of the scores, None for 1 / √D.
        count: number of selected queries and keys, all of them if the sequence is shorter.
        score, pairing, class_token: see ``SelectionOptions``; score=random draws new numbers at every call.
        steps: number of steps of the cubic inverse, None for the true pseudo-inverse.
        copy_rv: whether selected queries have their exact outputs.
        columns: what the columns of C stand for. ``kept``: the selected keys, as in CUR attention. ``cells``: clusters
            of keys around them (``cluster_attention.cur_plus``); ignores ``steps``, best with score="farthest".
        impl: see ``lra.ops.attention_maps.landmark_product``; ``eager`` or ``sdpa`` with columns="cells".

    Returns:
        The outputs in query's dtype.

    Raises:
        ValueError: an argument is not supported.
    """
    if is_causal:
        raise ValueError("is_causal=True: CUR selects whole rows and columns of the map, so it has no causal form")
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, not {dropout_p:g}: CUR never forms the map that dropout would act on")
    _check_shapes(query, key, value)
    mask = _token_mask(attn_mask, query)
    L, D = query.shape[2:]
    require_range("count", count, Range(1))
    count = min(count, L)
    pinv: Inverse = exact
    if steps is not None:
        require_range("steps", steps, Range(0))
        pinv = partial(cubic, steps=steps)
    require_choice("columns", columns, Columns)

    # The scores are divided by √D later.
    scaled = query
    if scale is not None:
        scaled = query * (scale * D**0.5)

    if columns == "cells":
        from . import cluster_attention

        require_choice("impl", impl, cluster_attention.Impl)
        compute: Callable[..., Tensor] = cluster_attention.cur_plus
    else:
        require_choice("impl", impl, Impl)
        check_kernels(impl, count=count, head_dim=D, value_dim=value.shape[-1], pinv=pinv)
        compute = cur
    options = CUROptions(
        count=count,
        score=score,
        pairing=pairing,
        class_token=class_token,
        pinv=pinv,
        copy_rv=copy_rv,
        impl=impl,
    )
    out = compute(scaled, key, value, mask, options)
    return out.to(query.dtype)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    fits = key.shape == query.shape and value.shape[:-1] == query.shape[:-1]
    if query.dim() != 4 or not fits:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must be (N,H,L,D), (N,H,L,D) and (N,H,L,E), not {shapes}")


def _token_mask(attn_mask: Tensor | None, query: Tensor) -> Bool[Tensor, "N L"] | None:
    """Convert a mask of keys for torch's attention to (N,L); raise ValueError for other masks."""
    if attn_mask is None:
        return None
    N, _, L, _ = query.shape
    mask = attn_mask
    has_four_dims = mask.dim() == 4 and mask.shape[1:3] == (1, 1)
    if has_four_dims:
        mask = mask[:, 0, 0]
    is_valid = mask.dtype is torch.bool and mask.shape in ((N, L), (1, L))
    if not is_valid:
        shape = f"{attn_mask.dtype} {tuple(attn_mask.shape)}"
        raise ValueError(f"attn_mask must be bool, (N,L) or (N,1,1,L) with N = {N} and L = {L}, not {shape}")
    return mask.expand(N, L)
