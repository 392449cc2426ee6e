"""The kernels of the backward pass: over queries, then over keys and values next to the inverse."""

import triton
import triton.language as tl

from .core import inverse_backward, summed
from .primitives import (
    VARYING,
    cast_like,
    dot,
    dot_halves,
    dot_wide,
    halves,
    is_real,
    load,
    probabilities,
    selected_positions,
    store,
)


@triton.jit(do_not_specialize=VARYING)
def c_backward_kernel(
    # Inputs.
    q, k, w,
    rows, cols, real,
    dout,
    # Outputs.
    dq, dw, dk,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    k_n, k_h, k_l,
    r_n, r_h,
    o_n, o_h, o_l,
    dq_n, dq_h, dq_l,
    # Heads, length, queries of a program, scale.
    H, L, chunk, scale, scale_log2,
    # True sizes, the same on chip, and queries at a time.
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr,
    # Options.
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    COPY: tl.constexpr,
    TURNED: tl.constexpr,
    # Gradients of this launch.
    DW: tl.constexpr,
    DQ: tl.constexpr,
    DK: tl.constexpr,
):  # fmt: skip
    """Compute dq of ``chunk`` queries, and their parts of dW (S,G,M,E) and of the gradient of k[cols] (S,G,M,D).

    dC = dŌ wᵀ, dS = C * (dC - rowsum(dC * C)), dq = scale dS k[cols], dW = Cᵀ dŌ, dk = scale dSᵀ q; dŌ is dout, with
    COPY zero in its selected rows. DW, DQ, DK: the gradients of this launch, since all at once may need too many
    registers. TURNED: compute C as (BM,BN), the layout that the sums over queries in dW and dk need and that divides
    many selected rows among warps; otherwise as (BN,BM), for which a softmax stays within one warp.
    """
    # One program: head g, head h of example n, and one part of the queries.
    g = tl.program_id(0)
    part = tl.program_id(1)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)

    # Selected keys and W: loaded once; padded keys get a bias of -inf.
    at, valid = selected_positions(cols, g, M, BM)
    k += n * k_n + h * k_h
    b = load(k, at, k_l, valid, D, BD)  # (BM,BD)
    if real is not None:
        real += n * r_n + h * r_h
    col_ok = is_real(real, at, valid)
    bias = tl.where(col_ok, 0.0, float("-inf"))
    j = tl.arange(0, BM)
    w += g.to(tl.int64) * M * E
    weighted_rv = load(w, j, E, valid, E, BE)  # (BM,BE)
    # A vector subtracted from every row of W leaves dS unchanged. Without the mean of its real rows W loses less to
    # rounding.
    if dout.dtype.element_ty != tl.float32:
        num_real = tl.maximum(tl.sum(col_ok.to(tl.float32), 0), 1.0)
        centre = tl.sum(tl.where(col_ok[:, None], weighted_rv, 0.0), 0) / num_real
        weighted_rv = cast_like(weighted_rv - centre[None, :], dout)
    q += n * q_n + h * q_h
    dout += n * o_n + h * o_h
    dq += n * dq_n + h * dq_h

    # Selected rows of the output are copies of R V: no gradient reaches C or W through them.
    if COPY:
        copied, _ = selected_positions(rows, g, M, BM)
        copied = tl.where(valid, copied, -1).to(tl.int32)

    dw_acc = tl.zeros((BM, BE), tl.float32)
    dk_acc = tl.zeros((BM, BD), tl.float32)
    begin = part * chunk
    end = tl.minimum(begin + chunk, L)
    for start in tl.range(begin, end, BN):
        i = start + tl.arange(0, BN)
        inside = i < end
        x = load(q, i, q_l, inside, D, BD)  # (BN,BD)
        if COPY:
            matches = (i[:, None] == copied[None, :]).to(tl.int32)  # (BN,BM)
            is_copied = tl.max(matches, 1)
            is_product = inside & (is_copied == 0)
        else:
            is_product = inside
        # dŌ: dout, zero in copied rows.
        y = load(dout, i, o_l, is_product, E, BE)  # (BN,BE)

        # Cᵀ again: softmax over the selected keys.
        if TURNED:
            s = dot(b, tl.trans(x), PRECISION) * scale_log2  # (BM,BN)
            s = s + bias[:, None]
            top = tl.max(s, 0)
            p = tl.exp2(s - top[None, :])
            inverse_total = 1.0 / tl.sum(p, 0)
            p = p * inverse_total[None, :]
        else:
            p = probabilities(x, b, bias, scale_log2, PRECISION)  # (BN,BM)
            p = tl.trans(p)  # (BM,BN)

        # dW = Cᵀ dŌ.
        if DW:
            dw_acc += dot_wide(p, y, dout, SPLIT, PRECISION)
        if DQ or DK:
            # dCᵀ = W dŌᵀ, and through the softmax dSᵀ.
            if TURNED:
                dp = dot(weighted_rv, tl.trans(y), PRECISION)  # (BM,BN)
            else:
                dp = dot(y, tl.trans(weighted_rv), PRECISION)  # (BN,BM)
                dp = tl.trans(dp)
            mean = tl.sum(p * dp, 0)
            ds = p * (dp - mean[None, :])  # (BM,BN)
            ds = cast_like(ds, dout)

            # dq = scale dS k[cols], dk = scale dSᵀ q.
            if DQ:
                grad = dot(tl.trans(ds), b, PRECISION)  # (BN,BD)
                store(dq, i, dq_l, inside, grad * scale, D, BD)
            if DK:
                dk_acc += dot(ds, x, PRECISION)

    # Store the sums of this part.
    index = part * tl.num_programs(0) + g
    slot = index.to(tl.int64) * M
    if DW:
        store(dw + slot * E, j, E, valid, dw_acc, E, BE)
    if DK:
        store(dk + slot * D, j, D, valid, dk_acc * scale, D, BD)


