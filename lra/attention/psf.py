"""PSF attention, a product of sparse factors with Chord links (Khalitov et al., Neural Networks 2022).

``lra/reference/psf.py`` has the same equations with dense factors. Shapes: M factors, K links, C channels, R = N L
tokens of all examples.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..ops.precision import full_precision
from ..ops.segment_means import argsort_valid_first
from ..options import Positive
from .base import Mixer, Sizes

Ring = Literal["real", "row"]
# The number of mode="sum" in the operators of torch.nn.functional.embedding_bag.
_SUM = 0


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
        # ceil(log2 length)
        log_length = max((sizes.length - 1).bit_length(), 1)
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
        # Links around the padded sequence make the result depend on the longest sequence of the batch.
        self.batch_dependent = ring == "row"

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
        N, L, _ = x.shape
        factors = self.compute_factors(x)
        ring_mask = mask if self.ring == "real" else None
        if ring_mask is not None:
            # Padding is linked to itself only. Entries of 0 keep its products from growing with M.
            factors = factors * ring_mask[..., None]
        links = self.linked_positions(N, L, self.offsets, ring_mask)
        reverse_links = self.linked_positions(N, L, -self.offsets, ring_mask)
        return multiply_factors(v, links, reverse_links, factors, residuals=self.residuals)

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

    def compute_factors(self, x: Float[Tensor, "N L d"]) -> Float[Tensor, "M N L K"]:
        """Compute step 3, all f_m at once: one product for their first layers, one for their second layers."""
        parameters = (f.parameters() for f in self.weights)
        first_weights, first_biases, second_weights, second_biases = zip(*parameters, strict=True)
        hidden = F.linear(x, torch.cat(first_weights), torch.cat(first_biases))
        hidden = F.gelu(hidden).unflatten(-1, (len(self.weights), -1))  # (N,L,M,h)
        factors = torch.einsum("nlmh,mkh->mnlk", hidden, torch.stack(second_weights))
        return factors + torch.stack(second_biases)[:, None, None]

    @staticmethod
    def linked_positions(
        N: int,
        L: int,
        offsets: Int[Tensor, " K"],
        mask: Bool[Tensor, "{N} {L}"] | None,
    ) -> Int[Tensor, "{N} {L} K"]:
        """Compute step 1: the position at each offset from each position, around the ring."""
        position = torch.arange(L, device=offsets.device)[:, None]  # (L,1)
        if mask is None:
            links = (position + offsets) % L  # (L,K)
            return links.expand(N, -1, -1)
        # Link ranks among the real tokens, then look up their positions.
        rank = mask.cumsum(-1) - 1  # (N,L)
        num_real = mask.sum(-1).clamp(min=1)
        linked_rank = rank[..., None] + offsets  # (N,L,K)
        linked_rank = linked_rank % num_real[:, None, None]
        links = argsort_valid_first(mask).gather(1, linked_rank.flatten(1))  # (N,L K)
        # Padding is linked to itself, so that each offset permutes the positions.
        return torch.where(mask[..., None], links.view_as(linked_rank), position)


@full_precision
def multiply_factors(
    v: Float[Tensor, "N L C"],
    links: Int[Tensor, "N L K"],
    reverse_links: Int[Tensor, "N L K"],
    factors: Float[Tensor, "M N L K"],
    *,
    residuals: bool,
) -> Float[Tensor, "N L C"]:
    """Compute W_M ... W_1 v from right to left.

    A row of W_m v is a weighted sum of K rows of v: ``embedding_bag`` computes it without the K gathered copies of v.

    Args:
        v: vectors of the tokens.
        links: positions to which each position is linked.
        reverse_links: positions that are linked to each position, by the same offsets.
        factors: entries of W_1, ..., W_M.
        residuals: whether v is added after every factor.
    """
    N, L, _ = v.shape
    # The row of each linked token among the N L rows of all examples.
    first_row = L * torch.arange(N, device=v.device)
    bags = links + first_row[:, None, None]  # (N,L,K)
    bags = bags.flatten(0, 1)  # (N L,K)
    reverse_bags = reverse_links + first_row[:, None, None]
    reverse_bags = reverse_bags.flatten(0, 1)
    v_0 = v.flatten(0, 1)  # (N L,C)
    product = v_0
    for w in factors:
        entries = w.flatten(0, 1)  # (N L,K)
        product = _SparseProduct.apply(product, entries, bags, reverse_bags)
        if residuals:
            product = product + v_0
    return product.view_as(v)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


class _SparseProduct(torch.autograd.Function):
    """Compute W v; the gradient of v is W^T g, a weighted sum over the reverse links.

    Autograd's gradient of ``embedding_bag`` sorts the positions and adds up row by row, which takes longer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        v: Float[Tensor, "R C"],
        entries: Float[Tensor, "R K"],
        bags: Int[Tensor, "R K"],
        reverse_bags: Int[Tensor, "R K"],
    ) -> Float[Tensor, "R C"]:
        ctx.save_for_backward(v, entries, bags, reverse_bags)
        return F.embedding_bag(bags, v, mode="sum", per_sample_weights=entries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Float[Tensor, "R C"]) -> tuple[Tensor, Tensor, None, None]:
        v, entries, bags, reverse_bags = ctx.saved_tensors
        # Row j of W^T: offset k links row i = reverse_bags[j, k] of W to j, so entry k of row j is entry k of row i.
        reverse_entries = entries.gather(0, reverse_bags)
        v_grad = F.embedding_bag(reverse_bags, g, mode="sum", per_sample_weights=reverse_entries)
        # Entry (i,k) has the gradient <g_i, v_j> at link j; each bag starts K links after the one before.
        R, K = bags.shape
        starts = torch.arange(0, R * K, K, device=bags.device)
        bag_of_link = torch.arange(R, device=bags.device).repeat_interleave(K)
        entries_grad = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            g, v, bags.flatten(), starts, bag_of_link, _SUM
        )
        return v_grad, entries_grad.view_as(entries), None, None
