"""The kernels of the forward pass: R V over keys and values, next to the inverse Z; C W over queries, W = Z R V."""

import triton
import triton.language as tl

from .core import combined, inverse
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
def rv_kernel(
    # Inputs.
    q, selected_k, k, v,
    rows, cols, row_real, col_real, mask,
    # Outputs.
    rv, lse, z,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    kk_n, kk_h, kk_l,
    k_n, k_h, k_l,
    v_n, v_h, v_l,
    rr_n, rr_h,
    cr_n, cr_h,
    # Heads, length, keys of a program, scale.
    H, L, chunk, scale_log2,
    # True sizes, the same on chip, and keys at a time.
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr,
    # Precision of the streaming products.
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    # Inverse.
    STEPS: tl.constexpr,
    INNER: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    INVERSE: tl.constexpr,
):  # fmt: skip
    """Compute softmax(scale q[rows] kᵀ) v over ``chunk`` keys: rv (S,G,M,E), and its base-2 log-sum-exp (S,G,M).

    INVERSE: the first program of each head computes z (G,M,M), for selected keys selected_k[cols].
    """
    # One program: head g, head h of example n, and one part of the keys.
    g = tl.program_id(0)
    part = tl.program_id(1)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)
    if INVERSE and part == 0:
        inverse(
            q, selected_k, rows, cols, row_real, col_real,
            z,
            q_n, q_h, q_l,
            kk_n, kk_h, kk_l,
            rr_n, rr_h,
            cr_n, cr_h,
            H, scale_log2,
            STEPS, M, D, BM, BD, INNER, SYMMETRIC,
        )  # fmt: skip
    else:
        part -= 1 if INVERSE else 0

        # Selected queries: loaded once.
        at, valid = selected_positions(rows, g, M, BM)
        q += n * q_n + h * q_h
        a = load(q, at, q_l, valid, D, BD)  # (BM,BD)
        k += n * k_n + h * k_h
        v += n * v_n + h * v_h

        if mask is not None:
            mask += n * L

        # Online softmax: running maximum, sum of the exponentials, and weighted sum of the values.
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BE), tl.float32)
        begin = part * chunk
        end = tl.minimum(begin + chunk, L)
        for start in tl.range(begin, end, BN):
            i = start + tl.arange(0, BN)
            inside = i < end
            x = load(k, i, k_l, inside, D, BD)  # (BN,BD)
            y = load(v, i, v_l, inside, E, BE)  # (BN,BE)

            # Scores in units of log 2; padding gets -inf.
            real = is_real(mask, i, inside)
            s = dot(a, tl.trans(x), PRECISION) * scale_log2  # (BM,BN)
            s = tl.where(real[None, :], s, float("-inf"))

            # Shift by the new maximum; a query that has only seen padding keeps shift 0, which avoids inf - inf.
            block_top = tl.max(s, 1)
            new = tl.maximum(top, block_top)
            shift = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(s - shift[:, None])

            # Rescale what has been summed so far.
            decay = tl.exp2(top - shift)
            total = total * decay + tl.sum(p, 1)
            rescaled = acc * decay[:, None]
            acc = rescaled + dot_wide(p, y, v, SPLIT, PRECISION)
            top = new

        # Normalise; without any real key the sum is 0 and the output is 0.
        total = tl.where(total > 0, total, 1.0)
        index = part * tl.num_programs(0) + g
        slot = index.to(tl.int64) * M
        j = tl.arange(0, BM)
        product = acc / total[:, None]
        store(rv + slot * E, j, E, valid, product, E, BE)
        log = top + tl.log2(total)
        tl.store(lse + slot + j, log, mask=valid)


@triton.jit(do_not_specialize=VARYING)
def out_kernel(
    # Inputs. Unless z is None, the first program of each head stores rv, lse and w.
    q, k, z,
    rv_parts, lse_parts,
    rv, lse, w,
    rows, cols, real,
    # Output.
    out,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    k_n, k_h, k_l,
    r_n, r_h,
    o_n, o_h, o_l,
    # Heads, length, parts of R V, queries of a program, scale.
    H, L, S, chunk, scale_log2,
    # True sizes, the same on chip, and queries at a time.
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BN: tl.constexpr,
    # Options.
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    INNER: tl.constexpr,
    COPY: tl.constexpr,
):  # fmt: skip
    """Compute softmax(scale q k[cols]ᵀ) w for ``chunk`` queries; with COPY the selected rows are rows of R V.

    Each program combines the S parts of R V and computes w = z R V (G,M,E); the first one of a head stores R V, its
    log-sum-exp and w. If z is None, rv and w are given.
    """
    # One program: head g, head h of example n, and one part of the queries.
    g = tl.program_id(0)
    part = tl.program_id(1)
    G = tl.num_programs(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)

    # Selected keys: loaded once; padded ones get a bias of -inf.
    at, valid = selected_positions(cols, g, M, BM)
    k += n * k_n + h * k_h
    b = load(k, at, k_l, valid, D, BD)  # (BM,BD)
    if real is not None:
        real += n * r_n + h * r_h
    col_ok = is_real(real, at, valid)
    bias = tl.where(col_ok, 0.0, float("-inf"))

    # W = Z (R V), a few columns of Z and rows of R V at a time, because registers are scarce.
    j = tl.arange(0, BM)
    slot = g.to(tl.int64) * M
    if z is None:
        weighted_rv = load(w + slot * E, j, E, valid, E, BE)
    else:
        weighted_rv = tl.zeros((BM, BE), tl.float32)
        BK: tl.constexpr = min(BM, 32)
        for first in tl.range(0, BM, BK):
            inner = first + tl.arange(0, BK)
            exists = inner < M
            product, log = combined(rv_parts, lse_parts, inner, exists, g, G, S, M, E, BE)  # (BK,BE), (BK,)
            inside = valid[:, None] & exists[None, :]
            address = z + (slot + j[:, None]) * M + inner[None, :]
            inv = tl.load(address, mask=inside, other=0.0)  # (BM,BK)
            weighted_rv += dot(inv, product, INNER)
            # The backward pass needs R V and its log-sum-exp.
            if part == 0:
                tl.store(lse + slot + inner, log, mask=exists)
                store(rv + slot * E, inner, E, exists, product, E, BE)
        if part == 0:
            store(w + slot * E, j, E, valid, weighted_rv, E, BE)

    # Stream the queries: out = C W.
    high, low = halves(weighted_rv, out)
    q += n * q_n + h * q_h
    out += n * o_n + h * o_h
    begin = part * chunk
    end = tl.minimum(begin + chunk, L)
    for start in tl.range(begin, end, BN):
        i = start + tl.arange(0, BN)
        inside = i < end
        x = load(q, i, q_l, inside, D, BD)  # (BN,BD)
        p = probabilities(x, b, bias, scale_log2, PRECISION)  # (BN,BM)
        p = cast_like(p, out)
        y = dot_halves(p, high, low, SPLIT, PRECISION)  # (BN,BE)
        store(out, i, o_l, inside, y, E, BE)

    # Overwrite the selected rows of this part by rows of R V, once all threads have written the rows of C W.
    if COPY:
        tl.debug_barrier()
        to, _ = selected_positions(rows, g, M, BM)
        in_part = valid & (to >= begin) & (to < end)
        if z is None:
            exact = load(rv + slot * E, j, E, in_part, E, BE)
        else:
            exact, _ = combined(rv_parts, lse_parts, j, in_part, g, G, S, M, E, BE)
        store(out, to, o_l, in_part, exact, E, BE)
