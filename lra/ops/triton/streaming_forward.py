"""The launches of the forward pass: R V over keys and values, next to the inverse Z; C W over queries, W = Z R V."""

import triton
import triton.language as tl

from .core import combined, inverse
from .primitives import VARYING, dot, dot_halves, dot_wide, halves, is_real, load, narrow, probabilities, slots, store


@triton.jit(do_not_specialize=VARYING)
def rv_kernel(
    q, kept_k, k, v, rows, cols, row_real, col_real, mask, rv, lse, z,
    q_n, q_h, q_l, kk_n, kk_h, kk_l, k_n, k_h, k_l, v_n, v_h, v_l, rr_n, rr_h, cr_n, cr_h, H, L, chunk, scale2,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
    STEPS: tl.constexpr, INNER: tl.constexpr, SYMMETRIC: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Compute softmax(scale q[rows] kᵀ) v over ``chunk`` keys: rv (S,G,M,E); base-2 log-sum-exp (S,G,M).

    INVERSE: the first program of each head computes z (G,M,M), for selected keys kept_k[cols].
    """
    g, part = tl.program_id(0), tl.program_id(1)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    if INVERSE and part == 0:
        inverse(
            q, kept_k, rows, cols, row_real, col_real, z,
            q_n, q_h, q_l, kk_n, kk_h, kk_l, rr_n, rr_h, cr_n, cr_h, H, scale2,
            STEPS, M, D, BM, BD, INNER, SYMMETRIC,
        )  # fmt: skip
    else:
        part -= 1 if INVERSE else 0
        at, valid = slots(rows, g, M, BM)
        a = load(q + n * q_n + h * q_h, at, q_l, valid, D, BD)
        k += n * k_n + h * k_h
        v += n * v_n + h * v_h
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BE), tl.float32)
        end = tl.minimum(part * chunk + chunk, L)
        for start in tl.range(part * chunk, end, BN):
            i = start + tl.arange(0, BN)
            inside = i < end
            x = load(k, i, k_l, inside, D, BD)
            y = load(v, i, v_l, inside, E, BE)
            real = is_real(mask + n * L if mask is not None else None, i, inside)
            s = tl.where(real[None, :], dot(a, tl.trans(x), PRECISION) * scale2, float("-inf"))
            new = tl.maximum(top, tl.max(s, 1))
            shift = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(s - shift[:, None])
            decay = tl.exp2(top - shift)
            total = total * decay + tl.sum(p, 1)
            acc = acc * decay[:, None] + dot_wide(p, y, v, SPLIT, PRECISION)
            top = new
        some = total > 0
        slot = (part * tl.num_programs(0) + g).to(tl.int64) * M
        j = tl.arange(0, BM)
        store(rv + slot * E, j, E, valid, acc / tl.where(some, total, 1.0)[:, None], E, BE)
        tl.store(lse + slot + j, top + tl.log2(tl.where(some, total, 1.0)), mask=valid)


@triton.jit(do_not_specialize=VARYING)
def out_kernel(
    q, k, z, rv_parts, lse_parts, rv, lse, w, rows, cols, real, out,
    q_n, q_h, q_l, k_n, k_h, k_l, r_n, r_h, o_n, o_h, o_l, H, L, S, chunk, scale2,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr, INNER: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Compute softmax(scale q k[cols]ᵀ) w for ``chunk`` queries; with COPY the selected rows are those of R V.

    Each program combines the S parts of R V and computes w = z R V (G,M,E); the first one of a head stores R V, its
    log-sum-exp and w. If z is None, these are given.
    """
    g, part, G = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    at, valid = slots(cols, g, M, BM)
    b = load(k + n * k_n + h * k_h, at, k_l, valid, D, BD)
    bias = tl.where(is_real(real + n * r_n + h * r_h if real is not None else None, at, valid), 0.0, float("-inf"))
    j = tl.arange(0, BM)
    slot = g.to(tl.int64) * M
    if z is None:
        weights = load(w + slot * E, j, E, valid, E, BE)
    else:
        weights = tl.zeros((BM, BE), tl.float32)
        BK: tl.constexpr = min(BM, 32)
        for first in tl.range(0, BM, BK):  # few factors at a time, since registers are short
            some = first + tl.arange(0, BK)
            product, log = combined(rv_parts, lse_parts, some, some < M, g, G, S, M, E, BE)
            inside = valid[:, None] & (some < M)[None, :]
            inv = tl.load(z + (slot + j[:, None]) * M + some[None, :], mask=inside, other=0.0)
            weights += dot(inv, product, INNER)
            if part == 0:
                tl.store(lse + slot + some, log, mask=some < M)
                store(rv + slot * E, some, E, some < M, product, E, BE)
        if part == 0:
            store(w + slot * E, j, E, valid, weights, E, BE)
    high, low = halves(weights, out)
    q += n * q_n + h * q_h
    out += n * o_n + h * o_h
    begin = part * chunk
    end = tl.minimum(begin + chunk, L)
    for start in tl.range(begin, end, BN):
        i = start + tl.arange(0, BN)
        x = load(q, i, q_l, i < end, D, BD)
        p = probabilities(x, b, bias, scale2, PRECISION)
        store(out, i, o_l, i < end, dot_halves(narrow(p, out), high, low, SPLIT, PRECISION), E, BE)
    if COPY:
        tl.debug_barrier()  # the exact rows overwrite rows that other threads of this program have written
        to, _ = slots(rows, g, M, BM)
        mine = valid & (to >= begin) & (to < end)
        if z is None:
            exact = load(rv + slot * E, j, E, mine, E, BE)
        else:
            exact, _ = combined(rv_parts, lse_parts, j, mine, g, G, S, M, E, BE)
        store(out, to, o_l, mine, exact, E, BE)
