"""Synthesizers (Tay et al., ICML 2021): attention weights that do not compare tokens.

All of them take O(L²) time; ``Random``, and on a CPU all of them with dropout, also take O(L²) memory. A sequence
shorter than ``length`` uses the first L rows and columns of the learned scores, and padded keys get no weight.
The output of a sequence without real tokens is finite, but differs between the classes. In plain torch:
``lra/reference/synthesizer.py``.
"""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.attention_maps import attention_weights, ensure_nonempty
from ..ops.precision import full_precision
from ..options import Positive
from .base import Mixer, Sizes, as_attn_mask, merge_heads, split_heads


class Synthesizer(Mixer):
    """softmax(S) v with one S (L,L) per head, a function of single tokens or of positions.

    The encoder of the official LRA code is Random with q kᵀ by default. The configurations of Image and Pathfinder name
    Random too. The configuration of Text names Factorised without q kᵀ, but its training script does not pass these
    options to the encoder. So on every task the released code runs attn=synthesizer_random attn.dot_product=true.

    Args:
        sizes: its dropout acts on the weights.
        dim: d.
        dot_product: whether q kᵀ / √D is added to S (the paper's mixtures with vanilla attention, without learned
            weights of the two).
    """

    has_dropout = True

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim)
        width = sizes.heads * sizes.head_dim
        # Values, and with dot_product queries and keys.
        num_projections = 3 if dot_product else 1
        self.inputs = nn.Linear(dim, num_projections * width)
        self.output = nn.Linear(width, dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        q, k, v = self.project(x)
        mixed = self.mix(x, q, k, v, mask)  # (N,H,L,D)
        merged = merge_heads(mixed)  # (N,L,H D)
        return self.output(merged.to(x.dtype))

    def attention_map(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L L"]:
        # With the unit vectors as values the output is the map.
        q, k, v = self.project(x)
        N, H, L, _ = v.shape
        eye = torch.eye(L, device=x.device, dtype=v.dtype)
        eye = eye.expand(N, H, -1, -1)
        return self.mix(x, q, k, eye, mask)

    def project(
        self,
        x: Float[Tensor, "N L d"],
    ) -> tuple[Float[Tensor, "N H L D"] | None, Float[Tensor, "N H L D"] | None, Float[Tensor, "N H L D"]]:
        """Project to queries, divided by √D, to keys, both None without dot_product, and to values."""
        H = self.sizes.heads
        D = self.sizes.head_dim
        projections = self.inputs(x).split(H * D, -1)  # (N,L,H D) each
        by_head = [split_heads(part, H) for part in projections]
        if len(by_head) == 1:
            return None, None, by_head[0]
        q, k, v = by_head
        return q * D**-0.5, k, v

    @abstractmethod
    def mix(
        self,
        x: Float[Tensor, "N L d"],
        q: Float[Tensor, "N H L D"] | None,
        k: Float[Tensor, "N H L D"] | None,
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        """Compute softmax(S + q kᵀ) v.

        Args:
            x: token vectors.
            q, k: queries, divided by √D, and keys; None without dot_product.
            v: values.
            mask: real tokens.
        """


class Random(Synthesizer):
    """Random: S is a free matrix (H,length,length), Xavier-uniform at the start; length² parameters per head.

    O(L² E) time per head.
    """

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        self.table = nn.Parameter(xavier(sizes.heads, sizes.length, sizes.length))

    def mix(
        self,
        x: Float[Tensor, "N L d"],
        q: Float[Tensor, "N H L D"] | None,
        k: Float[Tensor, "N H L D"] | None,
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        L = x.shape[1]
        scores = self.table[None, :, :L, :L]  # (1,H,L,L)
        return self._weigh(scores, q, k, v, ensure_nonempty(mask))

    @full_precision
    def _weigh(
        self,
        scores: Float[Tensor, "1 H L L"],
        q: Float[Tensor, "N H L D"] | None,
        k: Float[Tensor, "N H L D"] | None,
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        if q is not None and k is not None:
            scores = scores + q @ k.mT
        key_mask = None if mask is None else mask[:, None]
        weights = attention_weights(scores, key_mask)  # (N or 1,H,L,L)
        if self.training and self.sizes.dropout:
            # Without a mask and q kᵀ all examples share the weights, but not the dropout.
            weights = weights.expand(len(v), -1, -1, -1)  # (N,H,L,L)
        weights = F.dropout(weights, self.sizes.dropout, self.training)
        return torch.einsum("nhij,nhjd->nhid", weights, v)


class Product(Synthesizer):
    """S = a bᵀ with a, b (N or 1,H,L,r): dot-product attention whose keys are learned for each position.

    Torch's fused kernels compute it in O(L) memory; with dot_product, S + q kᵀ is ``[a q] [b k]ᵀ``.
    """

    @abstractmethod
    def factors(
        self,
        x: Float[Tensor, "N L d"],
    ) -> tuple[Float[Tensor, "#N H L r"], Float[Tensor, "#N H L r"]]:
        """Compute a and b."""

    def mix(
        self,
        x: Float[Tensor, "N L d"],
        q: Float[Tensor, "N H L D"] | None,
        k: Float[Tensor, "N H L D"] | None,
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        N = x.shape[0]
        a, b = self.factors(x)
        a = a.expand(N, -1, -1, -1)  # (N,H,L,r)
        b = b.expand(N, -1, -1, -1)  # (N,H,L,r)
        a = a.to(v.dtype)
        b = b.to(v.dtype)
        if q is not None and k is not None:
            a = torch.cat([a, q], -1)  # (N,H,L,r + D)
            b = torch.cat([b, k], -1)

        # The fused kernels need one width for all, on a GPU a multiple of 8; zeros add nothing.
        rank = a.shape[-1]
        E = v.shape[-1]
        width = math.ceil(max(rank, E) / 8) * 8
        a = F.pad(a, (0, width - rank))
        b = F.pad(b, (0, width - rank))
        v = F.pad(v, (0, width - E))

        attn_mask = as_attn_mask(mask)
        dropout_p = self.sizes.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(a, b, v, attn_mask, dropout_p, scale=1.0)  # (N,H,L,width)
        return out[..., :E]


class Factorised(Product):
    """Factorized Random: S = A Bᵀ with free A and B (H,length,rank), Xavier-uniform at the start.

    O(L² (rank + E)) time per head.
    """

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False, rank: Positive = 32):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        # A and B.
        self.rows = nn.Parameter(xavier(sizes.heads, sizes.length, rank))
        self.columns = nn.Parameter(xavier(sizes.heads, sizes.length, rank))

    def factors(
        self,
        x: Float[Tensor, "N L d"],
    ) -> tuple[Float[Tensor, "1 H L r"], Float[Tensor, "1 H L r"]]:
        L = x.shape[1]
        return self.rows[None, :, :L], self.columns[None, :, :L]


class Dense(Product):
    """Dense: S_i = W₂ relu(W₁ x_i + b₁) + b₂ of the token vector x_i, W₁ (D,d) and W₂ (length,D) per head.

    O(L² (D + E)) time per head.
    """

    def __init__(self, sizes: Sizes, *, dim: int, dot_product: bool = False):
        super().__init__(sizes, dim=dim, dot_product=dot_product)
        H = sizes.heads
        D = sizes.head_dim
        # W₁ and b₁ of all heads, then W₂ and b₂. Checkpoints contain these names.
        self.hidden = nn.Linear(dim, H * D)
        self.scores = nn.Parameter(xavier(H, sizes.length, D))
        self.bias = nn.Parameter(torch.zeros(H, sizes.length, 1))

    def factors(
        self,
        x: Float[Tensor, "N L d"],
    ) -> tuple[Float[Tensor, "N H L r"], Float[Tensor, "1 H L r"]]:
        # a = relu(W₁ x_i + b₁), and a feature of ones that carries the bias b₂.
        hidden = self.hidden(x).relu()  # (N,L,H D)
        hidden = split_heads(hidden, self.sizes.heads)  # (N,H,L,D)
        a = F.pad(hidden, (0, 1), value=1.0)  # (N,H,L,D + 1)

        # b = [W₂, b₂] of the first L positions.
        L = x.shape[1]
        b = torch.cat([self.scores, self.bias], -1)  # (H,length,D + 1)
        return a, b[None, :, :L]


def xavier(heads: int, rows: int, columns: int) -> Float[Tensor, "{heads} {rows} {columns}"]:
    """Draw Xavier-uniform matrices."""
    bound = (6 / (rows + columns)) ** 0.5
    return torch.empty(heads, rows, columns).uniform_(-bound, bound)
