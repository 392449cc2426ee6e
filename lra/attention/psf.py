"""PSF attention, a product of sparse factors with Chord links (Khalitov et al., Neural Networks 2022).

``lra/reference/psf.py`` has the same equations with dense factors.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops.precision import full_precision
from ..ops.segment_means import argsort_valid_first
from ..options import Positive
from .base import Mixer, Sizes

Ring = Literal["real", "row"]


class PSF(Mixer):
    """Multiply token vectors by M sparse matrices whose entries are functions of the tokens.

        1. links of token i: i, i+1, i+2, i+4, ..., i+2^(K-2)                              (N,L,K)
        2. V_0 = g(x)                                                                      (N,L,channels)
        3. W_m = the numbers f_m(x_i) at the links of row i,  m = 1 .. M                   (N,L,K)
        4. out = W_M ... W_1 V_0

    g is an MLP d -> value_hidden -> channels, f_m an MLP d -> hidden -> K, both with GELU. There are no heads, no
    softmax and no normalisation. O(L M K channels) time and O(L M (K + channels)) memory.

    Args:
        sizes: its dropout acts on V_0.
        dim: d.
        factors: M; null: ceil(log2 length).
        links: K; ``code``: ceil(log2 length) + 1; ``paper``: ceil(log2 length). For a length of 2^n the largest offset
            is half the length with ``code``, a quarter with ``paper``.
        hidden: hidden width of f_m.
        value_hidden: hidden width of g.
        channels: width of V_0; null: d.
        residuals: whether V_0 is added after every factor.
        project: whether a linear map back to d follows if channels differ from d. Without it the output is
            (N,L,channels), as in the published models of one block (block=plain).
        ring: sequence around which the links wrap. ``real``: the real tokens of each example, token r of n being linked
            to token (r + offset) mod n, so that no padding is read. ``row``: the padded sequence, as published, with
            padding taking part in the mixing.

    Raises:
        ValueError: links is neither a name nor a number of at least 1.
    """

    has_dropout = True

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
        log_length = max((sizes.length - 1).bit_length(), 1)  # ceil(log2 length)
        if links == "code":
            num_links = log_length + 1
        elif links == "paper":
            num_links = log_length
        elif isinstance(links, int) and links >= 1:
            num_links = links
        else:
            raise ValueError(f"links must be code, paper or a number of at least 1, not {links!r}")
        num_factors = factors or log_length
        channels = channels or dim
        self.residuals = residuals
        self.ring = ring
        self.compactable = ring == "real"

        # Step 1: a token is linked to itself and to distances 1, 2, 4, ...
        offsets = [0]
        offsets += [2**j for j in range(num_links - 1)]
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor(offsets), persistent=False)
        # g and f_m of steps 2 and 3.
        self.values = nn.Sequential(_mlp(dim, value_hidden, channels), nn.Dropout(sizes.dropout))
        self.weights = nn.ModuleList(_mlp(dim, hidden, num_links) for _ in range(num_factors))
        self.width = dim if project else channels
        has_projection = project and channels != dim
        self.output = nn.Linear(channels, dim) if has_projection else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L width"]:
        mixed = self.mix(x, self.values(x), mask)
        return self.output(mixed.to(x.dtype))

    def mix(
        self,
        x: Float[Tensor, "N L d"],
        v: Float[Tensor, "N L C"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L C"]:
        """Compute W_M ... W_1 v."""
        factors = [f(x) for f in self.weights]  # M times (N,L,K)
        N, L, _ = x.shape
        links = self.linked_positions(N, L, mask if self.ring == "real" else None)
        return multiply_factors(v, links, *factors, residuals=self.residuals)

    def attention_map(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N 1 L L"]:
        # With the unit vectors as V_0 the output is the map.
        N, L, _ = x.shape
        eye = torch.eye(L, dtype=x.dtype, device=x.device)
        eye = eye.expand(N, -1, -1)
        return self.mix(x, eye, mask)[:, None]

    def linked_positions(self, N: int, L: int, mask: Bool[Tensor, "{N} {L}"] | None) -> Int[Tensor, "{N} {L} K"]:
        """Compute step 1: the positions to which each position is linked."""
        if mask is None:
            position = torch.arange(L, device=self.offsets.device)
            links = (position[:, None] + self.offsets) % L  # (L,K)
            return links.expand(N, -1, -1)
        # Link ranks among the real tokens, then look up their positions.
        rank = mask.cumsum(-1) - 1  # (N,L)
        num_real = mask.sum(-1).clamp(min=1)
        linked_rank = rank[..., None] + self.offsets  # (N,L,K)
        linked_rank = linked_rank % num_real[:, None, None]
        links = argsort_valid_first(mask).gather(1, linked_rank.flatten(1))  # (N,L K)
        return links.view_as(linked_rank)


@full_precision
def multiply_factors(
    v: Float[Tensor, "N L C"],
    links: Int[Tensor, "N L K"],
    *factors: Float[Tensor, "N L K"],
    residuals: bool,
) -> Float[Tensor, "N L C"]:
    """Compute W_M ... W_1 v from right to left.

    A row of W_m v is a weighted sum of K rows of v: ``embedding_bag`` computes it without the K gathered copies of v.

    Args:
        v: vectors of the tokens.
        links: positions to which each position is linked.
        factors: entries of W_1, ..., W_M.
        residuals: whether v is added after every factor.
    """
    N, L, _ = v.shape
    # The row of each linked token among the N L rows of all examples.
    first_row = L * torch.arange(N, device=v.device)
    bags = links + first_row[:, None, None]  # (N,L,K)
    bags = bags.flatten(0, 1)  # (N L,K)
    v_0 = v.flatten(0, 1)  # (N L,C)
    product = v_0
    for w in factors:
        entries = w.flatten(0, 1)  # (N L,K)
        product = F.embedding_bag(bags, product, mode="sum", per_sample_weights=entries)
        if residuals:
            product = product + v_0
    return product.view_as(v)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
