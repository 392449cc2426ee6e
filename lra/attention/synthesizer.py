"""Synthesizers (Tay et al., ICML 2021): attention weights that do not compare tokens.

All of them take O(L²) time; ``Random`` also takes O(L²) memory. A sequence shorter than ``length`` uses the first L
rows and columns of the learned scores, and padded keys get no weight.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.attention_maps import attention_weights, ensure_nonempty
from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes


class Synthesizer(Mixer):
    """softmax(S) v with one S (L,L) per head, a function of single tokens or of positions.

    The official LRA configurations name Factorised without q kᵀ for Text and Random for Image and Pathfinder. Its
    training scripts pass neither option to the encoder, whose defaults are Random with q kᵀ, so the released code runs
    attn=synthesizer_random attn.dot_product=true.

    Args:
        sizes: its dropout acts on the weights.
        dim: d.
        dot_product: whether q kᵀ / √D is added to S (the paper's mixtures with vanilla attention).
    """

    drops = True

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim)
        width = sizes.heads * sizes.head_dim
        self.inputs = nn.Linear(dim, (3 if dot_product else 1) * width)
        self.output = nn.Linear(width, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        qk, v = self.project(x)
        mixed = self.mix(x, qk, v, mask)  # (N,H,L,D)
        return self.output(mixed.transpose(1, 2).flatten(2).to(x.dtype))

    def attention_map(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        qk, v = self.project(x)
        eye = torch.eye(x.shape[1], device=x.device, dtype=v.dtype).expand(*v.shape[:2], -1, -1)
        return self.mix(x, qk, eye, mask)

    def project(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Project to [scaled queries, keys], or [] without dot_product, and to values, (N,H,L,D) each."""
        H = self.sizes.heads
        D = self.sizes.head_dim
        projections = self.inputs(x).split(H * D, -1)
        *qk, v = (part.unflatten(-1, (H, D)).transpose(1, 2) for part in projections)
        return ([qk[0] * D**-0.5, qk[1]] if qk else []), v

    @abstractmethod
    def mix(self, x: Tensor, qk: list[Tensor], v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute softmax(S + q kᵀ) v.

        Args:
            x: (N,L,d).
            qk: scaled queries and keys (N,H,L,D), or nothing.
            v: (N,H,L,E).
            mask: (N,L).

        Returns:
            (N,H,L,E).
        """


class Random(Synthesizer):
    """Random: S is a free matrix (H,length,length), Xavier-uniform at the start; length² parameters per head."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        self.table = nn.Parameter(xavier(sizes.heads, sizes.length, sizes.length))

    def mix(self, x: Tensor, qk: list[Tensor], v: Tensor, mask: Tensor | None) -> Tensor:
        L = x.shape[1]
        return self._weigh(self.table[None, :, :L, :L], v, ensure_nonempty(mask), *qk)

    @full_precision
    def _weigh(self, scores: Tensor, v: Tensor, mask: Tensor | None, *qk: Tensor) -> Tensor:
        if qk:
            scores = scores + qk[0] @ qk[1].mT
        weights = attention_weights(scores, None if mask is None else mask[:, None])  # (N or 1,H,L,L)
        weights = F.dropout(weights, self.sizes.dropout, self.training)
        return torch.einsum("nhij,nhjd->nhid", weights, v)


class Product(Synthesizer):
    """S = a bᵀ with a, b (N or 1,H,L,r): dot-product attention whose keys are learned for each position.

    Torch's fused kernels compute it in O(L) memory; with dot_product, S + q kᵀ is ``[a q] [b k]ᵀ``.
    """

    @abstractmethod
    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute a and b, (N or 1,H,L,r) each, of token vectors (N,L,d)."""

    def mix(self, x: Tensor, qk: list[Tensor], v: Tensor, mask: Tensor | None) -> Tensor:
        a, b = (factor.expand(x.shape[0], -1, -1, -1).to(v.dtype) for factor in self.factors(x))  # (N,H,L,r)
        if qk:
            a = torch.cat([a, qk[0]], -1)  # (N,H,L,r + D)
            b = torch.cat([b, qk[1]], -1)
        # The fused kernels need one width for all; zeros add nothing.
        value_dim = v.shape[-1]
        width = max(a.shape[-1], value_dim)
        a, b, v = (F.pad(t, (0, width - t.shape[-1])) for t in (a, b, v))
        key_mask = None if mask is None else mask[:, None, None]
        dropout = self.sizes.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(a, b, v, key_mask, dropout, scale=1.0)[..., :value_dim]


class Factorised(Product):
    """Factorized Random: S = A B with free A (H,length,rank) and B (H,rank,length), Xavier-uniform at the start."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False, rank: Positive = 32):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        # A and Bᵀ.
        self.rows = nn.Parameter(xavier(sizes.heads, sizes.length, rank))
        self.columns = nn.Parameter(xavier(sizes.heads, sizes.length, rank))

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        L = x.shape[1]
        return self.rows[None, :, :L], self.columns[None, :, :L]


class Dense(Product):
    """Dense: S_i = W₂ relu(W₁ x_i + b₁) + b₂ of the token vector x_i, W₁ (D,d) and W₂ (length,D) per head."""

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        H = sizes.heads
        D = sizes.head_dim
        self.hidden = nn.Linear(dim, H * D)
        self.scores = nn.Parameter(xavier(H, sizes.length, D))
        self.bias = nn.Parameter(torch.zeros(H, sizes.length, 1))

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x).relu().unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)  # (N,H,L,D)
        # A feature of ones carries the bias b₂.
        columns = torch.cat([self.scores, self.bias], -1)[None, :, : x.shape[1]]  # (1,H,L,D + 1)
        return F.pad(hidden, (0, 1), value=1.0), columns


def xavier(heads: int, rows: int, columns: int) -> Tensor:
    """Draw Xavier-uniform matrices (heads,rows,columns)."""
    bound = (6 / (rows + columns)) ** 0.5
    return torch.empty(heads, rows, columns).uniform_(-bound, bound)
