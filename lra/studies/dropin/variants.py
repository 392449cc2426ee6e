"""Variants of CUR and of ``cur_plus``: rules that select queries and keys, and ways to combine the factors.

``cur_plus`` (``lra.ops.cluster_attention``) is O = C v̄ + S K e: k̄ and v̄ are the mean keys and values of clusters of n
keys, C = softmax(q k̄ᵀ / √D + log n), U the rows of C and R the rows of exact attention at the selected queries,
e = R v - U v̄ the error of C v̄ there, and S K the smoother (``smoother``; ``cluster_attention`` writes g = K e).

Shapes: q, k (N,H,L,D), v (N,H,L,E); rows of the attention map belong to queries, columns to keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ...ops import selection
from ...ops.cluster_attention import bandwidth, boosted, form_clusters, nearest
from ...ops.cur import CUROptions
from ...ops.pinv import exact
from ...ops.selection import gather_tokens

# (N,H,r,c) -> (N,H,c,r)
Inverse = Callable[[Tensor], Tensor]
# q, k, v, count -> indices of the selected queries (rows) and of the selected keys (columns)
SelectionRule = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def weights(q: Tensor, k: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Compute softmax(q kᵀ / √D + bias): q (N,H,i,D), k (N,H,j,D) -> (N,H,i,j)."""
    scale = q.shape[-1] ** -0.5
    return (q @ k.mT * scale + bias).softmax(-1)


