"""Luna, linear unified nested attention (Ma et al., NeurIPS 2021)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Checked, Positive
from .base import Sizes, as_attn_mask, merge_heads, split_heads


class Luna(Checked, nn.Module):
    """A whole pre-norm layer over tokens X (N,L,d) and a packed sequence P (N,rows,d) (section 3.1).

        1. P' = Attn(P, X, X)    pack the tokens into ``rows`` vectors
        2. Y = Attn(X, P', P')   unpack them
        3. X + Y, then the feed-forward layer; P + P' is the P of the next layer

    X and P stand for LN(X) and LN(P) in steps 1 and 2. Attn projects queries, keys and values and divides the scores by
    √D; only Y has an output projection. Step 2 reads P' without its residual. Both steps take O(L rows d) time without
    the projections. In plain torch: ``lra/reference/latents.py``.

    Args:
        sizes: its dropout acts on the P of the first layer, on the P' that is added to P, on both residual branches and
            on the hidden units.
        dim: d, which must be heads * head_dim.
        hidden: width of the feed-forward layer.
        first: whether this is the first layer, which learns P (initially normal with standard deviation d^-1/2).
        rows: length of the packed sequence.
        tie_kv: whether keys and values of an Attn are one projection.

    Raises:
        ValueError: heads * head_dim is not dim.
    """

    compactable = True

    def __init__(
        self, sizes: Sizes, *, dim: int, hidden: int, first: bool = True, rows: Positive = 256, tie_kv: bool = True
    ):
        super().__init__()
        if sizes.heads * sizes.head_dim != dim:
            raise ValueError(f"head_dim must be {dim / sizes.heads:g}, dim / heads, with Luna, not {sizes.head_dim}")
        self.heads = sizes.heads
        # P of the first layer.
        self.start: nn.Parameter | None = None
        if first:
            self.start = nn.Parameter(torch.empty(rows, dim).normal_(std=dim**-0.5))
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

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Float[Tensor, "N rows d"] | None = None,
    ) -> tuple[Float[Tensor, "N L d"], Float[Tensor, "N rows d"]]:
        """Compute the layer.

        Args:
            x: X.
            mask: real tokens.
            memory: P of the layer before; None for the first layer.

        Returns:
            X and P for the next layer.
        """
        if memory is None:
            assert self.start is not None, "only the first layer learns P"
            start = self.start.expand(len(x), -1, -1)  # (N,rows,d)
            memory = self.dropout(start)
        # LN(X) and LN(P).
        tokens = self.token_norm(x)  # (N,L,d)
        packed = self.packed_norm(memory)  # (N,rows,d)

        # 1. Pack.
        query = self.pack_query(packed)
        context = self.pack_context(tokens)
        packed_tokens = self._attend(query, context, mask)  # P', (N,rows,d)

        # 2. Unpack.
        query = self.unpack_query(tokens)
        context = self.unpack_context(packed_tokens)
        mixed = self._attend(query, context)  # (N,L,d)
        y = self.output(mixed)

        # 3. Residuals and the feed-forward layer.
        x = x + self.dropout(y)
        x = x + self.mlp(self.mlp_norm(x))
        return x, memory + self.dropout(packed_tokens)

    def _attend(
        self,
        query: Float[Tensor, "N i d"],
        context: Float[Tensor, "N j kv"],
        mask: Bool[Tensor, "N j"] | None = None,
    ) -> Float[Tensor, "N i d"]:
        """Attend from ``query`` to ``context``, which holds keys and values, or keys that are the values too."""
        is_tied = context.shape[-1] == query.shape[-1]
        keys, values = (context, context) if is_tied else context.chunk(2, -1)
        q = split_heads(query, self.heads)  # (N,H,i,D)
        k = split_heads(keys, self.heads)  # (N,H,j,D)
        v = split_heads(values, self.heads)
        mixed = F.scaled_dot_product_attention(q, k, v, as_attn_mask(mask))  # (N,H,i,D)
        return merge_heads(mixed)
