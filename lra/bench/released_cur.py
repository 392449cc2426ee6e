"""CUR attention as released by its authors: the baseline for speed."""

from typing import Literal

import torch
from torch import Tensor

from ..attention.base import Attention, Sizes
from ..ops.selection import gather_tokens, scatter_tokens
from ..options import Range, Whole, in_range

Score = Literal["sum", "abs", "embed", "step", "random"]


class ReleasedCUR(Attention):
    """CURformer's released formulation (Francois et al. 2025): every factor is dense, U is taken from the softmaxed C.

    Positions are kept by a full sort of the scores (``sum``, ``abs``, ``embed``, ``random``) or at a fixed stride
    (``step``); the cubic iteration is written with identity matrices. As released, C is not masked and ``step`` ignores
    the mask. If at least ``count`` tokens are real, and for ``step`` if all are and count divides their number, it is
    the same function as ``lra.attention.cur.CUR`` with ``pairing=separate``.

    Args:
        count: rows and columns to keep.
        score: rule by which they are selected.
        steps: number of steps of the cubic iteration.
        copy_rv: whether kept rows of the output are those of RV.
        torch_dropout: whether a training step of the whole model uses torch's dropout, as released, instead of
            ``lra.model.dropout``, which is faster on a CPU. The mechanism itself has no dropout.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        count: int = 64,
        score: Score = "abs",
        steps: Whole = 4,
        copy_rv: bool = True,
        torch_dropout: bool = False,
    ):
        super().__init__(sizes)
        in_range("count", count, Range(1, sizes.length), "length")
        self.count, self.score, self.steps, self.copy_rv = count, score, steps, copy_rv
        self.torch_dropout = torch_dropout

    def forward(self, q, k, v, mask=None):
        q = q / q.shape[-1] ** 0.5
        rows = self._keep(q, mask)
        cols = rows if self.score == "step" else self._keep(k, mask)  # (N,H,c)
        c = (q @ gather_tokens(k, cols).mT).softmax(-1)  # (N,H,L,c)
        scores = gather_tokens(q, rows) @ k.mT  # (N,H,c,L)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
        rv = scores.softmax(-1) @ v
        out = c @ (self._inverse(gather_tokens(c, rows)).to(rv.dtype) @ rv)
        if self.copy_rv:
            out = scatter_tokens(out.to(rv.dtype), rows, rv)
        return out

    @torch.no_grad()
    def _keep(self, x: Tensor, mask: Tensor | None) -> Tensor:
        N, H, L, _ = x.shape
        if self.score == "step":
            return (torch.arange(self.count, device=x.device) * (L // self.count)).expand(N, H, -1)
        scores = {
            "sum": lambda: x.sum(-1),
            "abs": lambda: x.abs().sum(-1),
            "embed": lambda: x[..., 0],
            "random": lambda: torch.rand(N, H, L, device=x.device),
        }[self.score]()
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        return scores.argsort(-1, descending=True)[..., : self.count]

    def _inverse(self, u: Tensor) -> Tensor:
        """The cubic iteration of Nystromformer, section 3.3, in float32 at least."""
        with torch.autocast(u.device.type, enabled=False):
            u = u if u.dtype == torch.float64 else u.float()
            one = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
            z = u.mT / u.sum(-2).max(-1).values[..., None, None]
            for _ in range(self.steps):
                uz = u @ z
                z = 0.25 * z @ (13 * one - uz @ (15 * one - uz @ (7 * one - uz)))
            return z