@dataclass(frozen=True)
class CURFactors:
    """Selected queries and keys, and the factors of CUR, each computed on its first use.

    Args:
        q, k, v: queries, keys and values of attention.
        rows: indices (N,H,r) of the selected queries, int64.
        cols: indices (N,H,c) of the selected keys, int64.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    cols: Tensor

    @cached_property
    def q_rows(self) -> Tensor:
        """The selected queries (N,H,r,D)."""
        return gather_tokens(self.q, self.rows)

    @cached_property
    def k_cols(self) -> Tensor:
        """The selected keys (N,H,c,D)."""
        return gather_tokens(self.k, self.cols)

    @cached_property
    def C(self) -> Tensor:
        """Attention of all queries to the selected keys (N,H,L,c)."""
        return weights(self.q, self.k_cols)

    @cached_property
    def U(self) -> Tensor:
        """Attention of the selected queries to the selected keys (N,H,r,c)."""
        return weights(self.q_rows, self.k_cols)

    @cached_property
    def R(self) -> Tensor:
        """Attention of the selected queries to all keys (N,H,r,L)."""
        return weights(self.q_rows, self.k)

    @cached_property
    def exact_outputs(self) -> Tensor:
        """R v, the exact outputs of the selected queries (N,H,r,E)."""
        return self.R @ self.v


def product(x: CURFactors, inverse: Inverse) -> Tensor:
    """Compute C Z R v with Z = inverse(U), which is CUR itself (Francois et al. 2025, equation of section 3)."""
    return x.C @ (inverse(x.U) @ x.exact_outputs)


def missing_mass(x: CURFactors, inverse: Inverse) -> Tensor:
    """Compute C Z R v + (1 - C Z 1) v̄: what the rows of C Z R lack to a sum of one goes to the mean value v̄.

    It is computed as CUR of v - v̄, plus v̄, so constant values are preserved (a control variate, as in Zheng et al.
    2023, "Efficient attention via control variates").
    """
    z = inverse(x.U)
    mean = x.v.mean(2, keepdim=True)
    return x.C @ (z @ (x.exact_outputs - mean)) + mean


def row_sums(x: CURFactors, inverse: Inverse) -> Tensor:
    """Compute C Z R v / (C Z 1): rows are divided by their sums, as in Performer (Choromanski et al. 2021, equation 4).

    Row sums of R are one, so Z 1 stands for Z R 1.
    """
    z = inverse(x.U)
    numerator = x.C @ (z @ x.exact_outputs)
    denominator = x.C @ z.sum(-1, keepdim=True)
    return numerator / denominator


def least_squares(x: CURFactors) -> Tensor:
    """Compute C M R v with M = C⁺ A R⁺, which minimises |A - C M R| (Stewart 1999; Boutsidis and Woodruff 2014).

    It needs the whole attention map A.
    """
    # rtol cuts off the singular values of C and R that are rounding errors.
    inverse = partial(exact, rtol=1e-6)
    C = x.C.double()
    R = x.R.double()
    A = weights(x.q, x.k).double()
    R_inverse_v = inverse(R) @ x.exact_outputs.double()  # R⁺ R v
    M_v = inverse(C) @ (A @ R_inverse_v)  # C⁺ A R⁺ R v
    return (C @ M_v).to(x.v.dtype)


def smoothed(x: CURFactors, lloyd: int = 0, corrected: bool = True) -> Tensor:
    """Compute C v̄ + S K e, by default as ``cur_plus``; the caller copies the exact outputs of the selected queries.

    Args:
        x: selected queries and keys.
        lloyd: number of steps of Lloyd's algorithm, which form the clusters again around their means (Lloyd 1982).
        corrected: whether to add S K e; without it, the result is the proportional attention of ToMe (Bolya et al.
            2023, equation 1).
    """
    centres = x.k_cols
    for _ in range(lloyd):
        centres = lloyd_step(x.k, centres)
    keys, values, sizes = form_clusters(x.k, x.v, centres, None, None)
    # The bias of an empty cluster is -inf.
    bias = sizes.log()[:, :, None]
    out = weights(x.q, keys, bias) @ values
    if corrected:
        # The error in the selected queries, smoothed over all queries.
        error = x.exact_outputs - weights(x.q_rows, keys, bias) @ values
        out = out + smoother(x.q, x.q_rows) @ error
    return out


def heavy_keys(x: CURFactors, share: float) -> Tensor:
    """Compute ``smoothed`` with exact scores of the heaviest keys of each query.

    The heavy keys of a query are the keys to which the nearest selected query pays the most attention (Vyas et al.
    2020; with a smooth remainder: Scatterbrain, Chen et al. 2021). In numerator and denominator, exp(score) of a heavy
    key replaces the weight that its cluster gives it.

    Args:
        x: selected queries and keys.
        share: number of heavy keys of a query, as a share of the number c of selected keys.
    """
    key_clusters = nearest(x.k, x.k_cols, None).squeeze(-1)  # (N,H,L)
    query_clusters = nearest(x.q, x.q_rows, None).squeeze(-1)  # (N,H,L)
    keys, values, sizes = form_clusters(x.k, x.v, x.k_cols, None, None)
    num_heavy = max(1, round(share * x.cols.shape[2]))
    heavy = x.R.topk(num_heavy).indices  # (N,H,r,t)

    def attend(q: Tensor, heavy: Tensor) -> Tensor:
        """Attention of queries (N,H,i,D) with the heavy keys (N,H,i,t) taken exactly: (N,H,i,E)."""
        flat = heavy.flatten(2)
        k = gather_tokens(x.k, flat).unflatten(2, heavy.shape[2:])  # (N,H,i,t,D)
        v = gather_tokens(x.v, flat).unflatten(2, heavy.shape[2:])  # (N,H,i,t,E)
        clusters = key_clusters.gather(2, flat).view_as(heavy)  # (N,H,i,t)

        # Scores of clusters and of heavy keys, and their maximum, which is subtracted for stability.
        q = q * q.shape[-1] ** -0.5
        cluster_scores = q @ keys.mT  # (N,H,i,c)
        heavy_scores = q[:, :, :, None] @ k.mT  # (N,H,i,1,t)
        heavy_scores = heavy_scores.squeeze(3)  # (N,H,i,t)
        cluster_max = cluster_scores.amax(-1, keepdim=True)
        heavy_max = heavy_scores.amax(-1, keepdim=True)
        maximum = torch.maximum(cluster_max, heavy_max)

        # A heavy key's weight beyond the one that its cluster gives it.
        score_of_cluster = cluster_scores.gather(3, clusters)
        exact_weight = (heavy_scores - maximum).exp()
        weight_in_cluster = (score_of_cluster - maximum).exp()
        excess = exact_weight - weight_in_cluster  # (N,H,i,t)

        # Numerator and denominator: clusters, then the excess of the heavy keys.
        cluster_weights = (cluster_scores - maximum).exp() * sizes[:, :, None]
        cluster_total = cluster_weights.sum(-1, keepdim=True)
        total = cluster_total + excess.sum(-1, keepdim=True)
        heavy_part = excess[:, :, :, None] @ v  # (N,H,i,1,E)
        return (cluster_weights @ values + heavy_part.squeeze(3)) / total

    error = x.exact_outputs - attend(x.q_rows, heavy)
    out = attend(x.q, gather_tokens(heavy, query_clusters))
    return out + smoother(x.q, x.q_rows) @ error


def lloyd_step(x: Tensor, centres: Tensor) -> Tensor:
    """Take one step of Lloyd's algorithm: move each centre to the mean of its nearest tokens, if any."""
    cluster_means, _, sizes = form_clusters(x, x, centres, None, None)
    return torch.where(sizes[..., None] > 0, cluster_means, centres)


