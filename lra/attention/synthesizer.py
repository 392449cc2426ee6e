"""Synthesizers (Tay et al., ICML 2021): attention weights that are not made by comparing tokens.

All of them take O(L²) time; ``Random`` takes O(L²) memory too. A row shorter than ``length`` uses the first L rows and
columns of the learned scores, and padded keys get no weight.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes


class Synthesizer(Mixer):
    """softmax(S) v with S (L,L) per head, from the tokens or from nothing but their positions.

    dot_product adds q kᵀ / √D to S (the paper's mixtures with vanilla attention). dropout acts on the weights.

    The official LRA configurations name Factorised without q kᵀ for Text and Random for Image and Pathfinder. Its
    training scripts hand neither the kind nor the switch to the encoder, whose defaults are Random with q kᵀ: what
    the released code runs is attn=synthesizer_random attn.dot_product=true.
    """

    drops = True

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim)
        width = sizes.heads * sizes.head_dim
        self.inputs = nn.Linear(dim, (3 if dot_product else 1) * width)
        self.output = nn.Linear(width, dim)

    def forward(self, x, mask=None):
        qk, v = self.project(x)
        mixed = self.mix(x, qk, v, None if mask is None else mask[:, None, None])  # (N,H,L,D)
        return self.output(mixed.transpose(1, 2).flatten(2).to(x.dtype))

    def attention_map(self, x, mask=None):
        qk, v = self.project(x)
        eye = torch.eye(x.shape[1], device=x.device, dtype=v.dtype).expand(*v.shape[:2], -1, -1)
        return self.mix(x, qk, eye, None if mask is None else mask[:, None, None])

    def project(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Scaled queries and keys, or nothing, and values, each (N,H,L,D)."""
        H, D = self.sizes.heads, self.sizes.head_dim
        *qk, v = (part.unflatten(-1, (H, D)).transpose(1, 2) for part in self.inputs(x).split(H * D, -1))
        return ([qk[0] * D**-0.5, qk[1]] if qk else []), v

    @abstractmethod
    def mix(self, x: Tensor, qk: list[Tensor], v: Tensor, keys: Tensor | None) -> Tensor:
        """x (N,L,d), qk of ``project``, v (N,H,L,E), keys (N,1,1,L) -> softmax(S + qkᵀ) v (N,H,L,E)."""


class Random(Synthesizer):
    """S is a free matrix (H,length,length), xavier-uniform per head (Random): length² numbers a head."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        self.table = nn.Parameter(xavier(sizes.heads, sizes.length, sizes.length))

    def mix(self, x, qk, v, keys):
        L = x.shape[1]
        return self._weigh(self.table[None, :, :L, :L], v, keys, *qk)

    @full_precision
    def _weigh(self, scores: Tensor, v: Tensor, keys: Tensor | None, *qk: Tensor) -> Tensor:
        if qk:
            scores = scores + qk[0] @ qk[1].mT
        if keys is not None:
            scores = scores.masked_fill(~keys, float("-inf"))
        weights = F.dropout(scores.softmax(-1), self.sizes.dropout, self.training)  # (N or 1,H,L,L)
        return torch.einsum("nhij,nhjd->nhid", weights, v)


class Product(Synthesizer):
    """S = a bᵀ with a, b (N or 1,H,L,r): dot-product attention whose keys are learned for each position.

    So torch's fused kernels compute it in O(L) memory; with dot_product, S + q kᵀ is ``[a q] [b k]ᵀ``.
    """

    @abstractmethod
    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def mix(self, x, qk, v, keys):
        a, b = (factor.expand(x.shape[0], -1, -1, -1).to(v.dtype) for factor in self.factors(x))  # (N,H,L,r)
        if qk:
            a, b = torch.cat([a, qk[0]], -1), torch.cat([b, qk[1]], -1)  # (N,H,L,r + D)
        size = v.shape[-1]
        width = max(a.shape[-1], size)  # the fused kernels want one width, and zeros add nothing
        a, b, v = (F.pad(t, (0, width - t.shape[-1])) for t in (a, b, v))
        dropout = self.sizes.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(a, b, v, keys, dropout, scale=1.0)[..., :size]


class Factorised(Product):
    """Factorized Random: S = A B with free A (H,length,rank) and B (H,rank,length), xavier-uniform."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False, rank: Positive = 32):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        self.rows, self.columns = (nn.Parameter(xavier(sizes.heads, sizes.length, rank)) for _ in range(2))  # A and Bᵀ

    def factors(self, x):
        return self.rows[None, :, : x.shape[1]], self.columns[None, :, : x.shape[1]]


class Dense(Product):
    """S_i = W₂ relu(W₁ x_i + b₁) + b₂ from the token's vector x_i, W₁ (D,d), W₂ (length,D) per head (Dense)."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        H, D, length = sizes.heads, sizes.head_dim, sizes.length
        self.hidden = nn.Linear(dim, H * D)
        self.scores = nn.Parameter(xavier(H, length, D))
        self.bias = nn.Parameter(torch.zeros(H, length, 1))

    def factors(self, x):
        hidden = self.hidden(x).relu().unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)  # (N,H,L,D)
        columns = torch.cat([self.scores, self.bias], -1)[None, :, : x.shape[1]]  # (1,H,L,D+1)
        return F.pad(hidden, (0, 1), value=1.0), columns


def xavier(heads: int, rows: int, columns: int) -> Tensor:
    bound = (6 / (rows + columns)) ** 0.5
    return torch.empty(heads, rows, columns).uniform_(-bound, bound)
