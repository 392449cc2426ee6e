"""The launches of the forward pass, of the backward pass and of the selection scores.

``run`` of ``operands`` launches a kernel; ``resources`` passes another function in its place.

N examples, H heads, G = N H, L length, M selected queries and keys, D key size, E value size, S parts along the
sequence. mask (N,L), bytes, marks real tokens.
"""

import math

import torch
from torch import Tensor

from ..pinv import cubic
from . import core, core_library, selection_scores, tiles
from . import streaming_backward as back
from . import streaming_forward as fore
from .operands import Selected, gather, inverse_options, mask_strides, num_selected, run, sizes, tile_area, tile_options

__all__ = ["Selected", "backward", "forward", "run", "sizes", "token_scores"]


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
        split: whether 16-bit factors are split, see ``lra.ops.triton``.
        run: launches a kernel.
        arch: 80, 90, 100; None for the architecture of q's device.

    Returns:
        Output (N,H,L,E), laid out as v; in float32 R V and W (G,M,E), the base-2 log-sum-exp of R (G,M) and Z (G,M,M).
    """
    N, H, L, D = q.shape
    G = N * H
    M = num_selected(selected)
    E = v.shape[-1]
    size = sizes(q, v, M)
    scale2 = D**-0.5 / math.log(2)  # exponentials are powers of two
    new = lambda *shape: q.new_empty(shape, dtype=torch.float32)

    # Where the inverse is computed: next to R V, in a separate launch, or by library products.
    area = tile_area(size, q, arch)
    inverse = inverse_options(steps, q.dtype)
    on_chip = tiles.on_chip(size["BM"], area[-1])
    beside = on_chip and tiles.beside(*area)
    z = new(G, M, M) if on_chip else None
    if on_chip and not beside:
        run(
            core.inverse, (G,),
            *selected,
            z,
            *selected.strides(),
            *selected.real_strides(),
            H, scale2,
            M=M, D=D, BM=size["BM"], BD=size["BD"],
            warps=4, stages=1,
            **inverse,
        )  # fmt: skip

    # R V of S parts of the keys, and Z.
    tile = tiles.streaming("rv", *area)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    rv_parts = new(S, G, M, E)
    lse_parts = new(S, G, M)
    run(
        fore.rv_kernel, (G, S + beside),
        selected.q, selected.k, k, v,
        *selected[2:], mask,
        rv_parts, lse_parts, z,
        *selected.strides(),
        *k.stride()[:3],
        *v.stride()[:3],
        *selected.real_strides(),
        H, L, chunk, scale2,
        INVERSE=beside,
        **inverse,
        **tile_options(tile, q, split),
        **size,
    )  # fmt: skip

    # Each program of the next launch combines a few parts itself; many are combined here.
    if S > tiles.PARTS or not on_chip:
        rv, lse = core_library.combine(rv_parts, lse_parts)
        rv_parts = rv[None]
        lse_parts = lse[None]

    # With Z on chip the next launch stores R V, its log-sum-exp and W = Z R V; otherwise W is computed here.
    if on_chip:
        rv = new(G, M, E)
        lse = new(G, M)
        w = new(G, M, E)
    else:
        u = core_library.inner_matrix(*selected.gathered())
        z = cubic(u, steps=steps)
        w = z @ rv

    # The output, C W, laid out as v.
    out = torch.empty_like(v)
    tile = tiles.streaming("out", *area)
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
        H, L, len(rv_parts), chunk, scale2,
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
    scale2 = scale / math.log(2)
    new = lambda *shape: q.new_empty(shape, dtype=torch.float32)

    # Through C: dq, and S parts of dW and of the gradient of the selected keys.
    area = tile_area(size, q, arch)
    tile = tiles.streaming_backward("c_backward", *area)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    # Autograd would copy gradients in another layout than their tensors'.
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dw_parts = new(S, G, M, E)
    dk_parts = new(S, G, M, D)
    for gradients in tiles.passes("DW", "DQ", "DK", tile.launches):
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
            H, L, chunk, scale, scale2,
            COPY=copy,
            TURNED=tile.turned,
            **gradients,
            **tile_options(tile, q, split),
            **size,
        )  # fmt: skip

    # Through the inverse: on chip, where the next launch computes d(R V) too, or by library products.
    on_chip = tiles.on_chip(size["BM"], area[-1])
    inverse = inverse_options(steps, q.dtype)
    if S > tiles.PARTS or not on_chip:
        dw_parts = dw_parts.sum(0, keepdim=True)
        dk_parts = dk_parts.sum(0, keepdim=True)
    if on_chip:
        dq_rows = new(G, M, D)
        dk_cols = new(G, M, D)
        drv = None
        delta = None
        num_matrices = tiles.scratch(steps, inverse["SYMMETRIC"])
        scratch = new(G, num_matrices, size["BM"], size["BM"])
    else:
        dq_rows, dk_cols = core_library.backward(*selected.gathered(), rv, dw_parts[0], steps)
        dk_cols = dk_cols + dk_parts[0]
        drv = z.mT @ dw_parts[0]
        if copy:
            drv = drv + gather(dout, selected.rows).float().flatten(0, 1)
        delta = (drv * rv).sum(-1)
        z = None
        scratch = None
    beside = on_chip and tiles.beside(*area)
    if on_chip and not beside:
        run(
            core.inverse_backward, (G,),
            *selected,
            rv, dw_parts, dk_parts,
            scratch,
            dq_rows, dk_cols,
            *selected.strides(),
            *selected.real_strides(),
            H, len(dw_parts), scale, scale2,
            warps=4, stages=1,
            **inverse,
            **size,
        )  # fmt: skip

    # Through R: dk, dv and S parts of the gradient of the selected queries.
    tile = tiles.streaming_backward("r_backward", *area)
    dq_parts = new(S, G, M, D)
    for gradients in tiles.passes("DV", "DK", "DQ", tile.launches):
        run(
            back.r_backward_kernel, (G, S + beside),
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
            H, L, len(dw_parts), chunk, scale, scale2,
            COPY=copy,
            INVERSE=beside,
            **gradients,
            **inverse,
            **tile_options(tile, q, split),
            **size,
        )  # fmt: skip
        # Only the first of these launches computes the inverse.
        beside = False

    # Gradients of landmarks are stored; gradients of selected positions are added to dq and dk.
    has_landmarks = selected.rows is None
    if has_landmarks:
        dq_landmarks = torch.empty_like(selected.q)
        dk_landmarks = torch.empty_like(selected.k)
        dq_target, dk_target = dq_landmarks, dk_landmarks
    else:
        dq_landmarks = selected.q.new_empty(0)
        dk_landmarks = selected.k.new_empty(0)
        dq_target, dk_target = dq, dk
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
    return dq, dk, dv, dq_landmarks, dk_landmarks


def token_scores(a: Tensor, b: Tensor | None, mask, score: str, class_token: bool, run=run) -> Tensor:
    """Launch the scores of one or two tensors (N,H,L,D): (1 or 2,N,H,L) in float32."""
    N, H, L, D = a.shape
    num_tensors = 1 if b is None else 2
    scores = a.new_empty(num_tensors, N, H, L, dtype=torch.float32)
    b_strides = (0, 0, 0) if b is None else b.stride()[:3]
    block = 128
    run(
        selection_scores.score_kernel, (N * H, -(-L // block)),
        a, b, mask,
        scores,
        *a.stride()[:3],
        *b_strides,
        H, L,
        D=D, BD=tiles.padded(D), BN=block,
        SCORE=score,
        CLASS=class_token,
        warps=4, stages=2,
    )  # fmt: skip
    return scores
