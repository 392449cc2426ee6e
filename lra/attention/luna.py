"""Luna, linear unified nested attention (Ma et al., NeurIPS 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Checked, Positive
from .base import Sizes


class Luna(Checked, nn.Module):
    """A whole pre-norm layer over tokens X (N,L,d) and a packed sequence P (N,rows,d) (section 3.1).

        1. Q = Attn(P, X, X)   pack the tokens into ``rows`` vectors
        2. Y = Attn(X, Q, Q)   unpack them
        3. X + Y, then the feed-forward layer; P + Q is the P of the next layer

    X and P stand for LN(X) and LN(P) in steps 1 and 2. Attn projects queries, keys and values and scales by √D; only Y
    has an output projection. Step 2 reads Q without its residual. O(L rows D) time.

    Args:
        sizes: its dropout acts on both residual branches.
        dim: d, which must be heads * head_dim.
        hidden: width of the feed-forward layer.
        first: whether this is the first layer, which learns P (normal with standard deviation d^-1/2 at the start).
        rows: length of the packed sequence.
        tie_kv: whether keys and values of an Attn are one projection.

    Raises:
        ValueError: heads * head_dim is not dim.
    """

    hole_free = True

    def __init__(
        self, sizes: Sizes, *, dim: int, hidden: int, first: bool = True, rows: Positive = 256, tie_kv: bool = True
    ):
        super().__init__()
        if sizes.heads * sizes.head_dim != dim:
            raise ValueError(f"head_dim must be {dim / sizes.heads:g}, dim / heads, with Luna, not {sizes.head_dim}")
        self.heads = sizes.heads
        self.start = nn.Parameter(torch.empty(rows, dim).normal_(std=dim**-0.5)) if first else None
        self.token_norm = nn.LayerNorm(dim)
        self.packed_norm = nn.LayerNorm(dim)
        self.mlp_norm = nn.LayerNorm(dim)
        # A context is keys and values, in one projection if they are tied.
        context_width = dim if tie_kv else 2 * dim
        self.pack_query = nn.Linear(dim, dim)
        self.unpack_query = nn.Linear(dim, dim)
        self.pack_context = nn.Linear(dim, context_width)
        self.unpack_context = nn.Linear(dim, context_width)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(sizes.dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(sizes.dropout),
            nn.Linear(hidden, dim),
            nn.Dropout(sizes.dropout),
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if memory is None:
            memory = self.dropout(self.start.expand(x.shape[0], -1, -1))  # (N,rows,d)
        tokens = self.token_norm(x)
        packed_queries = self.pack_query(self.packed_norm(memory))

        # 1. Pack.
        packed = self._attend(packed_queries, self.pack_context(tokens), mask)  # (N,rows,d)

        # 2. Unpack.
        unpacked = self.output(self._attend(self.unpack_query(tokens), self.unpack_context(packed)))  # (N,L,d)

        # 3. Residuals and the feed-forward layer.
        x = x + self.dropout(unpacked)
        return x + self.mlp(self.mlp_norm(x)), memory + self.dropout(packed)

    def _attend(self, query: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from query (N,i,d) to context (N,j,d or 2d), keys and values with mask (N,j): (N,i,d)."""
        keys, *values = context.split(query.shape[-1], -1)
        k = self._split_heads(keys)
        v = self._split_heads(values[0]) if values else k
        key_mask = None if mask is None else mask[:, None, None]
        mixed = F.scaled_dot_product_attention(self._split_heads(query), k, v, key_mask)
        return mixed.transpose(1, 2).flatten(2)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split (N,i,H·D) into heads (N,H,i,D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
