"""Attention over clusters of keys, corrected by exact rows: ``cur_plus``, which needs no inverse.

Each selected key is the centre of a cluster of the real keys nearest to it, with mean key k̄, mean value v̄ and size n.
With e = R v - U v̄, the error of C v̄ for the selected queries q_I, whose exact outputs are R v,

    O = C v̄ + S g      C = softmax(q k̄ᵀ / √D + log n)      U = rows I of C      S = softmax(-|q - q_I|² / h)

C is the proportional attention of merged tokens (ToMe: Bolya et al. 2023), S the kernel regression of Nadaraya and
Watson (1964) over queries. S e would flatten e. With T the rows I of S, g = e + (1 - T) e + (1 - T)² e + ... smooths
the remainder as well (twicing: Tukey 1977; L2 boosting: Bühlmann and Yu 2003). The eigenvalues of T lie in [0, 1], so
the sum converges. Rows of C and S sum to one, so the result is exact for a constant v. With all tokens selected it is
softmax attention.
"""

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_maps import attend_eager, attention_weights, ensure_nonempty, sdpa_mask
from .precision import full_precision, power_of_two_scale
from .selection import gather_tokens, scatter_tokens, select

if TYPE_CHECKING:
    from .cur import CUROptions

Impl = Literal["eager", "sdpa"]
# More rounds of smoothing have hardly any effect.
ROUNDS = 5


def cur_plus(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: "CUROptions", *, draw: Tensor | None = None
) -> Tensor:
    """Compute attention over clusters of keys, corrected by the smoothed error of the selected queries.

    Args:
        q, k: (N,H,L,D).
        v: (N,H,L,E).
        mask: (N,L).
        options: see ``lra.ops.cur.CUROptions``; pinv and weights are unused.
        draw: random numbers of score=random, see ``lra.ops.selection.select``.

    Returns:
        (N,H,L,E). O(L c (D + E)) time.
    """
    mask = ensure_nonempty(mask)
    key_mask = query_mask = None
    # Distances to padding must not overflow.
    if mask is not None:
        q = q.masked_fill(~mask[:, None, :, None], 0)
        k = k.masked_fill(~mask[:, None, :, None], 0)

    # Select queries I and keys J.
    I, J = select(q, k, options, mask, draw=draw)  # (N,H,c)
    q_I = gather_tokens(q, I)  # (N,H,c,D)
    k_J = gather_tokens(k, J)  # (N,H,c,D)
    if mask is not None:
        query_mask = gather_tokens(mask, I)
        key_mask = gather_tokens(mask, J)

    masks = {"mask": mask, "query_mask": query_mask, "key_mask": key_mask}
    out, rv = corrected_attention(q, k, v, q_I, k_J, **masks, impl=options.impl)
    if options.copy_rv:
        out = scatter_tokens(out, I, rv)
    return out


def corrected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_I: Tensor,
    k_J: Tensor,
    *,
    mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    impl: Impl = "sdpa",
) -> tuple[Tensor, Tensor]:
    """Compute C v̄ + S g and R v in O(L c (D + E)) time.

    h is the mean squared distance from a real query to the nearest selected one.

    Args:
        q, k: (N,H,L,D).
        v: (N,H,L,E).
        q_I, k_J: selected queries and keys (N,H,c,D).
        mask: (N,L).
        query_mask, key_mask: real ones among the selected queries and keys (N,H,c).
        impl: ``eager`` writes every map out in float32; ``sdpa`` computes the products by torch's fused attention and
            returns v's dtype.

    Returns:
        (N,H,L,E) and (N,H,c,E).
    """
    # Clusters of keys; an empty one has the bias -inf.
    mean_k, mean_v, cluster_size = form_clusters(k, v, k_J, mask, key_mask)
    bias = cluster_size.log()[:, :, None]  # (N,H,1,c)
    scale = q.shape[-1] ** -0.5

    # Exact outputs R v of the selected queries, and C v̄ for all.
    every_key = None if mask is None else mask[:, None]
    rv = _attend(q_I, k, v, scale, every_key, None, impl)  # (N,H,c,E)
    out = _attend(q, mean_k, mean_v, scale, None, bias, impl)  # (N,H,L,E)

    # S g, added in float32 or wider.
    eps = torch.finfo(rv.dtype).eps
    correction = _correction(q, q_I, rv, mean_k, mean_v, bias, mask, query_mask, eps, impl)
    return (out + correction).to(rv.dtype), rv


@full_precision
def form_clusters(k: Tensor, v: Tensor, k_J: Tensor, mask: Tensor | None, key_mask: Tensor | None):
    """Form a cluster around each selected key, of the real keys nearest to it.

    The assignment has no gradient.

    Args:
        k: (N,H,L,D).
        v: (N,H,L,E).
        k_J: selected keys (N,H,c,D).
        mask: (N,L).
        key_mask: real selected keys (N,H,c); a padded one has a cluster of size 0.

    Returns:
        Mean keys (N,H,c,D), mean values (N,H,c,E) and sizes (N,H,c), in float32 or wider.
    """
    N, H, c = k_J.shape[:3]

    # Number the clusters of all examples and heads, so that one index_add sums over all of them.
    first_cluster = c * torch.arange(N * H, device=k.device).view(N, H, 1, 1)
    cluster = nearest(k, k_J, key_mask) + first_cluster  # (N,H,L,1)
    cluster = cluster.flatten()

    def cluster_sums(x: Tensor) -> Tensor:
        if mask is not None:
            x = x * mask[:, None, :, None]
        sums = x.new_zeros(N * H * c, x.shape[-1]).index_add(0, cluster, x.flatten(0, 2))
        return sums.view(N, H, c, x.shape[-1])

    size = cluster_sums(torch.ones_like(k[..., :1]))  # (N,H,c,1)
    divisor = size.clamp(min=1)
    mean_k = cluster_sums(k) / divisor
    mean_v = cluster_sums(v) / divisor
    return mean_k, mean_v, size.squeeze(-1)


