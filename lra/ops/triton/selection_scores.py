"""Selection scores of queries and keys in one launch that reads each of them once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .operands import run
from .primitives import VARYING, is_real, load


@triton.jit
def _score(
    x, mask, scores, i, ok, stride,
    D: tl.constexpr,
    BD: tl.constexpr,
    SCORE: tl.constexpr,
    CLASS: tl.constexpr,
):  # fmt: skip
    # embed reads the first entry of each token; the others sum all entries.
    if SCORE == "embed":
        tokens = load(x, i, stride, ok, 1, 16).to(tl.float32)
    else:
        tokens = load(x, i, stride, ok, D, BD).to(tl.float32)
        if SCORE == "abs":
            tokens = tl.abs(tokens)
    value = tl.sum(tokens, 1)

    # The class token is always selected, padding only if there are too few real tokens.
    if CLASS:
        value = tl.where(i == 0, float("inf"), value)
    real = is_real(mask, i, ok)
    value = tl.where(real, value, float("-inf"))
    tl.store(scores + i, value, mask=ok)


@triton.jit(do_not_specialize=VARYING)
def score_kernel(
    # Inputs, then output.
    a, b, mask,
    scores,
    # Strides: of examples, of heads, of positions.
    a_n, a_h, a_l,
    b_n, b_h, b_l,
    # Heads, length.
    H, L,
    D: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    SCORE: tl.constexpr,
    CLASS: tl.constexpr,
):  # fmt: skip
    """Compute scores (1 or 2,G,L) of the tokens of a (N,H,L,D), and of b unless it is None.

    Padding gets -inf and, with CLASS, a real token at position 0 gets +inf.
    """
    # One program: BN tokens of head g, head h of example n.
    g = tl.program_id(0)
    G = tl.num_programs(0)
    n = (g // H).to(tl.int64)
    h = (g % H).to(tl.int64)
    i = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = i < L
    example_mask = mask + n * L if mask is not None else None

    scores += g.to(tl.int64) * L
    a += n * a_n + h * a_h
    _score(a, example_mask, scores, i, inside, a_l, D, BD, SCORE, CLASS)
    if b is not None:
        b += n * b_n + h * b_h
        scores += G.to(tl.int64) * L
        _score(b, example_mask, scores, i, inside, b_l, D, BD, SCORE, CLASS)


def launch_scores(a: Tensor, b: Tensor | None, mask, score: str, class_token: bool, run=run) -> Tensor:
    """Launch the scores of one or two tensors (N,H,L,D): (1 or 2,N,H,L) in float32."""
    N, H, L, D = a.shape
    num_tensors = 1 if b is None else 2
    scores = a.new_empty(num_tensors, N, H, L, dtype=torch.float32)
    b_strides = (0, 0, 0) if b is None else b.stride()[:3]
    block = 128
    run(
        score_kernel, (N * H, -(-L // block)),
        a, b, mask,
        scores,
        *a.stride()[:3],
        *b_strides,
        H, L,
        D=D, BD=tiles.padded(D), BN=block,
        SCORE=score,
        CLASS=class_token,
        warps=4, stages=2,
    )  # fmt: skip
    return scores
