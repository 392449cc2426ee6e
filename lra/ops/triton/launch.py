"""The launches of the forward pass, C W with W = Z (R V) and Z = cubic(U), and of the backward pass.

``run`` of ``operands`` launches a kernel; ``resources`` passes another function in its place.

N examples, H heads, G = N H, L length, M selected queries and keys, D key size, E value size, S parts along the
sequence. mask (N,L), bytes, marks real tokens.
"""

import math

import torch
from torch import Tensor

from ..pinv import cubic
from . import core, core_library, tiles
from . import streaming_backward as back
from . import streaming_forward as fore
from .operands import Selected, gather, inverse_options, mask_strides, num_selected, run, sizes, tile_args, tile_options

__all__ = ["Selected", "backward", "forward", "run", "sizes"]


def forward(
    q, k, v, selected: Selected, mask, steps: int, copy: bool, split: bool, run=run, arch=None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Launch the forward pass.

    Args:
        q, k, v: (N,H,L,·).
        selected: selected queries and keys.
        mask: (N,L).
        steps: number of steps of the cubic iteration.
        copy: whether selected rows of the output are rows of R V.
        split: whether a 16-bit factor is written as a sum of two, see ``lra.ops.triton``.
        run: launches a kernel.
        arch: 80, 90, 100; None for the architecture of q's device.

    Returns:
        Output (N,H,L,E), laid out as v; in float32 R V and W (G,M,E), the base-2 log-sum-exp of the scores of R
        (G,M), and Z (G,M,M).
    """
    N, H, L, D = q.shape
    G = N * H
    M = num_selected(selected)
    E = v.shape[-1]
    size = sizes(q, v, M)
    # exp(scale x) = exp2(scale_log2 x)
    scale_log2 = D**-0.5 / math.log(2)

    # Where the inverse is computed: next to R V, in a separate launch, or by library products.
    arch = arch or tiles.arch(q.device)
    args = tile_args(size, q, arch)
    inverse = inverse_options(steps, q.dtype)
    on_chip = tiles.on_chip(size["BM"], arch)
    is_fused = on_chip and tiles.fuses_inverse(*args)
    z = _new(q, G, M, M) if on_chip else None
    if on_chip and not is_fused:
        run(
            core.inverse, (G,),
            *selected,
            z,
            *selected.strides(),
            *selected.real_strides(),
            H, scale_log2,
            M=M, D=D, BM=size["BM"], BD=size["BD"],
            warps=4, stages=1,
            **inverse,
        )  # fmt: skip

    # R V of S parts of the keys. If the inverse is fused, one more program for each head computes Z.
    tile = tiles.streaming("rv", *args)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    rv_parts = _new(q, S, G, M, E)
    lse_parts = _new(q, S, G, M)
    run(
        fore.rv_kernel, (G, S + is_fused),
        selected.q, selected.k, k, v,
        *selected[2:], mask,
        rv_parts, lse_parts, z,
        *selected.strides(),
        *k.stride()[:3],
        *v.stride()[:3],
        *selected.real_strides(),
        H, L, chunk, scale_log2,
        INVERSE=is_fused,
        **inverse,
        **tile_options(tile, q, split),
        **size,
    )  # fmt: skip

    # Each program of the next launch combines a few parts itself; many are combined here.
    if S > tiles.PARTS or not on_chip:
        combined_rv, combined_lse = core_library.combine(rv_parts, lse_parts)
        rv_parts = combined_rv[None]
        lse_parts = combined_lse[None]

    # With Z on chip the next launch stores R V, its log-sum-exp and W = Z R V; otherwise W is computed here.
    if on_chip:
        rv = _new(q, G, M, E)
        lse = _new(q, G, M)
        w = _new(q, G, M, E)
    else:
        rv = combined_rv
        lse = combined_lse
        u = core_library.inner_matrix(*selected.gathered())
        # With steps=0 the result is a scaled transpose; the operator's fake implementation is contiguous.
        z = cubic(u, steps=steps).contiguous()
        w = z @ rv

    # The output, C W, laid out as v.
    out = torch.empty_like(v)
    tile = tiles.streaming("out", *args)
    # Outputs are not combined afterwards, unlike the parts of R V, so there may be more and shorter programs.
    chunk = tiles.chunk(G, L, tile.block, q.device, fill=32)
    run(
        fore.out_kernel, (G, -(-L // chunk)),
        q, selected.k, z if on_chip else None,
        rv_parts, lse_parts,
        rv, lse, w,
        selected.rows, selected.cols, selected.col_real,
        out,
        *q.stride()[:3],
        *selected.k.stride()[:3],
        *mask_strides(selected.col_real),
        *out.stride()[:3],
        H, L, len(rv_parts), chunk, scale_log2,
        COPY=copy,
        INNER=inverse["INNER"],
        **tile_options(tile, q, split),
        **size,
    )  # fmt: skip
    return out, rv, w, lse, z


def backward(
    dout, q, k, v, selected: Selected, mask, rv, w, lse, z, steps: int, copy: bool, split: bool, run=run, arch=None
) -> tuple[Tensor, ...]:
    """Launch the backward pass.

    Args:
        dout: gradient of the output (N,H,L,E).
        rv, w, lse, z: results of ``forward``, which explains the other arguments.

    Returns:
        The gradients of q, k and v, laid out as these, and of the query and key landmarks (N,H,M,D), both empty without
        landmarks.
    """
    N, H, L, D = q.shape
    G = N * H
    M = num_selected(selected)
    E = v.shape[-1]
    size = sizes(q, v, M)
    scale = D**-0.5
    scale_log2 = scale / math.log(2)

    # Through C: dq, and S parts of dW and of the gradient of the selected keys.
    arch = arch or tiles.arch(q.device)
    args = tile_args(size, q, arch)
    tile = tiles.streaming_backward("c_backward", *args)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    # Allocate each gradient in the layout of its tensor; autograd would copy it otherwise.
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dw_parts = _new(q, S, G, M, E)
    dk_parts = _new(q, S, G, M, D)
    for gradients in tiles.divide_gradients("DW", "DQ", "DK", tile.launches):
        run(
            back.c_backward_kernel, (G, S),
            q, selected.k, w,
            selected.rows, selected.cols, selected.col_real,
            dout,
            dq, dw_parts, dk_parts,
            *q.stride()[:3],
            *selected.k.stride()[:3],
            *mask_strides(selected.col_real),
            *dout.stride()[:3],
            *dq.stride()[:3],
            H, L, chunk, scale, scale_log2,
            COPY=copy,
            TURNED=tile.turned,
            **gradients,
            **tile_options(tile, q, split),
            **size,
        )  # fmt: skip

    # Through the inverse: on chip, where ``r_backward_kernel`` computes d(R V), or by library products.
    on_chip = tiles.on_chip(size["BM"], arch)
    inverse = inverse_options(steps, q.dtype)
    if S > tiles.PARTS or not on_chip:
        dw_parts = dw_parts.sum(0, keepdim=True)
        dk_parts = dk_parts.sum(0, keepdim=True)
    if on_chip:
        dq_rows = _new(q, G, M, D)
        dk_cols = _new(q, G, M, D)
        drv = None
        delta = None
        num_matrices = tiles.num_scratch_matrices(steps, inverse["SYMMETRIC"])
        scratch = _new(q, G, num_matrices, size["BM"], size["BM"])
    else:
        dq_rows, dk_cols = core_library.backward(*selected.gathered(), rv, dw_parts[0], steps)
        dk_cols = dk_cols + dk_parts[0]
        drv = z.mT @ dw_parts[0]
        if copy:
            drv = drv + gather(dout, selected.rows).float().flatten(0, 1)
        delta = (drv * rv).sum(-1)
        z = None
        scratch = None
    is_fused = on_chip and tiles.fuses_inverse(*args)
    if on_chip and not is_fused:
        run(
            core.inverse_backward, (G,),
            *selected,
            rv, dw_parts, dk_parts,
            scratch,
            dq_rows, dk_cols,
            *selected.strides(),
            *selected.real_strides(),
            H, len(dw_parts), scale, scale_log2,
            warps=4, stages=1,
            **inverse,
            **size,
        )  # fmt: skip

    # Through R: dk, dv and S parts of the gradient of the selected queries. ``chunk`` and S come from c_backward, whose
    # tile has the same ``block``. If the inverse is fused, one more program for each head computes its gradient.
    tile = tiles.streaming_backward("r_backward", *args)
    dq_parts = _new(q, S, G, M, D)
    for gradients in tiles.divide_gradients("DV", "DK", "DQ", tile.launches):
        run(
            back.r_backward_kernel, (G, S + is_fused),
            selected.q, selected.k, k, v,
            *selected[2:], mask,
            lse, z, rv, drv, delta,
            dout, dw_parts, dk_parts,
            scratch,
            dk, dv, dq_parts, dq_rows, dk_cols,
            *selected.strides(),
            *k.stride()[:3],
            *v.stride()[:3],
            *dout.stride()[:3],
            *dk.stride()[:3],
            *dv.stride()[:3],
            *selected.real_strides(),
            H, L, len(dw_parts), chunk, scale, scale_log2,
            COPY=copy,
            INVERSE=is_fused,
            **gradients,
            **inverse,
            **tile_options(tile, q, split),
            **size,
        )  # fmt: skip
        # Only the first of these launches computes the inverse.
        is_fused = False

    dq_landmarks, dk_landmarks = _add_selected_gradients(selected, dq, dk, dq_parts, dq_rows, dk_cols, size, run)
    return dq, dk, dv, dq_landmarks, dk_landmarks


def _new(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _add_selected_gradients(
    selected: Selected, dq, dk, dq_parts, dq_rows, dk_cols, size: dict[str, int], run
) -> tuple[Tensor, Tensor]:
    """Store the gradients of landmarks and return them, or add those of selected positions to dq and dk."""
    H = dq.shape[1]
    S, G, M, D = dq_parts.shape
    has_landmarks = selected.rows is None
    if has_landmarks:
        dq_landmarks = torch.empty_like(selected.q)
        dk_landmarks = torch.empty_like(selected.k)
        dq_target = dq_landmarks
        dk_target = dk_landmarks
    else:
        dq_landmarks = selected.q.new_empty(0)
        dk_landmarks = selected.k.new_empty(0)
        dq_target = dq
        dk_target = dk
    # Four warps lack the registers for gradients of 128 x 128.
    is_large = size["BM"] * size["BD"] > 8192
    run(
        core.scatter_kernel, (G,),
        selected.rows, selected.cols,
        dq_parts, dq_rows, dk_cols,
        dq_target, dk_target,
        *dq_target.stride()[:3],
        *dk_target.stride()[:3],
        H, S,
        M=M, D=D, BM=size["BM"], BD=size["BD"],
        ADD=not has_landmarks,
        warps=8 if is_large else 4,
        stages=2,
    )  # fmt: skip
    return dq_landmarks, dk_landmarks
