"""Which rows (queries) and columns (keys) CUR attention keeps: score x pairing -> indices; and segments to average.

No gradient flows through a selection. Kept positions are distinct and real tokens always come before padded ones.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from . import triton as kernels
from .options import one_of
from .pinv import to_unit
from .varlen import VarlenLayout

Score = Literal["sum", "abs", "embed", "step", "random", "farthest"]
Pairing = Literal["separate", "same_k", "same_q", "swapped"]
Resample = Literal["train", "always"]
SCORES, PAIRINGS = get_args(Score), get_args(Pairing)


class Select(nn.Module):
    """Selection rules of CURformer (Francois et al. 2025, sections 4 and 6).

    score, the importance of a row x (D,): ``sum`` of its entries, sum of their ``abs``olute values, its first entry
    (``embed``), a uniform ``random`` number; ``step`` takes every (n_real / c)-th real token instead, ``farthest`` one
    after the other the row that is farthest from those it has.
    pairing: ``separate`` scores queries for rows and keys for columns, ``same_k`` and ``same_q`` use one set for both,
    ``swapped`` scores keys for rows and queries for columns.
    class_token: position 0 is always kept, unless it is padding.
    resample: ``train`` draws anew at every call while training and keeps one draw in evaluation, the same for every
    example; ``always`` draws anew in evaluation too, as published.
    fused: ``sum``, ``abs`` and ``embed`` in one launch over queries and keys, in float32.
    """

    def __init__(
        self,
        *,
        score: Score,
        pairing: Pairing = "separate",
        class_token: bool = False,
        resample: Resample = "train",
        heads: int | None = None,
        length: int | None = None,
        fused: bool = False,
    ):
        super().__init__()
        one_of("score", score, Score)
        one_of("pairing", pairing, Pairing)
        one_of("resample", resample, Resample)
        self.score, self.pairing, self.class_token, self.resample = score, pairing, class_token, resample
        self.fused = fused and score in ("sum", "abs", "embed")
        if score == "random":  # the draw used in evaluation: one number for each side, head and position
            self.register_buffer("draw", torch.rand(2, heads, length))

    @torch.no_grad()
    def forward(self, q: Tensor, k: Tensor, count: int, mask: Tensor | VarlenLayout | None) -> tuple[Tensor, Tensor]:
        """q, k (N,H,L,D), mask (N,L) -> rows, cols, each int64 (N,H,c) with c = min(count, L).

        With ``VarlenLayout`` q and k are packed (1,H,T,D), the result counts among the T, and no row is shorter than
        count.
        """
        sources = {"separate": (q, k), "same_k": (k, k), "same_q": (q, q), "swapped": (k, q)}[self.pairing]
        count = min(count, q.shape[2])
        if self.score == "step":
            if isinstance(mask, VarlenLayout):
                kept = mask.starts[:, None] + torch.arange(count, device=q.device) * mask.real[:, None] // count
            else:
                kept = every(q.shape[0], q.shape[2], count, mask, q.device)
            kept = kept[:, None].expand(-1, q.shape[1], -1)
            return kept, kept
        same = sources[0] is sources[1]
        if self.fused:
            scores = kernels.row_scores(
                sources[0], None if same else sources[1], mask, score=self.score, class_token=self.class_token
            )
            kept = scores.topk(count, sorted=False).indices  # (1 or 2,N,H,c)
            return kept[0], kept[-1]
        if same:
            kept = self._top(sources[0], 0, count, mask)
            return kept, kept
        return self._top(sources[0], 0, count, mask), self._top(sources[1], 1, count, mask)

    def _top(self, x: Tensor, side: int, count: int, mask: Tensor | VarlenLayout | None) -> Tensor:
        if self.score == "farthest":
            return farthest(x, count, mask)
        if isinstance(mask, VarlenLayout):
            scores = self._scores(x, side, mask.positions)
            if self.class_token:
                scores = scores.masked_fill(mask.positions == 0, float("inf"))
            return mask.top(scores, count)
        scores = self._scores(x, side, slice(x.shape[2]))
        if self.class_token:
            scores[..., 0] = float("inf")
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        return scores.topk(count, sorted=False).indices

    def _scores(self, x: Tensor, side: int, positions: Tensor | slice) -> Tensor:
        N, H, L, _ = x.shape
        match self.score:
            case "sum":
                return x.sum(-1)
            case "abs":
                return x.abs().sum(-1)
            case "embed":
                return x[..., 0].clone()
            case "random" if self.training or self.resample == "always":
                return torch.rand(N, H, L, device=x.device)
            case "random":
                return self.draw[side, :, positions].repeat(N, 1, 1)


def every(N: int, L: int, count: int, mask: Tensor | None, device) -> Tensor:
    """Position floor(i n_real / c) among the real tokens, i = 0 .. c-1 -> (N, c).

    With fewer real tokens than c all of them are kept, then padded ones.
    """
    i = torch.arange(count, device=device)
    if mask is None:
        return (i * L // count).expand(N, -1)
    real = mask.sum(-1, keepdim=True)  # (N,1)
    rank = torch.where(real >= count, i * real // count, i)
    return real_first(mask).gather(-1, rank)


def farthest(x: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Farthest-point traversal (Gonzalez 1985): x (N,H,L,D) -> int64 (N,H,count), in the order they were taken.

    The first is the first real token. No real token is then farther from a kept one than twice what the best choice
    would leave. O(L count D), count steps one after the other.
    """
    N, H, _, D = x.shape
    x = (x if x.dtype == torch.float64 else x.float()).flatten(0, 1)  # (N·H,L,D)
    if mask is not None:
        mask = mask.repeat_interleave(H, 0)
        x = x.masked_fill(~mask[..., None], 0)
    x = x * to_unit(x)
    across, squared = x.mT.contiguous(), x.square().sum(-1)
    apart = torch.full_like(squared, float("inf"))  # to the nearest kept one; padding comes after, kept ones last
    at = torch.zeros(N * H, 1, dtype=torch.int64, device=x.device)
    if mask is not None:
        apart.masked_fill_(~mask, torch.finfo(x.dtype).min)
        at = mask.to(torch.uint8).argmax(-1, keepdim=True)
    kept = [at]
    for _ in range(count - 1):
        apart.scatter_(1, at, float("-inf"))
        point = x.gather(1, at[..., None].expand(-1, -1, D))  # (N·H,1,D)
        new = torch.baddbmm((squared + squared.gather(1, at))[:, None], point, across, alpha=-2)[:, 0]
        at = torch.minimum(apart, new, out=apart).argmax(-1, keepdim=True)
        kept.append(at)
    return torch.cat(kept, -1).view(N, H, count)