@triton.jit(do_not_specialize=VARYING)
def r_backward_kernel(
    # Inputs.
    q, selected_k, k, v,
    rows, cols, row_real, col_real, mask,
    lse, z, rv, drv, delta,
    dout, dw_parts, dk_parts,
    # Matrices of the inverse, then outputs.
    scratch,
    dk, dv, dq, dq_rows, dk_cols,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    kk_n, kk_h, kk_l,
    k_n, k_h, k_l,
    v_n, v_h, v_l,
    o_n, o_h, o_l,
    dk_n, dk_h, dk_l,
    dv_n, dv_h, dv_l,
    rr_n, rr_h,
    cr_n, cr_h,
    # Heads, length, parts of dW, keys of a program, scale.
    H, L, S, chunk, scale, scale_log2,
    # True sizes, the same on chip, and keys at a time.
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr,
    # Options.
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    COPY: tl.constexpr,
    # Inverse.
    STEPS: tl.constexpr,
    INNER: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    INVERSE: tl.constexpr,
    # Gradients of this launch.
    DV: tl.constexpr,
    DK: tl.constexpr,
    DQ: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of ``chunk`` keys, and their part of the gradient of q[rows] (S,G,M,D).

    d(R V) = zᵀ dW + dout[rows], dR = d(R V) vᵀ, dS = R * (dR - rowsum(d(R V) * R V)), dv = Rᵀ d(R V),
    dk = scale dSᵀ q[rows], dq = scale dS k, R from its log-sum-exp. If z is None, drv = d(R V) and
    delta = rowsum(drv * R V) are given instead of the S parts of dW. COPY: whether there is dout[rows]. DV, DK, DQ: the
    gradients of this launch. INVERSE: the first program of each head computes the gradients of the selected rows
    (G,M,D) through Z, dq_rows and, with the gradients through C, dk_cols.
    """
    # One program: head g, head h of example n, and one part of the keys.
    g = tl.program_id(0)
    part = tl.program_id(1)
    G = tl.num_programs(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)
    if INVERSE and part == 0:
        inverse_backward(
            q, selected_k, rows, cols, row_real, col_real,
            rv, dw_parts, dk_parts, scratch,
            dq_rows, dk_cols,
            q_n, q_h, q_l,
            kk_n, kk_h, kk_l,
            rr_n, rr_h,
            cr_n, cr_h,
            H, S, scale, scale_log2,
            STEPS, M, D, E, BM, BD, BE, INNER, SYMMETRIC,
        )  # fmt: skip
    else:
        part -= 1 if INVERSE else 0

        # Selected queries and their log-sum-exp; a query without a real key gets +inf, so its probabilities are 0.
        at, valid = selected_positions(rows, g, M, BM)
        q += n * q_n + h * q_h
        a = load(q, at, q_l, valid, D, BD)  # (BM,BD)
        j = tl.arange(0, BM)
        slot = g.to(tl.int64) * M
        log = tl.load(lse + slot + j, mask=valid, other=float("inf"))
        log = tl.where(log == float("-inf"), float("inf"), log)

        # d(R V) = Zᵀ dW (+ dout[rows]), and rowsum(d(R V) * R V).
        if z is None:
            grad_rv = load(drv + slot * E, j, E, valid, E, BE)
            mean = tl.load(delta + slot + j, mask=valid, other=0.0)
        else:
            # dWᵀ Z, a few rows of dW and Z at a time, because registers are scarce.
            transposed = tl.zeros((BE, BM), tl.float32)
            BK: tl.constexpr = min(BM, 32)
            for first in tl.range(0, BM, BK):
                inner = first + tl.arange(0, BK)
                dw = summed(dw_parts, inner, g, G, S, M, E, BE)  # (BK,BE)
                inv = load(z + slot * M, inner, M, inner < M, M, BM)  # (BK,BM)
                transposed += dot(tl.trans(dw), inv, INNER)
            # Transposed here, the matrix lies in shared memory, not in registers.
            grad_rv = tl.trans(transposed)  # (BM,BE)
            if COPY:
                dout += n * o_n + h * o_h
                grad_rv += load(dout, at, o_l, valid, E, BE)
            product = load(rv + slot * E, j, E, valid, E, BE)
            mean = tl.sum(grad_rv * product, 1)

        # Stream the keys and values.
        high, low = halves(grad_rv, dv)
        k += n * k_n + h * k_h
        v += n * v_n + h * v_h
        dk += n * dk_n + h * dk_h
        dv += n * dv_n + h * dv_h
        if mask is not None:
            mask += n * L
        acc = tl.zeros((BM, BD), tl.float32)
        begin = part * chunk
        end = tl.minimum(begin + chunk, L)
        for start in tl.range(begin, end, BN):
            i = start + tl.arange(0, BN)
            inside = i < end
            x = load(k, i, k_l, inside, D, BD)  # (BN,BD)
            y = load(v, i, v_l, inside, E, BE)  # (BN,BE)

            # R again, from its log-sum-exp.
            real = is_real(mask, i, inside)
            s = dot(a, tl.trans(x), PRECISION) * scale_log2  # (BM,BN)
            s = tl.where(real[None, :], s, float("-inf"))
            p = tl.exp2(s - log[:, None])

            # dv = Rᵀ d(R V).
            if DV:
                p_high, p_low = halves(p, dv)
                grad_v = dot_halves(tl.trans(p_high), high, low, SPLIT, PRECISION)
                if SPLIT:
                    grad_v += dot(tl.trans(p_low), high, PRECISION)
                store(dv, i, dv_l, inside, grad_v, E, BE)
            if DK or DQ:
                # dR = d(R V) vᵀ, and through the softmax dS.
                dp = dot(high, tl.trans(y), PRECISION)  # (BM,BN)
                if SPLIT:
                    dp += dot(low, tl.trans(y), PRECISION)
                centred = dp - mean[:, None]
                ds = p * centred

                # dk = scale dSᵀ q[rows], dq = scale dS k.
                if DK:
                    narrow_ds = cast_like(ds, dv)
                    grad = dot(tl.trans(narrow_ds), a, PRECISION)  # (BN,BD)
                    store(dk, i, dk_l, inside, grad * scale, D, BD)
                if DQ:
                    acc += dot_wide(ds, x, dv, SPLIT, PRECISION)

        # Store the sum of this part.
        if DQ:
            index = part * G + g
            slot = index.to(tl.int64) * M
            store(dq + slot * D, j, D, valid, acc * scale, D, BD)