def smoother(q: Tensor, q_rows: Tensor) -> Tensor:
    """Compute the smoother S K (N,H,L,r): S = softmax(-|q - q_rows|² / h), K = 1 + (1 - T) + ... + (1 - T)⁴.

    T (N,H,r,r) are the rows of S at the selected queries q_rows; K smooths the remainders as well (twicing). h is
    ``bandwidth``, without the lower bound that ``cur_plus`` adds for gradients.
    """
    h = bandwidth(q, q_rows, None, None)
    row_distance = torch.cdist(q_rows, q_rows).square()
    T = (-row_distance / h).softmax(-1)  # (N,H,r,r)
    distance = torch.cdist(q, q_rows).square()
    S = (-distance / h).softmax(-1)  # (N,H,L,r)
    eye = torch.eye(T.shape[-1], dtype=T.dtype)
    K = boosted(eye, T)  # (N,H,r,r)
    return S @ K


def score_rule(score: selection.Score) -> SelectionRule:
    """Make a rule that selects queries and keys by a score of ``lra.ops.selection``."""
    return lambda q, k, v, count: selection.select(q, k, CUROptions(count=count, score=score))


def apply_to_both(rule: Callable[[Tensor, int], Tensor]) -> SelectionRule:
    """Make a rule that applies a function (x, count) -> indices to the queries and to the keys."""
    return lambda q, k, v, count: (rule(q, count), rule(k, count))


def kmeans_pp(x: Tensor, count: int) -> Tensor:
    """Draw tokens as seeds of k-means++, in proportion to the squared distance from the nearest earlier seed.

    Source: Arthur and Vassilvitskii 2007, section 2.2.
    """
    N, H, L, _ = x.shape
    seed = torch.randint(L, (N, H, 1))
    seeds = [seed]
    # Squared distance of each token from the nearest seed.
    distance = torch.full((N, H, L), float("inf"))
    for _ in range(count - 1):
        offset = x - gather_tokens(x, seed)
        distance = torch.minimum(distance, offset.square().sum(-1))
        # The small constant lets a duplicate of a seed be drawn if only duplicates are left.
        largest = distance.amax(-1, keepdim=True).clamp(min=1)
        probability = distance + largest * 1e-9
        # A seed is not drawn again.
        probability = probability.scatter(-1, torch.cat(seeds, -1), 0)
        draw = torch.multinomial(probability.flatten(0, 1), 1)
        seed = draw.view(N, H, 1)
        seeds.append(seed)
    return torch.cat(seeds, -1)


def leverage(x: Tensor, count: int) -> Tensor:
    """Select the tokens with the largest ridge leverage scores xᵢᵀ (xᵀx + λ I)⁻¹ xᵢ.

    λ is 0.001 times the mean squared norm of a column of x. CUR decompositions draw tokens by these scores (Mahoney and
    Drineas 2009, equation 3); here the largest ones are taken (Papailiopoulos et al. 2014).
    """
    gram = x.mT @ x  # (N,H,D,D)
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    gram = gram + 1e-3 * mean_square * eye
    projected = torch.linalg.solve(gram, x.mT).mT  # (N,H,L,D)
    scores = (projected * x).sum(-1)
    return scores.topk(count).indices


def received(q: Tensor, k: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Select strided queries, and the keys to which they pay the most attention (H2O: Zhang et al. 2023)."""
    rows, _ = score_rule("step")(q, k, v, count)
    attention = weights(gather_tokens(q, rows), k)  # (N,H,r,L)
    return rows, attention.sum(2).topk(count).indices
