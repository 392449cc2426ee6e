"""The steps of one program for one head: sums over parts of the sequence, U, Z, their gradients, the final scatter."""

import triton
import triton.language as tl

from . import core_classic, core_symmetric
from .primitives import VARYING, dot, is_real, load, selected_positions, softmax, store


@triton.jit
def combined(rv, lse, j, valid, g, G, S, M: tl.constexpr, E: tl.constexpr, BE: tl.constexpr):
    """Combine the S parts of rows ``j`` of R V, of head g, and of their base-2 log-sum-exp."""
    top = tl.full((j.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((j.shape[0],), tl.float32)
    acc = tl.zeros((j.shape[0], BE), tl.float32)
    for part in range(S):
        index = part * G + g
        slot = index.to(tl.int64) * M
        part_lse = tl.load(lse + slot + j, mask=valid, other=float("-inf"))
        part_rv = load(rv + slot * E, j, E, valid, E, BE)

        # Online softmax: rescale what has been summed, then add this part. Shift 0 avoids inf - inf.
        new = tl.maximum(top, part_lse)
        shift = tl.where(new == float("-inf"), 0.0, new)
        decay = tl.exp2(top - shift)
        weight = tl.exp2(part_lse - shift)
        total = total * decay + weight
        weighted = part_rv * weight[:, None]
        acc = acc * decay[:, None] + weighted
        top = new

    # A query without any real key keeps 0 and a log-sum-exp of -inf.
    total = tl.where(total > 0, total, 1.0)
    product = acc / total[:, None]
    log = top + tl.log2(total)
    return product, log


@triton.jit
def summed(x, j, g, G, S, M: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Sum the S parts of x (S,G,M,D) in order, rows ``j`` of head g."""
    acc = tl.zeros((j.shape[0], BD), tl.float32)
    for part in range(S):
        index = part * G + g
        slot = index.to(tl.int64) * M
        acc += load(x + slot * D, j, D, j < M, D, BD)
    return acc


@triton.jit
def inner_matrix(
    # Inputs, and which head of which example.
    q, k,
    rows, cols, row_real, col_real,
    g, n, h,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    k_n, k_h, k_l,
    rr_n, rr_h,
    cr_n, cr_h,
    scale_log2,
    M: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute U = softmax(scale q[rows] k[cols]ᵀ) of one head over the real columns, zero in other rows: (BM,BM)."""
    row, row_exists = selected_positions(rows, g, M, BM)
    col, col_exists = selected_positions(cols, g, M, BM)
    q += n * q_n + h * q_h
    k += n * k_n + h * k_h
    BK: tl.constexpr = min(BD, 32)

    # Scores, a few features at a time, because registers are scarce.
    s = tl.zeros((BM, BM), tl.float32)
    for first in tl.static_range(0, BD, BK):
        a = load(q + first, row, q_l, row_exists, D - first, BK)  # (BM,BK)
        b = load(k + first, col, k_l, col_exists, D - first, BK)  # (BM,BK)
        s += dot(a, tl.trans(b), PRECISION)

    # Softmax over the real columns.
    if col_real is not None:
        col_real += n * cr_n + h * cr_h
    col_ok = is_real(col_real, col, col_exists)
    bias = tl.where(col_ok, 0.0, float("-inf"))
    scores = s * scale_log2
    u = softmax(scores + bias[None, :])

    # Zero in the rows of padding.
    if row_real is not None:
        row_real += n * rr_n + h * rr_h
    row_ok = is_real(row_real, row, row_exists)
    return tl.where(row_ok[:, None], u, 0.0)


@triton.jit(do_not_specialize=VARYING)
def inverse(
    # Inputs, then output.
    q, k,
    rows, cols, row_real, col_real,
    z,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    k_n, k_h, k_l,
    rr_n, rr_h,
    cr_n, cr_h,
    # Heads, scale.
    H, scale_log2,
    STEPS: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
    INNER: tl.constexpr,
    SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Store Z (G,M,M) of one head: a part of ``rv_kernel``, or a separate launch."""
    g = tl.program_id(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)
    u = inner_matrix(
        q, k,
        rows, cols, row_real, col_real,
        g, n, h,
        q_n, q_h, q_l,
        k_n, k_h, k_l,
        rr_n, rr_h,
        cr_n, cr_h,
        scale_log2,
        M, D, BM, BD, INNER,
    )  # fmt: skip
    if SYMMETRIC:
        inv = core_symmetric.cubic(u, None, STEPS, BM, INNER)
    else:
        inv = core_classic.cubic(u, None, STEPS, BM, INNER)
    j = tl.arange(0, BM)
    z += g.to(tl.int64) * M * M
    store(z, j, M, j < M, inv, M, BM)


@triton.jit(do_not_specialize=VARYING)
def inverse_backward(
    # Inputs.
    q, k,
    rows, cols, row_real, col_real,
    rv, dw_parts, dk_parts,
    # Matrices of the steps, then outputs.
    scratch,
    dq_rows, dk_cols,
    # Strides: of examples, of heads, of positions.
    q_n, q_h, q_l,
    k_n, k_h, k_l,
    rr_n, rr_h,
    cr_n, cr_h,
    # Heads, parts of dW and dKc, scale.
    H, S, scale, scale_log2,
    STEPS: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    INNER: tl.constexpr,
    SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Store dq_rows and dk_cols (G,M,D) of one head: a part of ``r_backward_kernel``, or a separate launch.

    Both are gradients through U; the S parts of dKc, through C, are added to dk_cols. The steps are run again; scratch
    (G,``tiles.num_scratch_matrices``,BM,BM) holds their matrices, which are loaded for each product, since registers do
    not hold all of a step. A barrier between two such loads stops the compiler from merging them.
    """
    g = tl.program_id(0)
    G = tl.num_programs(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)

    # U and the steps again; their matrices stay in scratch.
    u = inner_matrix(
        q, k,
        rows, cols, row_real, col_real,
        g, n, h,
        q_n, q_h, q_l,
        k_n, k_h, k_l,
        rr_n, rr_h,
        cr_n, cr_h,
        scale_log2,
        M, D, BM, BD, INNER,
    )  # fmt: skip
    j = tl.arange(0, BM)
    # Pointers to the entries of this head's first matrix in scratch; ``num_scratch_matrices`` follow each other.
    at = j[:, None] * BM + j[None, :]
    slot = g.to(tl.int64) * M
    if SYMMETRIC:
        at += scratch + g.to(tl.int64) * (4 + 4 * STEPS) * BM * BM
        core_symmetric.cubic(u, at, STEPS, BM, INNER)
    else:
        at += scratch + g.to(tl.int64) * (4 + STEPS) * BM * BM
        core_classic.cubic(u, at, STEPS, BM, INNER)

    # dZ = dW (R V)ᵀ, and through the steps dU.
    exists = j < M
    dw = summed(dw_parts, j, g, G, S, M, E, BE)  # (BM,BE)
    product = load(rv + slot * E, j, E, exists, E, BE)  # (BM,BE)
    if SYMMETRIC:
        # Split R V into the mean of its rows and the rest. The rest gives ``grad``, the mean gives a rᵀ, where
        # a = dW mean and r is 1 for each of the M rows.
        rv_mean = tl.sum(product, 0) / M
        product -= tl.where(exists[:, None], rv_mean[None, :], 0.0)
        grad = dot(dw, tl.trans(product), INNER)  # (BM,BM)
        a = tl.sum(dw * rv_mean[None, :], 1)
        r = exists.to(tl.float32)
        u, du = core_symmetric.backward(grad, a, r, at, STEPS, BM, INNER)
    else:
        grad = dot(dw, tl.trans(product), INNER)  # (BM,BM)
        u, du = core_classic.backward(grad, at, STEPS, BM, INNER)

    # Through the softmax: scale dSu. Both products below need the factor.
    mean = tl.sum(du * u, 1)
    centred = du - mean[:, None]
    ds = u * centred * scale

    # Gradients of the selected queries, and of the selected keys with their parts through C.
    col, col_exists = selected_positions(cols, g, M, BM)
    k += n * k_n + h * k_h
    selected_k = load(k, col, k_l, col_exists, D, BD)  # (BM,BD)
    row, row_exists = selected_positions(rows, g, M, BM)
    q += n * q_n + h * q_h
    selected_q = load(q, row, q_l, row_exists, D, BD)  # (BM,BD)
    dq = dot(ds, selected_k.to(tl.float32), INNER)
    store(dq_rows + slot * D, j, D, exists, dq, D, BD)
    dk = summed(dk_parts, j, g, G, S, M, D, BD)
    dk = dk + dot(tl.trans(ds), selected_q.to(tl.float32), INNER)
    store(dk_cols + slot * D, j, D, exists, dk, D, BD)


@triton.jit(do_not_specialize=VARYING)
def scatter_kernel(
    # Inputs, then outputs.
    rows, cols,
    dq_parts, dq_rows, dk_cols,
    dq, dk,
    # Strides: of examples, of heads, of positions.
    dq_n, dq_h, dq_l,
    dk_n, dk_h, dk_l,
    # Heads, parts of dq.
    H, S,
    M: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the selected queries and keys to dq and dk at rows and cols.

    Without ADD store them: dq and dk are then the gradients of landmarks.
    """
    # One program: head g, head h of example n.
    g = tl.program_id(0)
    G = tl.num_programs(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)
    j = tl.arange(0, BM)
    exists = j < M
    slot = g.to(tl.int64) * M * D
    dq += n * dq_n + h * dq_h
    dk += n * dk_n + h * dk_h

    # Selected queries: the gradient through the inverse, then the parts through R.
    grad = load(dq_rows + slot, j, D, exists, D, BD)
    grad = grad + summed(dq_parts, j, g, G, S, M, D, BD)
    at, valid = selected_positions(rows, g, M, BM)
    if ADD:
        grad += load(dq, at, dq_l, valid, D, BD).to(tl.float32)
    store(dq, at, dq_l, valid, grad, D, BD)

    # Selected keys: the gradients through the inverse and through C.
    grad = load(dk_cols + slot, j, D, exists, D, BD)
    at, valid = selected_positions(cols, g, M, BM)
    if ADD:
        grad += load(dk, at, dk_l, valid, D, BD).to(tl.float32)
    store(dk, at, dk_l, valid, grad, D, BD)
