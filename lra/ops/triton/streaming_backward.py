"""The launches of the backward pass: over queries, over keys and values next to the inverse, and the final scatter."""

import triton
import triton.language as tl

from .core import inverse_backward, summed
from .primitives import VARYING, dot, dot_halves, dot_wide, halves, is_real, load, narrow, probabilities, slots, store


@triton.jit(do_not_specialize=VARYING)
def c_backward_kernel(
    q, k, w, rows, cols, real, dout, dq, dw, dk,
    q_n, q_h, q_l, k_n, k_h, k_l, r_n, r_h, o_n, o_h, o_l, dq_n, dq_h, dq_l, H, L, chunk, scale, scale2,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr, COPY: tl.constexpr,
    TURNED: tl.constexpr, DW: tl.constexpr, DQ: tl.constexpr, DK: tl.constexpr,
):  # fmt: skip
    """Compute dq of ``chunk`` queries, and their parts of dW (S,G,M,E) and of the gradient of k[cols] (S,G,M,D).

    dC = D wᵀ, dS = C * (dC - rowsum(dC * C)), dq = scale dS k[cols], dW = Cᵀ D, dk = scale dSᵀ q; D is dout, with COPY
    without its selected rows. DW, DQ, DK: the gradients of this launch, since all at once may need too many registers.
    TURNED: compute C as (BM,BN), which suits sums over rows and divides many selected rows among warps; otherwise as
    (BN,BM), for which a softmax stays within one warp.
    """
    g, part = tl.program_id(0), tl.program_id(1)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    at, valid = slots(cols, g, M, BM)
    b = load(k + n * k_n + h * k_h, at, k_l, valid, D, BD)
    bias = tl.where(is_real(real + n * r_n + h * r_h if real is not None else None, at, valid), 0.0, float("-inf"))
    j = tl.arange(0, BM)
    weights = narrow(load(w + g.to(tl.int64) * M * E, j, E, valid, E, BE), dout)
    q += n * q_n + h * q_h
    dout += n * o_n + h * o_h
    dq += n * dq_n + h * dq_h
    if COPY:
        copied, _ = slots(rows, g, M, BM)
        copied = tl.where(valid, copied, -1).to(tl.int32)
    dw_acc = tl.zeros((BM, BE), tl.float32)
    dk_acc = tl.zeros((BM, BD), tl.float32)
    end = tl.minimum(part * chunk + chunk, L)
    for start in tl.range(part * chunk, end, BN):
        i = start + tl.arange(0, BN)
        x = load(q, i, q_l, i < end, D, BD)
        mixed = (i < end) & (tl.max((i[:, None] == copied[None, :]).to(tl.int32), 1) == 0) if COPY else i < end
        y = load(dout, i, o_l, mixed, E, BE)
        if TURNED:
            s = dot(b, tl.trans(x), PRECISION) * scale2 + bias[:, None]
            p = tl.exp2(s - tl.max(s, 0)[None, :])
            p = p * (1.0 / tl.sum(p, 0))[None, :]
        else:
            p = tl.trans(probabilities(x, b, bias, scale2, PRECISION))
        if DW:
            dw_acc += dot_wide(p, y, dout, SPLIT, PRECISION)
        if DQ or DK:
            dp = dot(weights, tl.trans(y), PRECISION) if TURNED else tl.trans(dot(y, tl.trans(weights), PRECISION))
            ds = narrow(p * (dp - tl.sum(p * dp, 0)[None, :]), dout)
            if DQ:
                store(dq, i, dq_l, i < end, dot(tl.trans(ds), b, PRECISION) * scale, D, BD)
            if DK:
                dk_acc += dot(ds, x, PRECISION)
    slot = (part * tl.num_programs(0) + g).to(tl.int64) * M
    if DW:
        store(dw + slot * E, j, E, valid, dw_acc, E, BE)
    if DK:
        store(dk + slot * D, j, D, valid, dk_acc * scale, D, BD)


