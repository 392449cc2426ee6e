"""PSF attention, a product of sparse factors with Chord links (Khalitov et al., Neural Networks 2022)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import full_precision
from ..ops.segments import real_first
from ..options import Positive
from .base import Mixer, Sizes

Ring = Literal["real", "row"]


class PSF(Mixer):
    """W_M ... W_1 g(x), the numbers of W_m in row i being f_m(x_i) and its columns i, i+1, i+2, i+4, ..., i+2^(K-2).

    g: MLP d -> value_hidden -> channels, f_m: MLP d -> hidden -> K, both with GELU. No softmax, heads or normalisation.
    factors: M, null for ceil(log2 length). links: K, ``code`` for ceil(log2 length) + 1 (largest offset half the
    length), ``paper`` for ceil(log2 length) (a quarter). residuals: g(x) is added after every factor. dropout: on g(x).
    channels: null for d. project: if channels differ from d, a linear map back to d; without it the result is
    (N,L,channels), which the published model of one plain block hands to its head (block=plain).

    ring: what the links wrap around. ``real``: the real tokens of each example in their order, token r of n_real being
    linked to token (r + offset) mod n_real, so that no padded position is read and the graph is a full Chord ring
    however a row is padded. ``row``: all positions of the padded row, padding taking part and the mask ignored, as
    published.

    O(L M K channels) time and O(L M (K + channels)) memory.
    """

    drops = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        factors: Positive | None = None,
        links: int | Literal["code", "paper"] = "code",
        hidden: Positive = 16,
        value_hidden: Positive = 64,
        channels: Positive | None = None,
        residuals: bool = False,
        project: bool = True,
        ring: Ring = "real",
    ):
        super().__init__(sizes, dim=dim)
        log = max((sizes.length - 1).bit_length(), 1)  # ceil(log2 length)
        if not (links in ("code", "paper") or (isinstance(links, int) and links >= 1)):
            raise ValueError(f"links must be code, paper or a number of at least 1, not {links!r}")
        K = {"code": log + 1, "paper": log}.get(links, links)
        channels = channels or dim
        self.residuals, self.ring, self.hole_free = residuals, ring, ring == "real"
        self.register_buffer("offsets", torch.tensor([0, *(2**j for j in range(K - 1))]), persistent=False)
        self.values = nn.Sequential(_mlp(dim, value_hidden, channels), nn.Dropout(sizes.dropout))
        self.weights = nn.ModuleList(_mlp(dim, hidden, K) for _ in range(factors or log))
        self.width = dim if project else channels
        self.output = nn.Linear(channels, dim) if project and channels != dim else nn.Identity()

    def forward(self, x, mask=None):
        return self.output(self.mix(x, self.values(x), mask).to(x.dtype))

    def mix(self, x: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """W_M ... W_1 v: x (N,L,d), v (N,L,C) -> (N,L,C)."""
        weights = [f(x) for f in self.weights]  # M times (N,L,K)
        columns = self.columns(x.shape[0], x.shape[1], mask if self.ring == "real" else None)
        return chain(v, columns, *weights, residuals=self.residuals)

    def attention_map(self, x, mask=None):
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device).expand(x.shape[0], -1, -1)
        return self.mix(x, eye, mask)[:, None]

    def columns(self, N: int, L: int, mask: Tensor | None) -> Tensor:
        """The positions that each row is linked to, int64 (N,L,K)."""
        position = torch.arange(L, device=self.offsets.device)
        if mask is None:
            return ((position[:, None] + self.offsets) % L).expand(N, -1, -1)
        position = real_first(mask)  # (N,L): of token r
        token = (mask.cumsum(-1) - 1)[..., None] + self.offsets  # (N,L,K)
        token = token % mask.sum(-1).clamp(min=1)[:, None, None]
        return position.gather(1, token.flatten(1)).view_as(token)


@full_precision
def chain(v: Tensor, columns: Tensor, *weights: Tensor, residuals: bool) -> Tensor:
    """W_M ... W_1 v: v (N,L,C), columns and the M weights (N,L,K) -> (N,L,C); residuals adds v after every factor.

    A row of W_m v is a weighted bag of rows of v, which torch sums without keeping the K gathered copies of v.
    """
    N, L, _ = v.shape
    bags = (columns + L * torch.arange(N, device=v.device)[:, None, None]).flatten(0, 1)  # (N L,K)
    first = rows = v.flatten(0, 1)
    for w in weights:
        rows = F.embedding_bag(bags, rows, mode="sum", per_sample_weights=w.flatten(0, 1))
        rows = rows + first if residuals else rows
    return rows.view_as(v)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