@torch.no_grad()
def nearest(x: Tensor, centres: Tensor, centre_mask: Tensor | None) -> Tensor:
    """Find the nearest real centre of every token.

    Args:
        x: (N,H,L,D).
        centres: (N,H,c,D).
        centre_mask: real centres (N,H,c).

    Returns:
        int64 (N,H,L,1).
    """
    # The scale avoids overflow and does not change which centre is nearest.
    N, H = x.shape[:2]
    unit = power_of_two_scale(x)
    x = (x * unit).flatten(0, 1)  # (N·H,L,D)
    centres = centres * unit
    squared_norm = centres.square().sum(-1)  # (N,H,c)
    if centre_mask is not None:
        squared_norm = squared_norm.masked_fill(~centre_mask, float("inf"))
    # |x - c|² without |x|², which is the same for all centres.
    squared_norm = squared_norm.flatten(0, 1)[:, None]  # (N·H,1,c)
    centres = centres.flatten(0, 1)  # (N·H,c,D)
    distance = torch.baddbmm(squared_norm, x, centres.mT, alpha=-2)  # (N·H,L,c)
    cluster = distance.argmin(-1, keepdim=True)
    return cluster.unflatten(0, (N, H))


@full_precision
def _correction(q, q_I, exact, mean_k, mean_v, bias, mask, query_mask, eps: float, impl: Impl) -> Tensor:
    """Compute S g (N,H,L,E); ``eps`` is the rounding of ``exact``, R v, in the dtype in which it was computed."""
    # e = R v - U v̄
    scale = q.shape[-1] ** -0.5
    approximate = attend_eager(q_I, mean_k, mean_v, None, bias, scale=scale)  # U v̄, (N,H,c,E)
    error = exact - approximate
    if query_mask is not None:
        error = error * query_mask[..., None]

    # S does not change if all queries are multiplied by one number.
    unit = power_of_two_scale(q)
    q = q * unit
    q_I = q_I * unit
    h = bandwidth(q, q_I, mask, query_mask)  # (N,H,1,1)
    h = h.maximum(_min_bandwidth(mean_k, unit, eps))

    # -|q - q_I|² / h without |q|², which is the same for all selected queries.
    squared_norm = q_I.square().sum(-1)[:, :, None]  # (N,H,1,c)
    distance_bias = -squared_norm / h

    # T: the rows of S at the selected queries.
    scores = q_I * (2 / h) @ q_I.mT
    T = attention_weights(scores, query_mask, "softmax", distance_bias)  # (N,H,c,c)
    g = boosted(error, T)  # (N,H,c,E)
    return _attend(q * (2 / h), q_I, g, 1.0, query_mask, distance_bias, impl)


def boosted(error: Tensor, T: Tensor) -> Tensor:
    """Compute e + (1 - T) e + ... + (1 - T)^(ROUNDS - 1) e.

    Args:
        error: e (N,H,c,E).
        T: (N,H,c,c), without weight on padding.
    """
    remainder = total = error
    for _ in range(ROUNDS - 1):
        remainder = remainder - T @ remainder
        total = total + remainder
    return total


def bandwidth(q: Tensor, q_I: Tensor, mask: Tensor | None, query_mask: Tensor | None) -> Tensor:
    """Compute the mean squared distance of real queries to the nearest selected one, (N,H,1,1), bounded by rounding."""
    index = nearest(q, q_I, query_mask).expand(-1, -1, -1, q.shape[-1])
    difference = q - q_I.gather(2, index)
    squared_distance = difference.square().sum(-1)  # (N,H,L)
    mean_distance = _token_mean(squared_distance, mask)  # (N,H)

    # Distances of rounding size are no distances.
    squared_norm = q.detach().square().sum(-1)
    mean_norm = _token_mean(squared_norm, mask)
    limits = torch.finfo(q.dtype)
    h = mean_distance.maximum(mean_norm * limits.eps)
    return h.clamp(min=limits.tiny)[..., None, None]


def _token_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Average x (N,H,L) over the real tokens: (N,H)."""
    if mask is None:
        return x.mean(-1)
    real = mask[:, None]
    total = (x * real).sum(-1)
    num_real = real.sum(-1).clamp(min=1)
    return total / num_real


def _min_bandwidth(mean_k: Tensor, unit: Tensor, eps: float) -> Tensor:
    """Compute eps D / max |k|², a squared distance at which scores of two queries differ by √eps at most: (N,H,1,1).

    A smaller bandwidth would amplify the rounding of the errors in the gradient. ``unit`` is the factor of the queries.
    """
    limits = torch.finfo(mean_k.dtype)
    key_unit = power_of_two_scale(mean_k)
    squared_norm = (mean_k.detach() * key_unit).square().sum(-1)
    largest = squared_norm.amax(-1)[..., None, None]
    largest = largest.clamp(min=limits.tiny)
    distance = key_unit * unit * (eps * mean_k.shape[-1] / largest).sqrt()
    return distance.square().clamp(limits.tiny, limits.max)


def _attend(q, k, v, scale: float, key_mask: Tensor | None, bias: Tensor | None, impl: Impl) -> Tensor:
    """Compute softmax(scale q kᵀ + bias) v with real keys (N,H,j), or broadcastable, and a bias (N,H,1,j)."""
    if impl == "eager":
        return attend_eager(q, k, v, key_mask, bias, scale=scale)
    k = k.to(q.dtype)
    v = v.to(q.dtype)
    bias = None if bias is None else bias.to(q.dtype)
    attn_mask = sdpa_mask(key_mask, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask, scale=scale)
