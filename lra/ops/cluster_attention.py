"""Attention over clusters of keys, corrected by exact rows: ``cur_plus``, which needs no inverse.

Each selected key is the centre of a cluster of the real keys nearest to it, with mean key k̄, mean value v̄ and size n.
R v are the exact outputs of the selected queries q_I, and e = R v - U v̄ is the error of C v̄ at these queries:

    O = C v̄ + S g      C = softmax(q k̄ᵀ / √D + log n)      U = rows I of C      S = softmax(-|q - q_I|² / h)

with a bandwidth h, the mean squared distance of a query to the nearest selected one.

C is the proportional attention of merged tokens (ToMe: Bolya et al. 2023), S the kernel regression of Nadaraya and
Watson (1964) over queries. S e alone would flatten the peaks of e: with T the rows I of S, it gives T e at the selected
queries and leaves a remainder (1 - T) e. So g = e + (1 - T) e + (1 - T)² e + ... smooths the remainders as well
(twicing: Tukey 1977; L2 boosting: Bühlmann and Yu 2003). The eigenvalues of T lie in (0, 1] if the selected queries are
distinct, so the sum converges; ``ROUNDS`` terms are computed. Rows of C and S sum to one, so the result is exact for a
constant v. With all tokens selected it is softmax attention.
"""

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .attention_maps import attend_eager, attention_weights, ensure_nonempty, sdpa_mask
from .precision import full_precision, upcast
from .selection import gather_mask, gather_tokens, scatter_tokens, select

if TYPE_CHECKING:
    from .cur import CUROptions

Impl = Literal["eager", "sdpa"]
# Terms of g. More have hardly any effect.
ROUNDS = 5


def cur_plus(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    mask: Bool[Tensor, "N L"] | None,
    options: "CUROptions",
    *,
    draw: Float[Tensor, "2 H _"] | None = None,
) -> Float[Tensor, "N H L E"]:
    """Compute the steps of ``lra.attention.cur_plus.CURPlus``: attention over clusters of keys, with a correction.

    Args:
        q, k, v: queries, keys and values.
        mask: real tokens.
        options: see ``lra.ops.cur.CUROptions``; pinv and weights are unused, and impl=triton* means sdpa.
        draw: random numbers of score=random, see ``lra.ops.selection.select``.

    Returns:
        The outputs. O(L c (D + E)) time.
    """
    mask = ensure_nonempty(mask)
    # Distances to padding must not overflow.
    if mask is not None:
        is_padding = ~mask[:, None, :, None]
        q = q.masked_fill(is_padding, 0)
        k = k.masked_fill(is_padding, 0)

    # 1. Select queries I and keys J.
    I, J = select(q, k, options, mask, draw=draw)  # (N,H,c)
    q_I = gather_tokens(q, I)  # (N,H,c,D)
    k_J = gather_tokens(k, J)  # (N,H,c,D)
    query_mask = gather_mask(mask, I)
    key_mask = gather_mask(mask, J)
    impl: Impl = "eager" if options.impl == "eager" else "sdpa"
    # 2. to 4. The corrected outputs, and R v, which replaces the outputs of the selected queries in step 5.
    out, rv = corrected_attention(q, k, v, q_I, k_J, mask=mask, query_mask=query_mask, key_mask=key_mask, impl=impl)
    if options.copy_rv:
        out = scatter_tokens(out, I, rv)
    return out


def corrected_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    q_I: Float[Tensor, "N H c D"],
    k_J: Float[Tensor, "N H c D"],
    *,
    mask: Bool[Tensor, "N L"] | None = None,
    query_mask: Bool[Tensor, "N H c"] | None = None,
    key_mask: Bool[Tensor, "N H c"] | None = None,
    impl: Impl = "sdpa",
) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H c E"]]:
    """Compute C v̄ + S g and R v in O(L c (D + E)) time.

    h is the mean squared distance from a real query to the nearest selected one, bounded below for rounding errors.

    Args:
        q, k, v: queries, keys and values.
        q_I, k_J: selected queries and keys.
        mask: real tokens.
        query_mask, key_mask: real ones among the selected queries and keys.
        impl: ``eager`` materialises every map in float32 or wider; ``sdpa`` computes R v, C v̄ and S g by torch's fused
            attention and returns q's dtype, under autocast its dtype. In training on a CPU torch materialises S.

    Returns:
        The corrected outputs of all queries, and R v, the exact outputs of the selected queries.
    """
    # 2. Clusters of keys. Their scores get the bias log n, which is -inf for an empty cluster.
    mean_k, mean_v, cluster_size = form_clusters(k, v, k_J, mask, key_mask)
    bias = cluster_size.log()[:, :, None]  # (N,H,1,c)
    scale = q.shape[-1] ** -0.5

    # 3. Exact outputs R v of the selected queries, and C v̄ for all queries.
    token_mask = None if mask is None else mask[:, None]  # (N,1,L)
    rv = _attend(q_I, k, v, scale, token_mask, None, impl)  # (N,H,c,E)
    out = _attend(q, mean_k, mean_v, scale, None, bias, impl)  # (N,H,L,E)

    # 4. S g, added in float32 or wider. q and q_I are upcast once, here, so that their gradients are rounded once.
    min_h = _min_bandwidth(mean_k, torch.finfo(rv.dtype).eps)
    q, q_I = upcast((q, q_I))
    error = _compute_error(q_I, rv, mean_k, mean_v, bias, query_mask)  # (N,H,c,E)
    correction = _smooth_error(q, q_I, error, min_h, mask, query_mask, impl)  # (N,H,L,E)
    corrected = (out + correction).to(rv.dtype)
    return corrected, rv


