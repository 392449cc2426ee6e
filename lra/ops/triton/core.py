"""The launches between the streaming ones: U, its cubic iteration Z and W = Z R V, one program per head, and backward.

With P = U Z, one step is  Z' = 13/4 Z - 1/4 Z T,  T = 15 P - 7 P² + P³.  For a gradient G of Z',
    dT = -1/4 Zᵀ G    A = Pᵀ dT    B = A + dT Pᵀ    dP = 15 dT - 7 B + B Pᵀ + Pᵀ A
    dZ = 13/4 G - 1/4 G Tᵀ + Uᵀ dP      dU += dP Zᵀ
and from Z_0 = Uᵀ / s, s the largest column sum, dU += Gᵀ / s and, in the first such column, - sum(G * Z_0) / s.
"""

import triton
import triton.language as tl

from .primitives import VARYING, cubic_step, dot, inner_matrix, is_real, load, slots, store


@triton.jit
def combined(rv, lse, g, G, S, M: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr):
    """Combine S parts along the sequence to R V (BM,BE) of one head and its log-sum-exp (BM,)."""
    j = tl.arange(0, BM)
    kept = j < M
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BE), tl.float32)
    for part in range(S):
        slot = (part * G + g).to(tl.int64) * M
        one = tl.load(lse + slot + j, mask=kept, other=float("-inf"))
        new = tl.maximum(top, one)
        shift = tl.where(new == float("-inf"), 0.0, new)
        decay, weight = tl.exp2(top - shift), tl.exp2(one - shift)
        total = total * decay + weight
        acc = acc * decay[:, None] + load(rv + slot * E, j, E, kept, E, BE) * weight[:, None]
        top = new
    total = tl.where(total > 0, total, 1.0)
    return acc / total[:, None], top + tl.log2(total)


