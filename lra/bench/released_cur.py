"""CUR attention as released by its authors: the baseline for speed."""

from typing import Literal

import torch
from torch import Tensor

from ..attention.base import Attention, Sizes
from ..ops.selection import gather_tokens, scatter_tokens
from ..options import Range, Whole, require_range

Score = Literal["sum", "abs", "embed", "step", "random"]


class ReleasedCUR(Attention):
    """CURformer's released formulation (Francois et al. 2025): every factor is dense, U is taken from the softmaxed C.

    Positions are selected by a full sort of the scores (``sum``, ``abs``, ``embed``, ``random``) or at a fixed stride
    (``step``); the cubic iteration is written with identity matrices. As released, C is not masked and ``step`` ignores
    the mask. If at least ``count`` tokens are real, and for ``step`` if all are and count divides their number, it is
    the same function as ``lra.attention.cur.CUR`` with ``pairing=separate``; ``random`` draws other numbers.

    Args:
        count: number of selected queries and of selected keys.
        score: rule by which they are selected.
        steps: number of steps of the cubic iteration.
        copy_rv: whether selected rows of the output are rows of R V.
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
        require_range("count", count, Range(1, sizes.length), "length")
        self.count = count
        self.score = score
        self.steps = steps
        self.copy_rv = copy_rv
        self.torch_dropout = torch_dropout

    def forward(self, q, k, v, mask=None):
        q = q / q.shape[-1] ** 0.5

        # Selected queries and keys.
        rows = self._select(q, mask)  # (N,H,c)
        cols = rows if self.score == "step" else self._select(k, mask)  # (N,H,c)

        # C: all queries, selected keys. As released, it is not masked.
        c = (q @ gather_tokens(k, cols).mT).softmax(-1)  # (N,H,L,c)

        # R V: selected queries, all keys.
        scores = gather_tokens(q, rows) @ k.mT  # (N,H,c,L)
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~mask[:, None, None], lowest)
        rv = scores.softmax(-1) @ v  # (N,H,c,E)

        # U: the selected rows of C. The output is C U⁻¹ R V.
        u = gather_tokens(c, rows)  # (N,H,c,c)
        inverse = self._inverse(u).to(rv.dtype)
        out = c @ (inverse @ rv)  # (N,H,L,E)
        if self.copy_rv:
            out = scatter_tokens(out.to(rv.dtype), rows, rv)
        return out

    @torch.no_grad()
    def _select(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Select the positions (N,H,c) of x (N,H,L,D)."""
        N, H, L, _ = x.shape
        if self.score == "step":
            stride = L // self.count
            positions = torch.arange(self.count, device=x.device) * stride
            return positions.expand(N, H, -1)

        # One score per token; the highest ones are selected.
        if self.score == "sum":
            scores = x.sum(-1)
        elif self.score == "abs":
            scores = x.abs().sum(-1)
        elif self.score == "embed":
            scores = x[..., 0]
        else:
            scores = torch.rand(N, H, L, device=x.device)
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~mask[:, None], lowest)
        return scores.argsort(-1, descending=True)[..., : self.count]

    def _inverse(self, u: Tensor) -> Tensor:
        """The cubic iteration of Nystromformer, section 3.3, in float32 at least."""
        with torch.autocast(u.device.type, enabled=False):
            u = u if u.dtype == torch.float64 else u.float()
            eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
            largest_column = u.sum(-2).max(-1).values[..., None, None]
            z = u.mT / largest_column
            # One step: Z (13 I - U Z (15 I - U Z (7 I - U Z))) / 4.
            for _ in range(self.steps):
                uz = u @ z
                inner = 15 * eye - uz @ (7 * eye - uz)
                z = 0.25 * z @ (13 * eye - uz @ inner)
            return z