@full_precision
def form_clusters(
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    k_J: Float[Tensor, "N H c D"],
    mask: Bool[Tensor, "N L"] | None,
    key_mask: Bool[Tensor, "N H c"] | None,
) -> tuple[Float[Tensor, "N H c D"], Float[Tensor, "N H c E"], Float[Tensor, "N H c"]]:
    """Form a cluster around each selected key, of the real keys nearest to it.

    The assignment has no gradient.

    Args:
        k, v: keys and values.
        k_J: selected keys.
        mask: real tokens.
        key_mask: real selected keys; a padded one has a cluster of size 0.

    Returns:
        Mean keys, mean values and sizes, in float32 or wider.
    """
    N, H, c = k_J.shape[:3]
    cluster = nearest(k, k_J, key_mask)  # (N,H,L,1)
    # Number the clusters of all examples and heads, so that one index_add sums over all of them.
    first_cluster = torch.arange(0, N * H * c, c, device=k.device).view(N, H, 1, 1)
    index = (cluster + first_cluster).flatten()

    def cluster_sums(x: Tensor) -> Tensor:
        if mask is not None:
            x = x * mask[:, None, :, None]
        if x.device.type != "cpu":
            # On a GPU index_add adds in no fixed order, so evaluation would not be repeatable.
            is_member = cluster == torch.arange(c, device=x.device)  # (N,H,L,c)
            return is_member.to(x.dtype).mT @ x
        zeros = x.new_zeros(N * H * c, x.shape[-1])
        sums = zeros.index_add(0, index, x.flatten(0, 2))
        return sums.view(N, H, c, -1)

    size = cluster_sums(torch.ones_like(k[..., :1]))  # (N,H,c,1)
    divisor = size.clamp(min=1)
    mean_k = cluster_sums(k) / divisor
    mean_v = cluster_sums(v) / divisor
    return mean_k, mean_v, size.squeeze(-1)


@torch.no_grad()
def nearest(
    x: Float[Tensor, "N H L D"], centres: Float[Tensor, "N H c D"], centre_mask: Bool[Tensor, "N H c"] | None
) -> Int[Tensor, "N H L 1"]:
    """Find the index of the nearest real centre of every token."""
    N, H = x.shape[:2]
    x = x.flatten(0, 1)  # (N·H,L,D)
    squared_norm = centres.square().sum(-1)  # (N,H,c)
    if centre_mask is not None:
        squared_norm = squared_norm.masked_fill(~centre_mask, float("inf"))
    # |x - centre|² without |x|², which is the same for all centres.
    squared_norm = squared_norm.flatten(0, 1)[:, None]  # (N·H,1,c)
    centres = centres.flatten(0, 1)  # (N·H,c,D)
    distance = torch.baddbmm(squared_norm, x, centres.mT, alpha=-2)  # (N·H,L,c)
    cluster = distance.argmin(-1, keepdim=True)
    return cluster.unflatten(0, (N, H))


@full_precision
def _compute_error(
    q_I: Float[Tensor, "N H c D"],
    rv: Float[Tensor, "N H c E"],
    mean_k: Float[Tensor, "N H c D"],
    mean_v: Float[Tensor, "N H c E"],
    bias: Float[Tensor, "N H 1 c"],
    query_mask: Bool[Tensor, "N H c"] | None,
) -> Float[Tensor, "N H c E"]:
    """Compute e = R v - U v̄, zero for padded queries."""
    approximate = attend_eager(q_I, mean_k, mean_v, None, bias, scale=q_I.shape[-1] ** -0.5)
    error = rv - approximate
    return error if query_mask is None else error * query_mask[..., None]


