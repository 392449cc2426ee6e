"""DBA, dynamic bilinear low-rank attention (Qin et al. 2022, arXiv 2211.16368; IEEE TNNLS)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Checked, Positive
from .base import Sizes, as_attn_mask, merge_heads, split_heads


class DBA(Checked, nn.Module):
    """A whole pre-norm layer over tokens X (N,L,d) and latents P (N,p,d).

    The attention follows the released time-series code, whose layer is post-norm:

        1. Z = softmax(P W_1 (X W_2)ᵀ / √(r/H)) X W_3       compress the tokens into p latents
        2. O = LN(softmax(Z W_4 (Z W_5)ᵀ / √(r/H)) Z W_6)   attention among the latents
        3. Y = [softmax(X W_7,h) O_h]_h W_8                 expand: each token weighs the p latents in each head h
        4. X + Y, then the feed-forward layer

    Every softmax is per head: W_7,h gives p scores, O_h are the d/H columns of head h, and []_h joins the heads. In
    steps 1 and 3, X stands for LN(X); P is not normalised. Z becomes the P of the next layer. Queries and keys have
    size r over all H heads together (the bilinear form), values have size d, and every W has a bias. Padding gets no
    weight in step 1. Steps 1 and 3 take O(L p (r + d)) time, not counting the projections. In plain torch:
    ``lra/reference/latents.py``.

    At initialisation step 1 is nearly a mean over the tokens, so the p latents are almost equal: at L = 1,000 the rows
    of O differ by 2e-8 of their norm in the first layer. Step 3 then adds the same vector to every token, and the
    gradient of W_7 is rounding noise, or noise of the dropout.

    Args:
        sizes: its dropout acts on the softmaxes, on the P of the first layer, on both residual branches and on the
            hidden units.
        dim: d, which must be heads * head_dim.
        hidden: width of the feed-forward layer.
        first: whether this is the first layer, which learns P (initially normal with standard deviation d^-1/2).
        latents: p.
        width: r.

    Raises:
        ValueError: width is not a multiple of the number of heads, or heads * head_dim is not dim.
    """

    compactable = True

    def __init__(
        self, sizes: Sizes, *, dim: int, hidden: int, first: bool = True, latents: Positive = 16, width: Positive = 24
    ):
        super().__init__()
        if width % sizes.heads:
            raise ValueError(f"width must be a multiple of heads {sizes.heads}, not {width}")
        if sizes.heads * sizes.head_dim != dim:
            raise ValueError(f"head_dim must be {dim / sizes.heads:g}, dim / heads, with DBA, not {sizes.head_dim}")
        self.heads = sizes.heads
        self.widths = [width, dim]
        # P of the first layer.
        self.start: nn.Parameter | None = None
        if first:
            self.start = nn.Parameter(torch.empty(latents, dim).normal_(std=dim**-0.5))
        self.token_norm = nn.LayerNorm(dim)
        self.latent_norm = nn.LayerNorm(dim)
        self.mlp_norm = nn.LayerNorm(dim)
        # W_1 and [W_2 W_3], W_4 and [W_5 W_6], W_7, W_8.
        self.compress_query = nn.Linear(dim, width)
        self.compress_context = nn.Linear(dim, width + dim)
        self.latent_query = nn.Linear(dim, width)
        self.latent_context = nn.Linear(dim, width + dim)
        self.expand = nn.Linear(dim, sizes.heads * latents)
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
        memory: Float[Tensor, "N p d"] | None = None,
    ) -> tuple[Float[Tensor, "N L d"], Float[Tensor, "N p d"]]:
        # ``memory`` is P: the Z of the layer before, learned in the first layer.
        if memory is None:
            assert self.start is not None, "only the first layer learns the latents"
            learned = self.start.expand(len(x), -1, -1)  # (N,p,d)
            memory = self.dropout(learned)
        tokens = self.token_norm(x)  # LN(X)

        # 1. Compress.
        query = self.compress_query(memory)  # (N,p,r)
        context = self.compress_context(tokens)  # (N,L,r + d)
        z = self._attend(query, context, mask)  # (N,p,d)

        # 2. Attention among the latents.
        query = self.latent_query(z)  # (N,p,r)
        context = self.latent_context(z)  # (N,p,r + d)
        o = self._attend(query, context)  # (N,p,d)
        o = self.latent_norm(o)

        # 3. Expand.
        scores = split_heads(self.expand(tokens), self.heads)  # (N,H,L,p)
        weights = self.dropout(scores.softmax(-1))
        o_heads = split_heads(o, self.heads).to(weights.dtype)  # (N,H,p,d/H)
        y = weights @ o_heads  # (N,H,L,d/H)
        y = self.output(merge_heads(y))  # (N,L,d)

        # 4. Residuals and the feed-forward layer.
        x = x + self.dropout(y)
        x = x + self.mlp(self.mlp_norm(x))
        return x, z

    def _attend(
        self,
        query: Float[Tensor, "N i r"],
        context: Float[Tensor, "N j kv"],
        mask: Bool[Tensor, "N j"] | None = None,
    ) -> Float[Tensor, "N i d"]:
        """Attend from ``query`` to ``context``, which holds keys and values."""
        keys, values = context.split(self.widths, -1)
        q = split_heads(query, self.heads)  # (N,H,i,r/H)
        k = split_heads(keys, self.heads)  # (N,H,j,r/H)
        v = split_heads(values, self.heads)  # (N,H,j,d/H)
        dropout_p = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, as_attn_mask(mask), dropout_p=dropout_p)  # (N,H,i,d/H)
        return merge_heads(mixed)
