"""Selection scores of queries and keys in one launch that reads each of them once."""

import triton
import triton.language as tl

from .primitives import VARYING, is_real, load


@triton.jit
def _score(x, mask, score, i, ok, stride, D: tl.constexpr, BD: tl.constexpr, SCORE: tl.constexpr, CLASS: tl.constexpr):
    if SCORE == "embed":
        value = tl.sum(load(x, i, stride, ok, 1, 16).to(tl.float32), 1)
    else:
        rows = load(x, i, stride, ok, D, BD).to(tl.float32)
        value = tl.sum(tl.abs(rows) if SCORE == "abs" else rows, 1)
    if CLASS:
        value = tl.where(i == 0, float("inf"), value)
    value = tl.where(is_real(mask, i, ok), value, float("-inf"))
    tl.store(score + i, value, mask=ok)


@triton.jit(do_not_specialize=VARYING)
def score_kernel(
    a, b, mask, scores, a_n, a_h, a_l, b_n, b_h, b_l, H, L,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, SCORE: tl.constexpr, CLASS: tl.constexpr,
):  # fmt: skip
    """Compute scores (1 or 2,G,L) of the rows of a (N,H,L,D), and of b unless it is None; -inf for padded rows."""
    g, G = tl.program_id(0), tl.num_programs(0)
    n, h = (g // H).to(tl.int64), (g % H).to(tl.int64)
    i = tl.program_id(1) * BN + tl.arange(0, BN)
    byte = mask + n * L if mask is not None else None
    scores += g.to(tl.int64) * L
    _score(a + n * a_n + h * a_h, byte, scores, i, i < L, a_l, D, BD, SCORE, CLASS)
    if b is not None:
        _score(b + n * b_n + h * b_h, byte, scores + G.to(tl.int64) * L, i, i < L, b_l, D, BD, SCORE, CLASS)
