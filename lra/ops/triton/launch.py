"""The launches of the forward pass and of the selection scores. ``run`` launches a kernel; ``resources`` replaces it.

N examples, H heads, G = N H, L length, M selected queries and keys, D key size, E value size, S parts along the
sequence. mask (N,L), bytes, marks real tokens.
"""

import math

import torch
from torch import Tensor

from ..pinv import cubic
from . import core, core_library, selection_scores, tiles
from . import streaming_forward as fore
from .launch_backward import backward
from .operands import Selected, inverse_options, mask_strides, num_selected, run, sizes, tile_area, tile_options

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
