"""Parts of the kernels: gathered loads, matrix products, softmax, the largest column of a matrix.

M selected rows and columns, D key size, E value size; BM, BD, BE the same rounded up to powers of two from 16 on, which
dots require; BN rows of the sequence at a time. Rows and entries beyond the true sizes are loaded as zeros. G heads of
all examples, of which a program takes head g; S parts of the sequence.

A stride is named after its tensor and dimension, such as k_n, k_h and k_l: examples, heads, positions. kk stands for
selected_k, rr for row_real, cr for col_real, r for real, and o for out or, in the backward pass, dout.
"""

import triton
import triton.language as tl

# Sizes and strides that may differ between batches. If they were specialised, triton would compile again whenever
# one is 1 or a multiple of 16.
VARYING = ("H", "L", "S", "r_n", "r_h", "rr_n", "rr_h", "cr_n", "cr_h")
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def selected_positions(index, g, M: tl.constexpr, BM: tl.constexpr):
    """Positions of the selected rows of head g, from index (G,M) or 0 .. M-1 without one, and which of BM exist."""
    j = tl.arange(0, BM)
    valid = j < M
    if index is None:
        at = j
    else:
        slot = g.to(tl.int64) * M
        at = tl.load(index + slot + j, mask=valid, other=0)
    return at, valid


@triton.jit
def is_real(real, at, valid):
    """Whether positions ``at`` are valid and real; ``real``: bytes of one head or example, None if all are real."""
    if real is not None:
        byte = tl.load(real + at, mask=valid, other=0)
        valid = valid & (byte != 0)
    return valid


@triton.jit
def load(x, at, stride, ok, D: tl.constexpr, BD: tl.constexpr):
    """Load rows ``at`` of x as (rows, BD); as float32 if bfloat16 in the interpreter, which computes it as integers."""
    col = tl.arange(0, BD)
    mask = ok[:, None]
    if D < BD:
        mask = mask & (col[None, :] < D)
    address = x + at[:, None].to(tl.int64) * stride + col[None, :]
    rows = tl.load(address, mask=mask, other=0.0)
    if INTERPRETED and x.dtype.element_ty == tl.bfloat16:
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def store(x, at, stride, ok, rows, D: tl.constexpr, BD: tl.constexpr):
    """Store (rows, BD) at rows ``at`` of x, in its dtype."""
    col = tl.arange(0, BD)
    mask = ok[:, None]
    if D < BD:
        mask = mask & (col[None, :] < D)
    address = x + at[:, None].to(tl.int64) * stride + col[None, :]
    rows = cast_like(rows, x).to(x.dtype.element_ty)
    tl.store(address, rows, mask=mask)


@triton.jit
def drop_bits(x, DROP: tl.constexpr):
    """Round float32 x, ties to even, so that the lowest DROP bits of its mantissa are zero."""
    # Add just less than half of the last bit that remains, and one more if that bit is odd; then cut.
    bits = x.to(tl.int32, bitcast=True)
    is_odd = (bits >> DROP) & 1
    below_half: tl.constexpr = (1 << (DROP - 1)) - 1
    bits = bits + below_half + is_odd
    bits = (bits >> DROP) << DROP
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def cast_like(x, like):
    """Convert float32 x for a product with ``like``'s type; in the interpreter bfloat16 values remain float32."""
    x = drop_bits(x, 16) if INTERPRETED and like.dtype.element_ty == tl.bfloat16 else x.to(like.dtype.element_ty)
    return x


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """Compute a b in float32. In the interpreter only bf16x3 rounds float32 factors, to 16 significant bits."""
    if not INTERPRETED:
        s = tl.dot(a, b, input_precision=PRECISION)
    elif PRECISION == "bf16x3" and a.dtype == tl.float32:
        s = tl.dot(drop_bits(a, 8), drop_bits(b, 8), input_precision="ieee")
    else:
        s = tl.dot(a, b, input_precision="ieee")
    return s


@triton.jit
def halves(x, like):
    """Split float32 x into a sum of two of ``like``'s type, for factors whose rounding would dominate the error."""
    high = cast_like(x, like)
    low = cast_like(x - high.to(tl.float32), like)
    return high, low


@triton.jit
def dot_wide(x, y, like, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply float32 x by y of ``like``'s type: x as a sum of two numbers of that type with SPLIT, else as one."""
    high, low = halves(x, like)
    s = dot(high, y, PRECISION)
    if SPLIT:
        s += dot(low, y, PRECISION)
    return s


@triton.jit
def dot_halves(x, high, low, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply x by high + low, float32 split by ``halves``; without SPLIT by high alone."""
    s = dot(x, high, PRECISION)
    if SPLIT:
        s += dot(x, low, PRECISION)
    return s


@triton.jit
def softmax(s):
    """Compute the softmax of s, in units of log 2, over the last axis."""
    top = tl.max(s, 1)
    p = tl.exp2(s - top[:, None])
    inverse_total = 1.0 / tl.sum(p, 1)
    return p * inverse_total[:, None]


@triton.jit
def probabilities(x, keys, bias, scale_log2, PRECISION: tl.constexpr):
    """Compute softmax(scale x keysᵀ + bias) over the last axis; scale_log2 = scale log2(e), bias (BM,) is 0 or -inf."""
    s = dot(x, tl.trans(keys), PRECISION) * scale_log2
    return softmax(s + bias[None, :])


@triton.jit
def largest_column_sum(u):
    """Compute the largest column sum of u as (1,1), not a scalar, which triton 3.7 cannot place in tensor memory."""
    return tl.max(tl.sum(u, 0)[None, :], 1, keep_dims=True)


@triton.jit
def is_largest_column(u):
    """Whether each column (1,BM) of u is the one with the largest sum; of equal sums the first counts."""
    sums = tl.sum(u, 0)[None, :]
    largest = tl.max(sums, 1, keep_dims=True)
    j = tl.arange(0, u.shape[1])[None, :]
    # Columns with smaller sums get a number beyond all others.
    candidates = tl.where(sums == largest, j, u.shape[1])
    return j == tl.min(candidates, 1, keep_dims=True)
