"""The cubic iteration of U (BM,BM) by the symmetric matrix P = U Z alone, on chip, and its backward pass.

Z_0 = Uᵀ / s, s the largest column sum, so P_0 = U Uᵀ / s and its polynomials are symmetric and commute. One step,
    Y = P²    N = (7 Y - 15 P - P Y) / 4    Z' = 13 Z / 4 + Z N    P' = 13 P / 4 + P N
has the same number of products as the published step; three of them depend on each other instead of four. Of the
gradient H of P' only the symmetric part matters. With the gradient G of Z', S the symmetric part of Zᵀ G and "+ ᵀ"
for X + Xᵀ,
    B = P (7 H - S) / 4    M = (7 S - 15 H) / 4 + B + Bᵀ / 2 - (Y H + ᵀ) / 4
    dP = (13 H - 15 S) / 4 + (P M + ᵀ)    dZ = 13 G / 4 + G N
are five products instead of eleven: P N = (7 P Y - 15 Y - Y²) / 4, and gradients through Y, P Y and Y² all have the
form P M + ᵀ. At the start
    dU = (Gᵀ + 2 H U) / s and, in the first largest column, - sum((Gᵀ + H U) * U) / s².

P is not recomputed from Z, so its rounding errors grow by up to 13/4 in each step. Therefore this form is used for
16-bit inputs and few steps only (``tiles.symmetric``). Three measures keep the errors small.
    1. 13 Z / 4 and 13 P / 4 are added in float32. As 13/4 I inside N they would be rounded with the product, and the
       small eigenvalues of P, whose errors grow most, would change.
    2. P' is made symmetric after each step.
    3. The gradient of Z is split into G + a rᵀ, where a rᵀ comes from the mean of the rows of R V. Each step changes r
       alone, in float32. If values have a large mean, this part is the largest, and most of it cancels in the softmax
       of U, whose rows sum to 1.
"""

import triton
import triton.language as tl

from .primitives import dot, is_largest_column, largest_column_sum


@triton.jit
def factor(p, y, PRECISION: tl.constexpr):
    """Compute N of one step."""
    n = 1.75 * y - 3.75 * p
    return n - 0.25 * dot(p, y, PRECISION)


@triton.jit
def cubic(u, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Compute Z. Unless ``at`` is None, store U there and, behind room for G, H and S, Z, P, Y and N of each step."""
    # Z_0 = Uᵀ / s, P_0 = U Z_0.
    z = tl.trans(u) / largest_column_sum(u)
    p = dot(u, z, PRECISION)
    if at is not None:
        tl.store(at, u)
    for k in tl.range(STEPS, num_stages=1):
        y = dot(p, p, PRECISION)
        n = factor(p, y, PRECISION)
        if at is not None:
            step_at = at + (4 + 4 * k) * BM * BM
            tl.store(step_at, z)
            tl.store(step_at + BM * BM, p)
            tl.store(step_at + 2 * BM * BM, y)
            tl.store(step_at + 3 * BM * BM, n)
        z = 3.25 * z + dot(z, n, PRECISION)
        p = 3.25 * p + dot(p, n, PRECISION)
        p = 0.5 * (p + tl.trans(p))
    return z


@triton.jit
def backward(grad, a, r, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Return U and its gradient from the gradient of Z, grad + a rᵀ; ``at``: the matrices that ``cubic`` stored."""
    # At the last step G is grad and H is zero.
    grad_at = at + BM * BM
    h_at = at + 2 * BM * BM
    s_at = at + 3 * BM * BM
    tl.store(grad_at, grad)
    tl.store(h_at, tl.zeros((BM, BM), tl.float32))
    tl.debug_barrier()
    for back in tl.range(STEPS, num_stages=1):
        # The matrices of step STEPS - 1 - back.
        step = STEPS - 1 - back
        z_at = at + (4 + 4 * step) * BM * BM
        p_at = z_at + BM * BM
        y_at = z_at + 2 * BM * BM
        n_at = z_at + 3 * BM * BM

        # S, the symmetric part of Zᵀ (G + a rᵀ).
        z = tl.load(z_at)
        dz = tl.load(grad_at)
        za = tl.sum(z * a[:, None], 0)
        x = za[:, None] * r[None, :] + dot(tl.trans(z), dz, PRECISION)
        x = 0.5 * x
        tl.store(s_at, x + tl.trans(x))
        tl.debug_barrier()

        # dZ = 13 (G + a rᵀ) / 4 + (G + a rᵀ) N.
        dz = tl.load(grad_at)
        n = tl.load(n_at)
        r = 3.25 * r + tl.sum(r[:, None] * n, 0)
        dz = 3.25 * dz + dot(dz, n, PRECISION)
        tl.store(grad_at, dz)
        tl.debug_barrier()

        # M: - (Y H + ᵀ) / 4 first.
        y = tl.load(y_at)
        h = tl.load(h_at)
        x = dot(y, h, PRECISION)
        m = -0.25 * (x + tl.trans(x))
        tl.debug_barrier()

        # Then B + Bᵀ / 2 with B = P (7 H - S) / 4.
        p = tl.load(p_at)
        h = tl.load(h_at)
        s = tl.load(s_at)
        x = dot(p, 1.75 * h - 0.25 * s, PRECISION)
        m += x + 0.5 * tl.trans(x)
        tl.debug_barrier()

        # Then (7 S - 15 H) / 4, and P M.
        h = tl.load(h_at)
        s = tl.load(s_at)
        p = tl.load(p_at)
        m = m + 1.75 * s - 3.75 * h
        x = dot(p, m, PRECISION)
        tl.debug_barrier()

        # dP = (13 H - 15 S) / 4 + (P M + ᵀ).
        h = tl.load(h_at)
        s = tl.load(s_at)
        dp = 3.25 * h - 3.75 * s
        dp = dp + x + tl.trans(x)
        tl.store(h_at, dp)
        tl.debug_barrier()

    # The start: dU = (Gᵀ + 2 H U) / s, and the gradient of s in the first largest column.
    u = tl.load(at)
    s = largest_column_sum(u)
    grad = tl.load(grad_at) + a[:, None] * r[None, :]
    grad = tl.trans(grad)
    h = tl.load(h_at)
    hu = dot(h, u, PRECISION)
    row_sums = tl.sum((grad + hu) * u, 1)
    total = tl.sum(row_sums[None, :], 1, keep_dims=True)
    pull = total / (s * s)
    du = (grad + 2.0 * hu) / s
    du = du - tl.where(is_largest_column(u), pull, 0.0)
    return u, du
