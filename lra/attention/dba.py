"""DBA, dynamic bilinear low-rank attention (Qin et al. 2022, arXiv 2211.16368; IEEE TNNLS)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Checked, Positive
from .base import Sizes


class DBA(Checked, nn.Module):
    """A whole pre-norm layer over the tokens X (N,L,d) and latents P (N,p,d), after the released time-series code.

        Z = softmax(P W_1 (X W_2)ᵀ / √(r/H)) X W_3       compress the tokens into p latents
        O = LN(softmax(Z W_4 (Z W_5)ᵀ / √(r/H)) Z W_6)   attention among them
        Y = softmax(X W_7) O W_8                         expand: each token weighs the latents of each head
        X + Y, then the feed-forward layer of the block; Z goes to the next layer as its P

    Queries and keys are r wide over all H heads (the bilinear form), values d; every W has a bias. LayerNorm of X comes
    before, of P nowhere. P is learned, normal with standard deviation d^-1/2, if ``first``; a later layer is handed
    one. Padding gets no weight where tokens are compressed. O(L p (r + d)) time.

    Args:
        sizes: its dropout is that of the softmaxes, of P and of what the halves of the layer add.
        dim: d, which is heads * head_dim.
        hidden: width of the feed-forward layer.
        latents: p.
        width: r.

    Raises:
        ValueError: width is no multiple of the heads, or heads * head_dim is not dim.
    """

    hole_free = True

    def __init__(
        self, sizes: Sizes, *, dim: int, hidden: int, first: bool = True, latents: Positive = 16, width: Positive = 24
    ):
        super().__init__()
        if width % sizes.heads:
            raise ValueError(f"width must be a multiple of heads {sizes.heads}, not {width}")
        if sizes.heads * sizes.head_dim != dim:
            raise ValueError(f"head_dim must be {dim / sizes.heads:g}, dim / heads, with DBA, not {sizes.head_dim}")
        self.heads, self.widths, dropout = sizes.heads, [width, dim], sizes.dropout
        self.start = nn.Parameter(torch.empty(latents, dim).normal_(std=dim**-0.5)) if first else None
        self.token_norm, self.latent_norm, self.mlp_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.compress_query, self.compress_context = nn.Linear(dim, width), nn.Linear(dim, width + dim)
        self.latent_query, self.latent_context = nn.Linear(dim, width), nn.Linear(dim, width + dim)
        self.expand = nn.Linear(dim, sizes.heads * latents)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if memory is None:
            memory = self.dropout(self.start.expand(len(x), -1, -1))  # (N,p,d)
        tokens = self.token_norm(x)
        packed = self._attend(self.compress_query(memory), self.compress_context(tokens), mask)  # (N,p,d)
        mixed = self._attend(self.latent_query(packed), self.latent_context(packed))
        weights = self.dropout(self._split(self.expand(tokens)).softmax(-1))  # (N,H,L,p)
        expanded = weights @ self._split(self.latent_norm(mixed)).to(weights.dtype)  # (N,H,L,d/H)
        x = x + self.dropout(self.output(expanded.transpose(1, 2).flatten(2)))
        return x + self.mlp(self.mlp_norm(x)), packed

    def _attend(self, query: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """query (N,i,r), context (N,j,r+d) of keys and values, mask (N,j) -> (N,i,d)."""
        keys, values = context.split(self.widths, -1)
        mixed = F.scaled_dot_product_attention(
            *(self._split(part) for part in (query, keys, values)),
            None if mask is None else mask[:, None, None],
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        """(N,i,H·w) -> (N,H,i,w)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