def gather_kept(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (N,H,L,D), or of a mask x (N,L), at index (N,H,c)."""
    if x.dim() == 2:
        return x[:, None].expand(-1, index.shape[1], -1).gather(2, index)
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))


def no_row_empty(mask: Tensor | None) -> Tensor | None:
    """mask (N,L) with all tokens of an example real if none is: its rows are read by nobody, and must not be NaN, as a
    softmax over nothing is, because a gradient of zero times NaN is NaN."""
    return None if mask is None else mask | ~mask.any(-1, keepdim=True)


def real_first(mask: Tensor) -> Tensor:
    """Positions in order, those of real tokens before those of padding: (N,L) -> int64 (N,L)."""
    return (~mask).to(torch.uint8).argsort(dim=-1, stable=True)


def segment_means(mask: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The matrix that takes means over consecutive segments of the real tokens, and which of its rows have any.

    Token r of n_real lies in segment floor(r c / n_real), c = min(count, n_real): mask (N,L) -> (N,count,L), (N,count).
    """
    total = mask.sum(-1, keepdim=True)  # (N,1)
    used = total.clamp(max=count)
    segment = (mask.cumsum(-1) - 1) * used // total.clamp(min=1)  # (N,L)
    number = torch.arange(count, device=mask.device)
    member = ((segment[:, None] == number[:, None]) & mask[:, None]).to(dtype)
    return member / member.sum(-1, keepdim=True).clamp(min=1), number < used