@triton.jit
def summed(x, g, G, S, M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """Sum the S parts of x (S,G,M,D) for one head, in order."""
    j = tl.arange(0, BM)
    acc = tl.zeros((BM, BD), tl.float32)
    for part in range(S):
        acc += load(x + (part * G + g).to(tl.int64) * M * D, j, D, j < M, D, BD)
    return acc


@triton.jit
def landmarks(
    q, k, rows, cols, row_real, col_real, g, n, h, q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Load the kept queries and keys (BM,BD) of one head, and whether each is real."""
    at, kept = slots(rows, g, M, BM)
    a = load(q + n * q_n + h * q_h, at, q_l, kept, D, BD)
    a_real = is_real(row_real + n * rr_n + h * rr_h if row_real is not None else None, at, kept)
    at, kept = slots(cols, g, M, BM)
    b = load(k + n * k_n + h * k_h, at, k_l, kept, D, BD)
    b_real = is_real(col_real + n * cr_n + h * cr_h if col_real is not None else None, at, kept)
    return a, b, a_real, b_real


@triton.jit
def largest_column(u):
    """Column sums of u (1,BM) and the largest (1,1), not a scalar, which triton 3.7 cannot place in tensor memory."""
    sums = tl.sum(u, 0)[None, :]
    return sums, tl.max(sums, 1, keep_dims=True)


@triton.jit(do_not_specialize=VARYING)
def cubic_kernel(
    q, k, rows, cols, row_real, col_real, rv_parts, lse_parts, rv, lse, w,
    q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, H, S, scale2,
    STEPS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Combine rv and lse from their parts and compute w (G,M,E) = Z rv."""
    g, G = tl.program_id(0), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    a, b, a_real, b_real = landmarks(
        q, k, rows, cols, row_real, col_real, g, n, h,
        q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, M, D, BM, BD,
    )  # fmt: skip
    u = inner_matrix(a, b, a_real, b_real, scale2, PRECISION)
    z = tl.trans(u) / largest_column(u)[1]
    for _ in range(STEPS):
        z = cubic_step(u, z, PRECISION)
    product, log = combined(rv_parts, lse_parts, g, G, S, M, E, BM, BE)
    j = tl.arange(0, BM)
    slot = g.to(tl.int64) * M
    tl.store(lse + slot + j, log, mask=j < M)
    store(rv + slot * E, j, E, j < M, product, E, BE)
    store(w + slot * E, j, E, j < M, dot(z, product, PRECISION), E, BE)


@triton.jit(do_not_specialize=VARYING)
def cubic_backward_kernel(
    q, k, rows, cols, row_real, col_real, rv, dout, dw_parts, dk_parts, scratch, drv, delta, dq_rows, dk_cols,
    q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, o_n, o_h, o_l, H, S, scale, scale2,
    STEPS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Compute drv (G,M,E), delta = rowsum(drv * rv) (G,M), dq_rows and dk_cols (G,M,D) from the parts of dW and dKc.

    The steps are run again, and scratch (G,4+STEPS,BM,BM) holds the initial Z of each. It also holds U, dU, P and G,
    which are loaded again for each product, since registers do not hold all matrices of a step. A barrier between two
    such loads stops the compiler from merging them.
    """
    g, G = tl.program_id(0), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    a, b, a_real, b_real = landmarks(
        q, k, rows, cols, row_real, col_real, g, n, h,
        q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, M, D, BM, BD,
    )  # fmt: skip
    u = inner_matrix(a, b, a_real, b_real, scale2, PRECISION)
    j = tl.arange(0, BM)
    square = j[:, None] * BM + j[None, :]
    u_at = scratch + g.to(tl.int64) * (4 + STEPS) * BM * BM + square
    du_at = u_at + BM * BM
    p_at = du_at + BM * BM
    grad_at = p_at + BM * BM
    z_at = grad_at + BM * BM
    tl.store(u_at, u)
    tl.store(du_at, tl.zeros((BM, BM), tl.float32))
    z = tl.trans(u) / largest_column(u)[1]
    for step in range(STEPS):
        tl.store(z_at + step * BM * BM, z)
        z = cubic_step(u, z, PRECISION)
    slot = g.to(tl.int64) * M
    dw = summed(dw_parts, g, G, S, M, E, BM, BE)
    product = load(rv + slot * E, j, E, j < M, E, BE)
    to_rv = dot(tl.trans(z), dw, PRECISION)
    if COPY:
        to, kept = slots(rows, g, M, BM)
        to_rv += load(dout + n * o_n + h * o_h, to, o_l, kept, E, BE)
    store(drv + slot * E, j, E, j < M, to_rv, E, BE)
    tl.store(delta + slot + j, tl.sum(to_rv * product, 1), mask=j < M)

    tl.store(grad_at, dot(dw, tl.trans(product), PRECISION))
    tl.debug_barrier()
    for back in range(STEPS):
        last = z_at + (STEPS - 1 - back) * BM * BM
        p = dot(tl.load(u_at), tl.load(last), PRECISION)
        tl.store(p_at, p)
        t = 7.0 * p - dot(p, p, PRECISION)
        t = 15.0 * p - dot(p, t, PRECISION)
        tl.debug_barrier()
        grad = tl.load(grad_at)
        dt = -0.25 * dot(tl.trans(tl.load(last)), grad, PRECISION)
        tl.debug_barrier()
        tl.store(grad_at, 3.25 * grad - 0.25 * dot(grad, tl.trans(t), PRECISION))
        p = tl.trans(tl.load(p_at))
        x = dot(p, dt, PRECISION)  # A, then B
        dp = 15.0 * dt + dot(p, x, PRECISION)
        tl.debug_barrier()
        p = tl.trans(tl.load(p_at))
        x += dot(dt, p, PRECISION)
        dp += dot(x, p, PRECISION) - 7.0 * x
        tl.debug_barrier()
        tl.store(du_at, tl.load(du_at) + dot(dp, tl.trans(tl.load(last)), PRECISION))
        tl.store(grad_at, tl.load(grad_at) + dot(tl.trans(tl.load(u_at)), dp, PRECISION))
        tl.debug_barrier()
    a, b, a_real, b_real = landmarks(
        q, k, rows, cols, row_real, col_real, g, n, h,
        q_n, q_h, q_l, k_n, k_h, k_l, rr_n, rr_h, cr_n, cr_h, M, D, BM, BD,
    )  # fmt: skip
    grad = tl.load(grad_at)
    u = tl.load(u_at)
    sums, s = largest_column(u)
    first = tl.min(tl.where(sums == s, j[None, :], BM), 1, keep_dims=True)
    pull = tl.sum(tl.sum(grad * tl.trans(u), 1)[None, :], 1, keep_dims=True) / (s * s)
    du = tl.load(du_at) + tl.trans(grad) / s - tl.where(j[None, :] == first, pull, 0.0)
    ds = u * (du - tl.sum(du * u, 1)[:, None]) * scale
    store(dq_rows + slot * D, j, D, j < M, dot(ds, b.to(tl.float32), PRECISION), D, BD)
    dk = summed(dk_parts, g, G, S, M, D, BM, BD) + dot(tl.trans(ds), a.to(tl.float32), PRECISION)
    store(dk_cols + slot * D, j, D, j < M, dk, D, BD)
