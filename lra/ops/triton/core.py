"""One head in one program: parts of the sequence combined, Z from U, and the gradients through both."""

import triton
import triton.language as tl

from . import core_classic, core_symmetric
from .primitives import VARYING, dot, is_real, load, slots, softmax, store


@triton.jit
def combined(rv, lse, j, valid, g, G, S, M: tl.constexpr, E: tl.constexpr, BE: tl.constexpr):
    """Combine S parts along the sequence to the selected rows ``j`` of R V, one head's, and their log-sum-exp."""
    top = tl.full((j.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((j.shape[0],), tl.float32)
    acc = tl.zeros((j.shape[0], BE), tl.float32)
    for part in range(S):
        slot = (part * G + g).to(tl.int64) * M
        one = tl.load(lse + slot + j, mask=valid, other=float("-inf"))
        new = tl.maximum(top, one)
        shift = tl.where(new == float("-inf"), 0.0, new)
        decay, weight = tl.exp2(top - shift), tl.exp2(one - shift)
        total = total * decay + weight
        acc = acc * decay[:, None] + load(rv + slot * E, j, E, valid, E, BE) * weight[:, None]
        top = new
    total = tl.where(total > 0, total, 1.0)
    return acc / total[:, None], top + tl.log2(total)


@triton.jit
def summed(x, j, g, G, S, M: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Sum the S parts of x (S,G,M,D) in order, rows ``j`` of one head."""
    acc = tl.zeros((j.shape[0], BD), tl.float32)
    for part in range(S):
        acc += load(x + (part * G + g).to(tl.int64) * M * D, j, D, j < M, D, BD)
    return acc


@triton.jit
def inner_matrix(
    q, k, rows, cols, row_real, col_real, g, n, h, q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, scale2,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute U = softmax(scale q[rows] k[cols]ᵀ) of one head over the real columns, zero in other rows: (BM,BM)."""
    row, row_kept = slots(rows, g, M, BM)
    col, col_kept = slots(cols, g, M, BM)
    q += n * q_n + h * q_h
    k += n * k_n + h * k_h
    BK: tl.constexpr = min(BD, 32)
    s = tl.zeros((BM, BM), tl.float32)
    for first in tl.static_range(0, BD, BK):  # few factors at a time, since registers are short
        a = load(q + first, row, q_l, row_kept, D - first, BK)
        b = load(k + first, col, k_l, col_kept, D - first, BK)
        s += dot(a, tl.trans(b), PRECISION)
    real = is_real(col_real + n * cr_n + h * cr_h if col_real is not None else None, col, col_kept)
    u = softmax(s * scale2 + tl.where(real, 0.0, float("-inf"))[None, :])
    real = is_real(row_real + n * rr_n + h * rr_h if row_real is not None else None, row, row_kept)
    return tl.where(real[:, None], u, 0.0)


@triton.jit(do_not_specialize=VARYING)
def inverse(
    q, k, rows, cols, row_real, col_real, z, q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, H, scale2,
    STEPS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    INNER: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Store Z (G,M,M) of one head; also a launch of its own."""
    g = tl.program_id(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    u = inner_matrix(
        q, k, rows, cols, row_real, col_real, g, n, h,
        q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, scale2, M, D, BM, BD, INNER,
    )  # fmt: skip
    inv = (
        core_symmetric.cubic(u, None, STEPS, BM, INNER) if SYMMETRIC else core_classic.cubic(u, None, STEPS, BM, INNER)
    )
    j = tl.arange(0, BM)
    store(z + g.to(tl.int64) * M * M, j, M, j < M, inv, M, BM)


@triton.jit(do_not_specialize=VARYING)
def inverse_backward(
    q, k, rows, cols, row_real, col_real, rv, dw_parts, dk_parts, scratch, dq_rows, dk_cols,
    q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, H, S, scale, scale2,
    STEPS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, INNER: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Store dq_rows and dk_cols (G,M,D) of one head from the parts of dW and dKc; also a launch of its own.

    The steps are run again; scratch (G,``tiles.scratch``,BM,BM) holds their matrices, which are loaded for each
    product, since registers do not hold all of a step. A barrier between two such loads stops the compiler from
    merging them.
    """
    g, G = tl.program_id(0), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    u = inner_matrix(
        q, k, rows, cols, row_real, col_real, g, n, h,
        q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, scale2, M, D, BM, BD, INNER,
    )  # fmt: skip
    j = tl.arange(0, BM)
    at = j[:, None] * BM + j[None, :]
    slot = g.to(tl.int64) * M
    if SYMMETRIC:
        at += scratch + g.to(tl.int64) * (4 + 4 * STEPS) * BM * BM
        core_symmetric.cubic(u, at, STEPS, BM, INNER)
    else:
        at += scratch + g.to(tl.int64) * (4 + STEPS) * BM * BM
        core_classic.cubic(u, at, STEPS, BM, INNER)
    dw = summed(dw_parts, j, g, G, S, M, E, BE)
    grad = dot(dw, tl.trans(load(rv + slot * E, j, E, j < M, E, BE)), INNER)
    if SYMMETRIC:
        u, du = core_symmetric.backward(grad, at, STEPS, BM, INNER)
    else:
        u, du = core_classic.backward(grad, at, STEPS, BM, INNER)
    ds = u * (du - tl.sum(du * u, 1)[:, None]) * scale
    at, valid = slots(cols, g, M, BM)
    b = load(k + n * k_n + h * k_h, at, k_l, valid, D, BD)
    at, valid = slots(rows, g, M, BM)
    a = load(q + n * q_n + h * q_h, at, q_l, valid, D, BD)
    store(dq_rows + slot * D, j, D, j < M, dot(ds, b.to(tl.float32), INNER), D, BD)
    dk = summed(dk_parts, j, g, G, S, M, D, BD) + dot(tl.trans(ds), a.to(tl.float32), INNER)
    store(dk_cols + slot * D, j, D, j < M, dk, D, BD)