@full_precision
def _smooth_error(
    q: Float[Tensor, "N H L D"],
    q_I: Float[Tensor, "N H c D"],
    error: Float[Tensor, "N H c E"],
    min_h: Float[Tensor, "N H 1 1"],
    mask: Bool[Tensor, "N L"] | None,
    query_mask: Bool[Tensor, "N H c"] | None,
    impl: Impl,
) -> Float[Tensor, "N H L E"]:
    """Compute S g from the errors e of the selected queries, with a bandwidth of at least ``min_h``."""
    h = bandwidth(q, q_I, mask, query_mask)  # (N,H,1,1)
    h = h.maximum(min_h)

    # -|q - q_I|² / h without |q|², which is the same for all selected queries.
    squared_norm = q_I.square().sum(-1)  # (N,H,c)
    distance_bias = -squared_norm[:, :, None] / h  # (N,H,1,c)

    # T: the rows of S at the selected queries.
    scores = (q_I * (2 / h)) @ q_I.mT
    T = attention_weights(scores, query_mask, "softmax", distance_bias)  # (N,H,c,c)
    g = boosted(error, T)  # (N,H,c,E)
    return _attend(q * (2 / h), q_I, g, 1.0, query_mask, distance_bias, impl)


def boosted(error: Float[Tensor, "*batch c E"], T: Float[Tensor, "N H c c"]) -> Float[Tensor, "N H c E"]:
    """Compute e + (1 - T) e + ... + (1 - T)^(ROUNDS - 1) e; T has no weight on padding."""
    remainder = error
    total = error
    for _ in range(ROUNDS - 1):
        remainder = remainder - T @ remainder
        total = total + remainder
    return total


def bandwidth(
    q: Float[Tensor, "N H L D"],
    q_I: Float[Tensor, "N H c D"],
    mask: Bool[Tensor, "N L"] | None,
    query_mask: Bool[Tensor, "N H c"] | None,
) -> Float[Tensor, "N H 1 1"]:
    """Compute the mean squared distance of real queries to the nearest selected one, at least its rounding error."""
    index = nearest(q, q_I, query_mask)  # (N,H,L,1)
    index = index.expand(-1, -1, -1, q.shape[-1])
    nearest_q = q_I.gather(2, index)  # (N,H,L,D)
    difference = q - nearest_q
    squared_distance = difference.square().sum(-1)  # (N,H,L)
    mean_squared_distance = _token_mean(squared_distance, mask)  # (N,H)

    # The rounding error of a squared distance is about eps |q|².
    squared_norm = q.detach().square().sum(-1)
    mean_squared_norm = _token_mean(squared_norm, mask)
    limits = torch.finfo(q.dtype)
    h = mean_squared_distance.maximum(mean_squared_norm * limits.eps)
    h = h.clamp(min=limits.tiny)
    return h[..., None, None]


def _token_mean(x: Float[Tensor, "N H L"], mask: Bool[Tensor, "N L"] | None) -> Float[Tensor, "N H"]:
    """Average x over the real tokens."""
    if mask is None:
        return x.mean(-1)
    real = mask[:, None]
    total = (x * real).sum(-1)
    num_real = real.sum(-1).clamp(min=1)
    return total / num_real


def _min_bandwidth(mean_k: Float[Tensor, "N H c D"], eps: float) -> Float[Tensor, "N H 1 1"]:
    """Compute eps D / max |k|²: queries at this squared distance have scores that differ by √eps at most.

    A smaller bandwidth would amplify the rounding of the errors in the gradient.
    """
    limits = torch.finfo(mean_k.dtype)
    squared_norm = mean_k.detach().square().sum(-1)  # (N,H,c)
    largest = squared_norm.amax(-1)[..., None, None]
    largest = largest.clamp(min=limits.tiny)
    smallest = eps * mean_k.shape[-1] / largest
    return smallest.clamp(limits.tiny, limits.max)


def _attend(
    q: Float[Tensor, "N H i D"],
    k: Float[Tensor, "N H j D"],
    v: Float[Tensor, "N H j E"],
    scale: float,
    key_mask: Bool[Tensor, "#N #H j"] | None,
    bias: Float[Tensor, "N H 1 j"] | None,
    impl: Impl,
) -> Float[Tensor, "N H i E"]:
    """Compute softmax(scale q kᵀ + bias) v."""
    if impl == "eager":
        return attend_eager(q, k, v, key_mask, bias, scale=scale)
    k = k.to(q.dtype)
    v = v.to(q.dtype)
    if bias is not None:
        bias = bias.to(q.dtype)
    attn_mask = sdpa_mask(key_mask, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask, scale=scale)
