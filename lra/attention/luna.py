"""Luna, linear unified nested attention (Ma et al., NeurIPS 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Checked, Positive
from .base import Sizes


class Luna(Checked, nn.Module):
    """A whole pre-norm layer over the tokens X (N,L,d) and a packed sequence P (N,rows,d) (section 3.1).

        Q = Attn(P, X, X)   pack the tokens into ``rows`` vectors
        Y = Attn(X, Q, Q)   unpack them
        X + Y, then the feed-forward layer of the block; P + Q goes to the next layer as memory

    Attn projects queries, keys and values and scales by √D; only Y has an output projection, so that heads * head_dim
    has to be ``dim``. With ``tie_kv`` keys and values of an Attn are one projection. LayerNorm comes before, one for X
    and one for P; the packed Q that Y reads is taken before its residual. P is learned, normal with standard deviation
    d^-1/2, if ``first``; a later layer is handed one.

    O(L rows D) time. Raises ValueError if heads * head_dim is not dim.
    """

    hole_free = True

    def __init__(
        self, sizes: Sizes, *, dim: int, hidden: int, first: bool = True, rows: Positive = 256, tie_kv: bool = True
    ):
        super().__init__()
        if sizes.heads * sizes.head_dim != dim:
            raise ValueError(f"head_dim must be {dim / sizes.heads:g}, dim / heads, with Luna, not {sizes.head_dim}")
        self.heads, dropout = sizes.heads, sizes.dropout
        self.start = nn.Parameter(torch.empty(rows, dim).normal_(std=dim**-0.5)) if first else None
        self.token_norm, self.packed_norm, self.mlp_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.pack_query, self.unpack_query = nn.Linear(dim, dim), nn.Linear(dim, dim)
        context = dim if tie_kv else 2 * dim
        self.pack_context, self.unpack_context = nn.Linear(dim, context), nn.Linear(dim, context)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if memory is None:
            memory = self.dropout(self.start.expand(x.shape[0], -1, -1))  # (N,rows,d)
        tokens, packed = self.token_norm(x), self.packed_norm(memory)
        packed = self._attend(self.pack_query(packed), self.pack_context(tokens), mask)  # (N,rows,d)
        unpacked = self.output(self._attend(self.unpack_query(tokens), self.unpack_context(packed)))  # (N,L,d)
        x = x + self.dropout(unpacked)
        return x + self.mlp(self.mlp_norm(x)), memory + self.dropout(packed)

    def _attend(self, query: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """query (N,i,d), context (N,j,d or 2d) of keys and values, mask (N,j) -> (N,i,d)."""
        q, *kv = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N,H,i or j,D)
            for part in (query, *context.split(query.shape[-1], -1))
        )
        mixed = F.scaled_dot_product_attention(q, kv[0], kv[-1], None if mask is None else mask[:, None, None])
        return mixed.transpose(1, 2).flatten(2)
