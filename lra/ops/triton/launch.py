"""The order of the launches. ``run`` launches a kernel; compilation ahead of time replaces it.

N examples, H heads, G = N H, L length, M selected queries and keys, D key size, E value size, S parts along the
sequence. mask (N,L), bytes, marks real tokens.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..pinv import cubic
from . import core, core_library, selection_scores, tiles
from . import streaming_backward as back
from . import streaming_forward as fore


def run(kernel, grid, *args, warps: int, stages: int, **constants) -> None:
    """Launch a kernel, unless the batch is empty."""
    if 0 not in grid:  # an empty batch
        kernel[grid](*args, num_warps=warps, num_stages=stages, **constants)


class Kept(NamedTuple):
    """Selected queries and keys: landmarks (N,H,M,D), or all of them (N,H,L,D) with the selected positions (N,H,M).

    row_real and col_real, (N,H,M) or (N,H,L), mark the real ones by bytes.
    """

    q: Tensor
    k: Tensor
    rows: Tensor | None
    cols: Tensor | None
    row_real: Tensor | None
    col_real: Tensor | None

    def strides(self) -> tuple[int, ...]:
        return (*self.q.stride()[:3], *self.k.stride()[:3])

    def real_strides(self) -> tuple[int, ...]:
        return (*_pair(self.row_real), *_pair(self.col_real))

    def gathered(self) -> list[Tensor | None]:
        """Gather selected queries and keys (G,M,D) in float32, and whether each is real (G,M)."""
        a, b = _gather(self.q, self.rows).float(), _gather(self.k, self.cols).float()
        real = _gather(self.row_real, self.rows), _gather(self.col_real, self.cols)
        return [x if x is None else x.flatten(0, 1) for x in (a, b, *real)]


def sizes(q: Tensor, v: Tensor, m: int) -> dict[str, int]:
    D, E = q.shape[-1], v.shape[-1]
    return {"M": m, "D": D, "E": E, "BM": tiles.padded(m), "BD": tiles.padded(D), "BE": tiles.padded(E)}


def forward(
    q, k, v, near: Kept, mask, steps: int, copy: bool, split: bool, run=run, arch=None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Launch the forward pass.

    Args:
        q, k, v: (N,H,L,·).
        near: selected queries and keys.
        mask: (N,L).
        steps: number of steps of the cubic iteration.
        copy: whether selected rows of the output are rows of R V.
        split: whether 16-bit factors are split, see ``lra.ops.triton``.
        run: launches a kernel.
        arch: 80, 90, 100; None for that of q's device.

    Returns:
        Output (N,H,L,E), laid out as v; in float32 R V and W (G,M,E), the base-2 log-sum-exp of R (G,M) and Z (G,M,M).
    """
    N, H, L, D = q.shape
    G, M, E = N * H, _count(near), v.shape[-1]
    size, scale2 = sizes(q, v, M), D**-0.5 / math.log(2)
    new = lambda *shape: q.new_empty(shape, dtype=torch.float32)

    area = size["BM"], max(size["BD"], size["BE"]), q.dtype, arch or tiles.arch(q.device)
    inverse = _inverse(steps, q.dtype)
    tile = tiles.streaming("rv", *area)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    rv_parts, lse_parts = new(S, G, M, E), new(S, G, M)
    on_chip = tiles.on_chip(size["BM"], area[-1])
    beside = on_chip and tiles.beside(*area)
    z = new(G, M, M) if on_chip else None
    if on_chip and not beside:
        run(
            core.inverse, (G,), *near, z, *near.strides(), *near.real_strides(), H, scale2,
            M=M, D=D, BM=size["BM"], BD=size["BD"], warps=4, stages=1, **inverse,
        )  # fmt: skip
    strides = (*near.strides(), *k.stride()[:3], *v.stride()[:3], *near.real_strides())
    run(
        fore.rv_kernel, (G, S + beside), near.q, near.k, k, v, *near[2:], mask, rv_parts, lse_parts, z,
        *strides, H, L, chunk, scale2, INVERSE=beside, **inverse, **_cut(tile, q, split), **size,
    )  # fmt: skip
    if S > tiles.PARTS or not on_chip:
        rv_parts, lse_parts = (x[None] for x in core_library.combine(rv_parts, lse_parts))
    if on_chip:
        rv, lse, w = new(G, M, E), new(G, M), new(G, M, E)
    else:
        z = cubic(core_library.inner_matrix(*near.gathered()), steps=steps)
        rv, lse = rv_parts[0], lse_parts[0]
        w = z @ rv

    out = torch.empty_like(v)  # autograd copies any other layout than the operands'
    tile = tiles.streaming("out", *area)
    chunk = tiles.chunk(G, L, tile.block, q.device, fill=32)
    run(
        fore.out_kernel, (G, -(-L // chunk)), q, near.k, z if on_chip else None, rv_parts, lse_parts, rv, lse, w,
        near.rows, near.cols, near.col_real, out, *q.stride()[:3], *near.k.stride()[:3], *_pair(near.col_real),
        *out.stride()[:3], H, L, len(rv_parts), chunk, scale2,
        COPY=copy, INNER=inverse["INNER"], **_cut(tile, q, split), **size,
    )  # fmt: skip
    return out, rv, w, lse, z


def backward(
    dout, q, k, v, near: Kept, mask, rv, w, lse, z, steps: int, copy: bool, split: bool, run=run, arch=None
) -> tuple[Tensor, ...]:
    """Launch the backward pass, with arguments and results of ``forward``.

    Returns:
        The gradients of q, k, v and of the landmarks (N,H,M,D), the last two empty without landmarks.
    """
    N, H, L, D = q.shape
    G, M, E = N * H, _count(near), v.shape[-1]
    size, scale = sizes(q, v, M), D**-0.5
    scale2 = scale / math.log(2)
    new = lambda *shape: q.new_empty(shape, dtype=torch.float32)

    area = size["BM"], max(size["BD"], size["BE"]), q.dtype, arch or tiles.arch(q.device)
    tile = tiles.streaming_backward("c_backward", *area)
    chunk = tiles.chunk(G, L, tile.block, q.device)
    S = -(-L // chunk)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dw_parts, dk_parts = new(S, G, M, E), new(S, G, M, D)
    for part in tiles.passes("DW", "DQ", "DK", tile.launches):
        run(
            back.c_backward_kernel, (G, S), q, near.k, w, near.rows, near.cols, near.col_real, dout,
            dq, dw_parts, dk_parts, *q.stride()[:3], *near.k.stride()[:3], *_pair(near.col_real), *dout.stride()[:3],
            *dq.stride()[:3], H, L, chunk, scale, scale2,
            COPY=copy, TURNED=tile.turned, **part, **_cut(tile, q, split), **size,
        )  # fmt: skip

    on_chip, inverse = tiles.on_chip(size["BM"], area[-1]), _inverse(steps, q.dtype)
    if S > tiles.PARTS or not on_chip:
        dw_parts, dk_parts = dw_parts.sum(0, keepdim=True), dk_parts.sum(0, keepdim=True)
    if on_chip:
        dq_rows, dk_cols, drv, delta = new(G, M, D), new(G, M, D), None, None
        scratch = new(G, tiles.scratch(steps, inverse["SYMMETRIC"]), size["BM"], size["BM"])
    else:
        dq_rows, dk_cols = core_library.backward(*near.gathered(), rv, dw_parts[0], steps)
        dk_cols = dk_cols + dk_parts[0]
        drv, z, scratch = z.mT @ dw_parts[0], None, None
        if copy:
            drv = drv + _gather(dout, near.rows).float().flatten(0, 1)
        delta = (drv * rv).sum(-1)
    beside = on_chip and tiles.beside(*area)
    if on_chip and not beside:
        run(
            core.inverse_backward, (G,), *near, rv, dw_parts, dk_parts, scratch, dq_rows, dk_cols,
            *near.strides(), *near.real_strides(), H, len(dw_parts), scale, scale2,
            warps=4, stages=1, **inverse, **size,
        )  # fmt: skip

    tile = tiles.streaming_backward("r_backward", *area)
    dq_parts = new(S, G, M, D)
    for part in tiles.passes("DV", "DK", "DQ", tile.launches):
        run(
            back.r_backward_kernel, (G, S + beside), near.q, near.k, k, v, *near[2:], mask, lse, z, rv, drv, delta,
            dout, dw_parts, dk_parts, scratch, dk, dv, dq_parts, dq_rows, dk_cols,
            *near.strides(), *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
            *near.real_strides(), H, L, len(dw_parts), chunk, scale, scale2,
            COPY=copy, INVERSE=beside, **part, **inverse, **_cut(tile, q, split), **size,
        )  # fmt: skip
        beside = False  # once

    given = near.rows is None
    landmarks = [torch.empty_like(x) if given else x.new_empty(0) for x in (near.q, near.k)]
    to = landmarks if given else (dq, dk)
    run(
        back.scatter_kernel, (G,), near.rows, near.cols, dq_parts, dq_rows, dk_cols, *to,
        *to[0].stride()[:3], *to[1].stride()[:3], H, S,
        M=M, D=D, BM=size["BM"], BD=size["BD"], ADD=not given, stages=2,
        warps=8 if size["BM"] * size["BD"] > 8192 else 4,  # four lack the registers for 128 x 128 gradients
    )  # fmt: skip
    return dq, dk, dv, *landmarks


def row_scores(a: Tensor, b: Tensor | None, mask, score: str, class_token: bool, run=run) -> Tensor:
    """Launch the scores of one or two tensors (N,H,L,D): (1 or 2,N,H,L) in float32."""
    N, H, L, D = a.shape
    scores = a.new_empty(1 if b is None else 2, N, H, L, dtype=torch.float32)
    grid = (N * H, -(-L // 128))
    strides = (*a.stride()[:3], *((0, 0, 0) if b is None else b.stride()[:3]))
    run(
        selection_scores.score_kernel, grid, a, b, mask, scores, *strides, H, L,
        D=D, BD=tiles.padded(D), BN=128, SCORE=score, CLASS=class_token, warps=4, stages=2,
    )  # fmt: skip
    return scores


def _cut(tile: tiles.Tile, q: Tensor, split: bool) -> dict:
    split = split and q.dtype != torch.float32
    sizes = {"BN": tile.block, "warps": tile.warps, "stages": tile.stages}
    return {**sizes, "PRECISION": tile.precision, "SPLIT": split}


def _inverse(steps: int, dtype: torch.dtype) -> dict:
    return {"STEPS": steps, "INNER": tiles.inner_precision(dtype), "SYMMETRIC": tiles.symmetric(dtype, steps)}


def _count(near: Kept) -> int:
    return (near.q if near.rows is None else near.rows).shape[2]


def _pair(real: Tensor | None) -> tuple[int, int]:
    return (0, 0) if real is None else real.stride()[:2]


def _gather(x: Tensor | None, index: Tensor | None) -> Tensor | None:
    """Gather rows of x (N,H,L,...) at index (N,H,M), all for None."""
    if x is None or index is None:
        return x
    return x.take_along_dim(index[..., None] if x.dim() == 4 else index, 2)
