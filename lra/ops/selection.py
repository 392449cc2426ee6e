"""Selection of the queries and keys of CUR attention (CURformer: Francois et al. 2025, sections 4 and 6).

Most scores are functions of a token's query or key vector; the ``count`` tokens with the highest scores are selected.
``step`` and ``farthest`` need no scores. No gradient flows through the selection. Selected positions are distinct, and
padding is selected only if there are fewer real tokens than ``count``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from ..options import Checked
from .precision import full_precision
from .segment_means import argsort_valid_first

if TYPE_CHECKING:
    from ..varlen import VarlenLayout

Score = Literal["sum", "abs", "embed", "step", "random", "farthest"]
Pairing = Literal["separate", "same_k", "same_q", "swapped"]
Resample = Literal["train", "always"]
SCORES = get_args(Score)
PAIRINGS = get_args(Pairing)
FUSED_SCORES = ("sum", "abs", "embed")


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(Checked):
    """Options of the selection.

    Args:
        count: number of selected queries and of selected keys; all of them if a sequence has fewer tokens.
        score: score of a token x (D,): ``sum`` of its entries; ``abs``, sum of their absolute values; ``embed``, its
            first entry; ``random``, a uniform number. Without scores: ``step``, tokens at equal distances;
            ``farthest``, repeatedly the token farthest from the selected ones.
        pairing: vectors that are scored. ``separate``: queries select queries, keys select keys; ``same_k`` and
            ``same_q``: keys or queries select both; ``swapped``: keys select queries, queries select keys. score=step
            ignores it: I = J.
        class_token: whether the first real token, the class token, is always selected. score=step and score=farthest
            select it in any case.
    """

    count: int
    score: Score
    pairing: Pairing = "separate"
    class_token: bool = False


@torch.no_grad()
def select(
    q: Float[Tensor, "Nq H L D"],
    k: Float[Tensor, "Nq H L D"],
    options: SelectionOptions,
    mask: Bool[Tensor, "Nq L"] | None = None,
    *,
    layout: "VarlenLayout | None" = None,
    draw: Float[Tensor, "2 H _"] | None = None,
    fused: bool = False,
) -> tuple[Int[Tensor, "N H c"], Int[Tensor, "N H c"]]:
    """Select the positions I of queries and J of keys.

    Args:
        q, k: queries and keys; Nq = N, or Nq = 1 and L = T for packed sequences.
        options: see ``SelectionOptions``.
        mask: real tokens, None for packed sequences.
        layout: ``VarlenLayout`` if the sequences are packed; each must have at least count tokens. score=farthest is
            not supported.
        draw: random numbers for score=random, one per side (I, J), head and position up to the maximum length, shared
            by all examples; None draws new ones for every example.
        fused: whether one Triton launch computes the scores ``sum``, ``abs`` or ``embed`` of queries and keys; ignored
            with a layout.

    Returns:
        I and J, in no particular order, with c = min(count, L); positions among the T for packed sequences.
    """
    N, H, L, _ = q.shape
    count = min(options.count, L)

    # Tokens at equal distances need no scores.
    if options.score == "step":
        index = strided_indices(N, L, count, mask, q.device) if layout is None else layout.strided_indices(count)
        index = index[:, None].expand(-1, H, -1)  # (N,H,c)
        return index, index

    # Scores of the first select I, scores of the second select J.
    pairs = {"separate": (q, k), "same_k": (k, k), "same_q": (q, q), "swapped": (k, q)}
    for_queries, for_keys = pairs[options.pairing]
    is_shared = for_queries is for_keys

    if fused and layout is None and options.score in FUSED_SCORES:
        second = None if is_shared else for_keys
        scores = _fused_scores(for_queries, second, mask, options)  # (1 or 2,N,H,L)
        index = scores.topk(count, sorted=False).indices
        return index[0], index[-1]

    query_draw = None if draw is None else draw[0]  # (H,length)
    key_draw = None if draw is None else draw[1]
    I = _select_side(for_queries, options, count, mask, layout, query_draw)  # (N,H,c)
    if is_shared:
        return I, I
    J = _select_side(for_keys, options, count, mask, layout, key_draw)  # (N,H,c)
    return I, J


def _select_side(
    x: Float[Tensor, "Nq H L D"],
    options: SelectionOptions,
    count: int,
    mask: Bool[Tensor, "Nq L"] | None,
    layout: "VarlenLayout | None",
    draw: Float[Tensor, "H _"] | None,
) -> Int[Tensor, "N H count"]:
    """Select the ``count`` tokens with the highest scores of their vectors x, or by farthest-point traversal."""
    if options.score == "farthest":
        return farthest(x, count, mask)
    positions = torch.arange(x.shape[2], device=x.device) if layout is None else layout.positions
    scores = _scores(x, options.score, positions, draw)  # (N,H,L)

    # The class token is always selected, padding only if there are too few real tokens.
    if options.class_token:
        is_first = _is_first(positions, mask, layout)
        scores = scores.masked_fill(is_first, float("inf"))
    if layout is not None:
        return layout.top(scores, count)
    if mask is not None:
        is_padding = ~mask[:, None]
        scores = scores.masked_fill(is_padding, float("-inf"))
    highest = scores.topk(count, sorted=False)
    return highest.indices


def _scores(
    x: Float[Tensor, "Nq H L D"],
    score: Score,
    positions: Int[Tensor, "L"],
    draw: Float[Tensor, "H _"] | None,
) -> Float[Tensor, "Nq H L"]:
    """Score the tokens x; score=random takes ``draw`` at ``positions``, or new numbers without a draw."""
    # In 16 bits many sums would be equal, so that ``topk`` would choose among them arbitrarily.
    dtype = torch.promote_types(x.dtype, torch.float32)
    if score == "sum":
        return x.sum(-1, dtype=dtype)
    if score == "abs":
        magnitudes = x.abs()
        return magnitudes.sum(-1, dtype=dtype)
    if score == "embed":
        return x[..., 0]
    if draw is None:
        return torch.rand(x.shape[:3], device=x.device)
    position_draw = draw[:, positions]  # (H,L)
    return position_draw.expand(len(x), -1, -1)


def _is_first(
    positions: Int[Tensor, "L"],
    mask: Bool[Tensor, "N L"] | None,
    layout: "VarlenLayout | None",
) -> Bool[Tensor, "..."]:
    """Mark the first real token of every sequence: (L,), (N,1,L) with a mask, (T,) if packed."""
    if layout is not None:
        is_first = torch.zeros_like(positions, dtype=torch.bool)
        return is_first.index_fill(0, layout.starts, True)
    if mask is None:
        return positions == 0
    return first_real(mask)[:, None]


def first_real(mask: Bool[Tensor, "N L"]) -> Bool[Tensor, "N L"]:
    """Mark the first real token of every example."""
    num_real_so_far = mask.cumsum(-1)
    return mask & (num_real_so_far == 1)


def _fused_scores(
    a: Float[Tensor, "N H L D"],
    b: Float[Tensor, "N H L D"] | None,
    mask: Bool[Tensor, "N L"] | None,
    options: SelectionOptions,
) -> Float[Tensor, "sides N H L"]:
    """Score a and b in one launch: -inf for padding, inf for a class token."""
    from . import triton as kernels

    # The kernel knows the class token of sequences without padding, at position 0.
    at_zero = options.class_token and mask is None
    scores = kernels.token_scores(a, b, mask, score=options.score, class_token=at_zero)
    if options.class_token and mask is not None:
        is_first = first_real(mask)[:, None]
        scores = scores.masked_fill(is_first, float("inf"))
    return scores


def strided_indices(
    N: int,
    L: int,
    count: int,
    mask: Bool[Tensor, "N L"] | None,
    device: torch.device,
) -> Int[Tensor, "N count"]:
    """Select positions floor(i n_real / c) among the real tokens, i = 0 .. c - 1.

    If there are fewer real tokens than c, all of them are selected, then padding.
    """
    i = torch.arange(count, device=device)
    if mask is None:
        position = i * L // count  # (c,)
        return position.expand(N, -1)
    # Ranks among the real tokens, then the positions of these ranks.
    num_real = mask.sum(-1, keepdim=True)  # (N,1)
    strided_rank = i * num_real // count  # (N,c)
    rank = torch.where(num_real >= count, strided_rank, i)
    order = argsort_valid_first(mask)
    return order.gather(-1, rank)


@full_precision
def farthest(
    x: Float[Tensor, "N H L D"],
    count: int,
    mask: Bool[Tensor, "N L"] | None,
) -> Int[Tensor, "N H count"]:
    """Select by farthest-point traversal (Gonzalez 1985) in O(L count D), in the order of selection.

    The first real token is selected first. The largest distance of a real token to the nearest selected one is at most
    twice the distance for the best possible selection.
    """
    N, H, _, D = x.shape
    x = x.flatten(0, 1)  # (N·H,L,D)
    if mask is not None:
        mask = mask.repeat_interleave(H, 0)
        is_padding = ~mask[..., None]
        x = x.masked_fill(is_padding, 0)
    transposed = x.mT.contiguous()  # (N·H,D,L)
    squared_norm = x.square().sum(-1)  # (N·H,L)

    # Squared distance to the nearest selected token: padding comes after real tokens, selected tokens come last.
    distance = torch.full_like(squared_norm, float("inf"))  # (N·H,L)
    latest = torch.zeros(N * H, 1, dtype=torch.int64, device=x.device)
    if mask is not None:
        lowest = torch.finfo(x.dtype).min
        distance.masked_fill_(~mask, lowest)
        # The first real token.
        mask_bytes = mask.to(torch.uint8)
        latest = mask_bytes.argmax(-1, keepdim=True)

    selected = [latest]
    for _ in range(count - 1):
        # The token p that was selected last.
        distance.scatter_(1, latest, float("-inf"))
        index = latest[..., None].expand(-1, -1, D)  # (N·H,1,D)
        point = x.gather(1, index)  # (N·H,1,D)

        # |x - p|² = |x|² + |p|² - 2 x·p. The terms cancel, so 16 bits would not be enough.
        point_norm = squared_norm.gather(1, latest)  # (N·H,1)
        norms = (squared_norm + point_norm)[:, None]  # (N·H,1,L)
        to_point = torch.baddbmm(norms, point, transposed, alpha=-2)[:, 0]  # (N·H,L)

        # The next one has the largest distance to the nearest selected token.
        torch.minimum(distance, to_point, out=distance)
        latest = distance.argmax(-1, keepdim=True)
        selected.append(latest)
    index = torch.cat(selected, -1)  # (N·H,count)
    return index.view(N, H, count)


def gather_tokens(
    x: Num[Tensor, "N H L D"],
    index: Int[Tensor, "N H c"],
) -> Num[Tensor, "N H c D"]:
    """Gather the tokens of x at ``index``."""
    D = x.shape[-1]
    token_index = index[..., None].expand(-1, -1, -1, D)  # (N,H,c,D)
    return x.gather(2, token_index)


def gather_mask(mask: Bool[Tensor, "N L"] | None, index: Int[Tensor, "N H c"]) -> Bool[Tensor, "N H c"] | None:
    """Gather the mask of selected tokens; None if all tokens are real."""
    if mask is None:
        return None
    H = index.shape[1]
    expanded = mask[:, None].expand(-1, H, -1)  # (N,H,L)
    return expanded.gather(2, index)


def scatter_tokens(
    x: Float[Tensor, "N H L E"],
    index: Int[Tensor, "N H c"],
    values: Float[Tensor, "N H c E"],
) -> Float[Tensor, "N H L E"]:
    """Replace the tokens of x at ``index`` by ``values``."""
    token_index = index[..., None].expand_as(values)  # (N,H,c,E)
    return x.scatter(2, token_index, values.to(x.dtype))
