"""The cubic iteration of U (BM,BM) as published, on chip, and its backward pass.

``lra.ops.pinv.cubic_chain`` and ``cubic_chain_backward`` define Z, P, T and the gradients of a step. From
Z_0 = Uᵀ / s, s the largest column sum, dU += Gᵀ / s and, in the first such column, - sum(G * Z_0) / s.
"""

import triton
import triton.language as tl

from .primitives import dot, first_column, largest_column


@triton.jit
def factor(p, PRECISION: tl.constexpr):
    """Compute T of one step."""
    t = 7.0 * p - dot(p, p, PRECISION)
    return 15.0 * p - dot(p, t, PRECISION)


@triton.jit
def cubic(u, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Compute Z; store U at ``at``, and after dU, P and G the initial Z of each step, unless it is None."""
    z = tl.trans(u) / largest_column(u)
    if at is not None:
        tl.store(at, u)
    for k in tl.range(STEPS, num_stages=1):
        if at is not None:
            tl.store(at + (4 + k) * BM * BM, z)
        z = 3.25 * z - 0.25 * dot(z, factor(dot(u, z, PRECISION), PRECISION), PRECISION)
    return z


@triton.jit
def backward(grad, at, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """Compute U and its gradient from that of Z; ``at``: the matrices of ``cubic``."""
    u_at, du_at, p_at, grad_at, z_at = at, at + BM * BM, at + 2 * BM * BM, at + 3 * BM * BM, at + 4 * BM * BM
    tl.store(du_at, tl.zeros((BM, BM), tl.float32))
    tl.store(grad_at, grad)
    tl.debug_barrier()
    for back in tl.range(STEPS, num_stages=1):
        last = z_at + (STEPS - 1 - back) * BM * BM
        p = dot(tl.load(u_at), tl.load(last), PRECISION)
        tl.store(p_at, p)
        t = factor(p, PRECISION)
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
    u = tl.load(u_at)
    s = largest_column(u)
    grad = tl.trans(tl.load(grad_at))
    pull = tl.sum(tl.sum(grad * u, 1)[None, :], 1, keep_dims=True) / (s * s)
    return u, tl.load(du_at) + grad / s - tl.where(first_column(u), pull, 0.0)