@triton.jit(do_not_specialize=VARYING)
def r_backward_kernel(
    q, kept_k, k, v, rows, cols, row_real, col_real, mask, lse, z, rv, drv, delta, dout, dw_parts, dk_parts, scratch,
    dk, dv, dq, dq_rows, dk_cols,
    q_n, q_h, q_l, kk_n, kk_h, kk_l, k_n, k_h, k_l, v_n, v_h, v_l, o_n, o_h, o_l, dk_n, dk_h, dk_l, dv_n, dv_h, dv_l,
    rr_n, rr_h, cr_n, cr_h, H, L, S, chunk, scale, scale2,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr, COPY: tl.constexpr,
    STEPS: tl.constexpr, INNER: tl.constexpr, SYMMETRIC: tl.constexpr, INVERSE: tl.constexpr,
    DV: tl.constexpr, DK: tl.constexpr, DQ: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of ``chunk`` keys, and their part of the gradient of q[rows] (S,G,M,D).

    d(R V) = zᵀ dW + dout[rows], dR = d(R V) vᵀ, dS = R * (dR - rowsum(d(R V) * R V)), dv = Rᵀ d(R V),
    dk = scale dSᵀ q[rows], dq = scale dS k, R from its log-sum-exp. If z is None, drv = d(R V) and
    delta = rowsum(drv * R V) are given instead of the S parts of dW. COPY: whether there is dout[rows]. DV, DK, DQ: the
    gradients of this launch. INVERSE: the first program of each head computes the gradients of the selected rows
    (G,M,D) through Z, dq_rows and, with the gradients through C, dk_cols.
    """
    g, part, G = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    if INVERSE and part == 0:
        inverse_backward(
            q, kept_k, rows, cols, row_real, col_real, rv, dw_parts, dk_parts, scratch, dq_rows, dk_cols,
            q_n, q_h, q_l, kk_n, kk_h, kk_l, rr_n, rr_h, cr_n, cr_h, H, S, scale, scale2,
            STEPS, M, D, E, BM, BD, BE, INNER, SYMMETRIC,
        )  # fmt: skip
    else:
        part -= 1 if INVERSE else 0
        at, valid = slots(rows, g, M, BM)
        a = load(q + n * q_n + h * q_h, at, q_l, valid, D, BD)
        j = tl.arange(0, BM)
        slot = g.to(tl.int64) * M
        log = tl.load(lse + slot + j, mask=valid, other=float("inf"))
        log = tl.where(log == float("-inf"), float("inf"), log)
        if z is None:
            to_rv = load(drv + slot * E, j, E, valid, E, BE)
            less = tl.load(delta + slot + j, mask=valid, other=0.0)
        else:
            turned = tl.zeros((BE, BM), tl.float32)
            BK: tl.constexpr = min(BM, 32)
            for first in tl.range(0, BM, BK):  # few factors at a time, since registers are short
                some = first + tl.arange(0, BK)
                dw = summed(dw_parts, some, g, G, S, M, E, BE)
                turned += dot(tl.trans(dw), load(z + slot * M, some, M, some < M, M, BM), INNER)
            to_rv = tl.trans(turned)  # so that it is valid in shared memory, not in registers
            if COPY:
                to_rv += load(dout + n * o_n + h * o_h, at, o_l, valid, E, BE)
            less = tl.sum(to_rv * load(rv + slot * E, j, E, valid, E, BE), 1)
        high, low = halves(to_rv, dv)
        k += n * k_n + h * k_h
        v += n * v_n + h * v_h
        dk += n * dk_n + h * dk_h
        dv += n * dv_n + h * dv_h
        acc = tl.zeros((BM, BD), tl.float32)
        end = tl.minimum(part * chunk + chunk, L)
        for start in tl.range(part * chunk, end, BN):
            i = start + tl.arange(0, BN)
            inside = i < end
            x = load(k, i, k_l, inside, D, BD)
            y = load(v, i, v_l, inside, E, BE)
            real = is_real(mask + n * L if mask is not None else None, i, inside)
            s = tl.where(real[None, :], dot(a, tl.trans(x), PRECISION) * scale2, float("-inf"))
            p = tl.exp2(s - log[:, None])
            if DV:
                p_high, p_low = halves(p, dv)
                to_v = dot_halves(tl.trans(p_high), high, low, SPLIT, PRECISION)
                if SPLIT:
                    to_v += dot(tl.trans(p_low), high, PRECISION)
                store(dv, i, dv_l, inside, to_v, E, BE)
            if DK or DQ:
                dp = dot(high, tl.trans(y), PRECISION)
                if SPLIT:
                    dp += dot(low, tl.trans(y), PRECISION)
                wide = p * (dp - less[:, None])
                if DK:
                    store(dk, i, dk_l, inside, dot(tl.trans(narrow(wide, dv)), a, PRECISION) * scale, D, BD)
                if DQ:
                    acc += dot_wide(wide, x, dv, SPLIT, PRECISION)
        if DQ:
            slot = (part * G + g).to(tl.int64) * M
            store(dq + slot * D, j, D, valid, acc * scale, D, BD)


@triton.jit(do_not_specialize=VARYING)
def scatter_kernel(
    rows, cols, dq_parts, dq_rows, dk_cols, dq, dk,
    dq_n, dq_h, dq_l, dk_n, dk_h, dk_l, H, S,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the selected rows over their parts and add them at rows and cols, or store them."""
    g, G = tl.program_id(0), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    j = tl.arange(0, BM)
    slot = g.to(tl.int64) * M * D
    dq += n * dq_n + h * dq_h
    dk += n * dk_n + h * dk_h
    grad = load(dq_rows + slot, j, D, j < M, D, BD) + summed(dq_parts, j, g, G, S, M, D, BD)
    at, valid = slots(rows, g, M, BM)
    if ADD:
        grad += load(dq, at, dq_l, valid, D, BD).to(tl.float32)
    store(dq, at, dq_l, valid, grad, D, BD)
    grad = load(dk_cols + slot, j, D, j < M, D, BD)
    at, valid = slots(cols, g, M, BM)
    if ADD:
        grad += load(dk, at, dk_l, valid, D, BD).to(tl.float32)
    store(dk, at, dk_l, valid, grad, D, BD)
