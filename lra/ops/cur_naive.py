"""CUR attention as its formula (CURformer: Francois et al., Machine Learning 114:139, 2025), to read and to test by.

``lra.ops.cur`` computes the same fast. Here every example and head is computed on its real tokens alone.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..options import Checked
from .pinv import cubic
from .scores import Weights, laplace
from .three_factor import Impl, Inverse

Score = Literal["sum", "abs", "embed", "step", "random", "farthest"]
Pairing = Literal["separate", "same_k", "same_q", "swapped"]


@dataclass(frozen=True, kw_only=True)
class CUROptions(Checked):
    """Options of CUR attention.

    Args:
        count: number m of kept queries and of kept keys, all of them if a row has fewer.
        score: importance of a token x (D,): ``sum`` of its entries; ``abs``, sum of their absolute values; ``embed``,
            its first entry; ``random``, a uniform number. Without scores: ``step``, tokens at equal distances;
            ``farthest``, repeatedly the token that is farthest from those already kept.
        pairing: tokens that are scored. ``separate``: queries for the kept queries, keys for the kept keys; ``same_k``
            and ``same_q``: keys or queries for both; ``swapped``: keys for the kept queries, queries for the kept keys.
        class_token: whether position 0 is always kept.
        pinv: pseudo-inverse, (..., m, m) -> (..., m, m).
        copy_rv: whether the outputs of kept queries are their exact ones, the rows of R v.
        weights: function f of the scores: ``softmax``, or ``laplace`` of MEGA.
        impl: implementation in ``lra.ops.cur``, see ``lra.ops.three_factor``.
    """

    count: int
    score: Score
    pairing: Pairing = "separate"
    class_token: bool = False
    pinv: Inverse = partial(cubic, steps=4)
    copy_rv: bool = True
    weights: Weights = "softmax"
    impl: Impl = "sdpa"

    def __post_init__(self):
        if self.weights != "softmax" and self.impl != "eager":
            raise ValueError(f"weights={self.weights} needs impl=eager, not {self.impl}")


def cur_naive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: CUROptions, draw: Tensor | None = None) -> Tensor:
    """Compute C · pinv(U) · R v with C = f(q k_Jᵀ), R = f(q_I kᵀ) and U = f(q_I k_Jᵀ), kept queries I, kept keys J.

    Args:
        q, k: (N,H,L,D).
        v: (N,H,L,E).
        mask: real tokens (N,L).
        options: see ``CUROptions``.
        draw: random numbers (2,H,L) of score=random, for queries and for keys.

    Returns:
        (N,H,L,E), zero at padded tokens.
    """
    out = torch.zeros_like(v)
    for n in range(q.shape[0]):
        real = mask[n].nonzero()[:, 0]  # positions of the real tokens
        for h in range(q.shape[1]):
            x, y, z = q[n, h, real], k[n, h, real], v[n, h, real]
            rows, cols = kept(x, y, real, options, None if draw is None else draw[:, h, real])
            o, rv = product(x, y, z, x[rows], y[cols], options)
            out[n, h, real] = o.index_copy(0, rows, rv) if options.copy_rv else o
    return out


def product(q: Tensor, k: Tensor, v: Tensor, q_rows: Tensor, k_cols: Tensor, options: CUROptions):
    """Compute C · pinv(U) · R v and R v of one head: q, k (L,D), v (L,E), q_rows, k_cols (m,D) -> (L,E), (m,E)."""
    softmax = options.weights == "softmax"
    f = lambda a, b: (a @ b.T / q.shape[1] ** 0.5).softmax(-1) if softmax else laplace(a @ b.T / len(k))
    C, U, R = f(q, k_cols), f(q_rows, k_cols), f(q_rows, k)
    return C @ (options.pinv(U) @ (R @ v)), R @ v


def kept(q: Tensor, k: Tensor, positions: Tensor, options: CUROptions, draw: Tensor | None):
    """Select the kept queries and keys of one head: q, k (L,D), positions (L,), draw (2,L) -> two indices (m,)."""
    count, score = min(options.count, len(q)), options.score
    if score == "step":
        return (torch.arange(count, device=q.device) * len(q) // count,) * 2
    for_rows, for_cols = {"separate": (0, 1), "same_k": (1, 1), "same_q": (0, 0), "swapped": (1, 0)}[options.pairing]

    def best(x: Tensor, side: int) -> Tensor:
        if score == "farthest":
            index = [0]
            while len(index) < count:
                apart = (x[:, None] - x[index]).square().sum(-1).amin(-1)
                index.append(int(apart.index_fill(0, torch.tensor(index, device=x.device), -1).argmax()))
            return torch.tensor(index, device=x.device)
        scores = draw[side] if score == "random" else {"sum": x.sum(1), "abs": x.abs().sum(1), "embed": x[:, 0]}[score]
        if options.class_token:
            scores = scores.masked_fill(positions == 0, float("inf"))
        return scores.topk(count).indices

    rows = best((q, k)[for_rows].detach(), 0)
    return rows, rows if for_rows == for_cols else best((q, k)[for_cols].detach(), 1)
