"""The cubic iteration of U (BM,BM) as published, on chip, and its backward pass.

``lra.ops.pinv.cubic_chain`` and ``cubic_chain_backward`` define Z, P, T and the gradients of a step. G is the gradient
of Z (``dz``). At the start G is the gradient of Z_0 = Uᵀ / s, with the largest column sum s: dU += Gᵀ / s and, in the
first largest column, - sum(G * Z_0) / s.
"""

import triton
import triton.language as tl

from .primitives import dot, is_largest_column, largest_column_sum


@triton.jit
def factor(p, PRECISION: tl.constexpr):
    """Compute T of one step."""
    t = 7.0 * p - dot(p, p, PRECISION)
    return 15.0 * p - dot(p, t, PRECISION)


@triton.jit
def cubic(u, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Compute Z. Unless ``at`` is None, store U there and, behind room for dU, P and G, the Z before each step."""
    # Z_0 = Uᵀ / s.
    s = largest_column_sum(u)
    z = tl.trans(u) / s
    if at is not None:
        tl.store(at, u)
    for k in tl.range(STEPS, num_stages=1):
        if at is not None:
            tl.store(at + (4 + k) * BM * BM, z)
        # P = U Z, Z' = (13 Z - Z T) / 4.
        p = dot(u, z, PRECISION)
        t = factor(p, PRECISION)
        z = 3.25 * z - 0.25 * dot(z, t, PRECISION)
    return z


@triton.jit
def backward(grad, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Return U and its gradient from the gradient of Z; ``at``: the matrices that ``cubic`` stored."""
    u_at = at
    du_at = at + BM * BM
    p_at = at + 2 * BM * BM
    grad_at = at + 3 * BM * BM
    z_at = at + 4 * BM * BM
    tl.store(du_at, tl.zeros((BM, BM), tl.float32))
    tl.store(grad_at, grad)
    tl.debug_barrier()
    for back in tl.range(STEPS, num_stages=1):
        # P and T of step STEPS - 1 - back again.
        step = STEPS - 1 - back
        step_at = z_at + step * BM * BM
        u = tl.load(u_at)
        z = tl.load(step_at)
        p = dot(u, z, PRECISION)
        tl.store(p_at, p)
        t = factor(p, PRECISION)
        tl.debug_barrier()

        # dT = - Zᵀ G / 4, and the part of dZ that does not pass through P.
        dz = tl.load(grad_at)
        z = tl.load(step_at)
        dt = -0.25 * dot(tl.trans(z), dz, PRECISION)
        tl.debug_barrier()
        through_t = dot(dz, tl.trans(t), PRECISION)
        tl.store(grad_at, 3.25 * dz - 0.25 * through_t)

        # dP, from the products with Pᵀ on the left, then on the right.
        p = tl.trans(tl.load(p_at))
        x = dot(p, dt, PRECISION)  # A, then B
        dp = 15.0 * dt + dot(p, x, PRECISION)
        tl.debug_barrier()
        p = tl.trans(tl.load(p_at))
        x += dot(dt, p, PRECISION)
        dp += dot(x, p, PRECISION) - 7.0 * x
        tl.debug_barrier()

        # P = U Z: dU += dP Zᵀ, dZ += Uᵀ dP.
        du = tl.load(du_at)
        z = tl.load(step_at)
        du = du + dot(dp, tl.trans(z), PRECISION)
        tl.store(du_at, du)
        dz = tl.load(grad_at)
        u = tl.load(u_at)
        dz = dz + dot(tl.trans(u), dp, PRECISION)
        tl.store(grad_at, dz)
        tl.debug_barrier()

    # The start: dU += Gᵀ / s, and the gradient of s in the first largest column.
    u = tl.load(u_at)
    s = largest_column_sum(u)
    grad = tl.trans(tl.load(grad_at))
    row_sums = tl.sum(grad * u, 1)
    total = tl.sum(row_sums[None, :], 1, keep_dims=True)
    pull = total / (s * s)
    du = tl.load(du_at) + grad / s
    du = du - tl.where(is_largest_column(u), pull, 0.0)
    return u, du
