"""The candidates: functions of q, k (N,H,L,D), v (N,H,L,E) of real tokens and a count that approximate attention.

Names that begin with cur_ are variants of the paper's CUR (``cur_step``), except ``cur_plus`` itself, whose variants
begin with plus_. A variant differs in one respect; only ``cur_least_squares_farthest`` differs in two, selection and
combination. Both methods select ``count`` queries and ``count`` keys, CUR by position and ``cur_plus`` by
farthest-point traversal, and copy the exact outputs of the selected queries.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ...attention.base import Attention, Sizes
from ...attention.cur import CUR
from ...attention.cur_plus import CURPlus
from ...attention.linear import Performer
from ...attention.nystrom import Nystrom
from ...ops.cluster_attention import nearest
from ...ops.pinv import cubic, exact, tikhonov
from ...ops.selection import farthest, gather_tokens, scatter_tokens
from . import variants
from .variants import CURFactors, SelectionRule, apply_to_both, lloyd_step, score_rule, smoothed, weights

# q, k, v, count -> output (N,H,L,E)
CandidateFunction = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute exact attention, the reference of every error."""
    return weights(q, k) @ v


def mechanism(kind: Callable[..., Attention], count_option: str = "count", **options) -> CandidateFunction:
    """Make a candidate of a mechanism of the suite.

    The mechanism is constructed at every call, since its sizes are the sizes of q and v. It stays in training mode.

    Args:
        kind: class of the mechanism, or a function that constructs it.
        count_option: name of the option that takes ``count``.
        options: further options.
    """

    def function(q, k, v, count):
        sizes = Sizes(heads=q.shape[1], head_dim=q.shape[3], value_dim=v.shape[3], length=q.shape[2])
        return kind(sizes, **{count_option: count}, **options)(q, k, v)

    return function


def select_and_combine(choose: SelectionRule, combine: Callable[..., Tensor], **options) -> CandidateFunction:
    """Make a candidate that selects queries and keys and combines their factors.

    Args:
        choose: rule that selects.
        combine: function of ``CURFactors`` that computes the output.
        options: further options of ``combine``.
    """

    def function(q, k, v, count):
        rows, cols = choose(q, k, v, count)
        x = CURFactors(q, k, v, rows, cols)
        # The selected queries get their exact output.
        return scatter_tokens(combine(x, **options), x.rows, x.exact_outputs)

    return function


def mean(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Return the mean value for every query, a control without attention."""
    return v.mean(2, keepdim=True).expand_as(v)


def nystrom_kmeans(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Compute Nystromformer attention with cluster means as landmarks (Zhang, Tsang and Kwok 2008)."""
    q_landmarks = cluster_means(q, count)
    k_landmarks = cluster_means(k, count)
    inverse = cubic(weights(q_landmarks, k_landmarks), steps=6)
    landmark_output = weights(q_landmarks, k) @ v  # (N,H,c,E)
    return weights(q, k_landmarks) @ (inverse @ landmark_output)


def clustered(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Compute clustered attention (Vyas et al. 2020, section 3.2): a query gets the output of its cluster's mean query.

    The clusters come from Lloyd's algorithm on the queries; the paper clusters hashes of them, which is coarser. With
    one cluster per query the result is exact.
    """
    q_means = cluster_means(q, count)
    cluster = nearest(q, q_means, None).squeeze(-1)  # (N,H,L)
    return gather_tokens(weights(q_means, k) @ v, cluster)


def clustered_improved(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Compute improved clustered attention (Vyas et al. 2020, section 3.3, equations 9 to 11).

    The heavy keys of a cluster are the ``count`` keys to which its mean query pays the most attention. Each query of
    the cluster distributes their total weight among them by its own scores. Like CUR it computes 2 count L scores:
    count L of the mean queries, and count L of the heavy keys.
    """
    q_means = cluster_means(q, count)
    attention = weights(q_means, k)  # (N,H,c,L)
    cluster = nearest(q, q_means, None).squeeze(-1)  # (N,H,L)

    # The heaviest keys of each cluster, and the output of the other keys.
    mass, heavy = attention.topk(count)  # (N,H,c,t)
    light_output = attention.scatter(-1, heavy, 0) @ v  # (N,H,c,E)

    # The heavy keys of each query share the mass that its cluster gives them.
    index = gather_tokens(heavy, cluster).flatten(2)  # (N,H,L·t)
    keys = gather_tokens(k, index).unflatten(2, (-1, count))  # (N,H,L,t,D)
    values = gather_tokens(v, index).unflatten(2, (-1, count))  # (N,H,L,t,E)
    cluster_mass = mass.sum(-1, keepdim=True)
    heavy_mass = gather_tokens(cluster_mass, cluster)  # (N,H,L,1)
    own_weights = weights(q[:, :, :, None], keys)  # (N,H,L,1,t)
    heavy_weights = heavy_mass * own_weights.squeeze(3)  # (N,H,L,t)
    heavy_output = heavy_weights[:, :, :, None] @ values  # (N,H,L,1,E)
    return gather_tokens(light_output, cluster) + heavy_output.squeeze(3)


def cluster_means(x: Tensor, count: int) -> Tensor:
    """Compute means of clusters by 10 steps of Lloyd's algorithm from farthest points, (N,H,L,D) -> (N,H,count,D)."""
    centre_points = gather_tokens(x, farthest(x, count, None))
    for _ in range(10):
        centre_points = lloyd_step(x, centre_points)
    return centre_points


class Candidate(NamedTuple):
    """A function of q, k, v and count, and its description in the table."""

    function: CandidateFunction
    about: str


step_rule = score_rule("step")
farthest_rule = score_rule("farthest")
cur = partial(mechanism, CUR, score="step")
plus = partial(mechanism, CURPlus)
# The inverse of CUR in the paper.
cubic_4 = partial(cubic, steps=4)
# Rules of ``variants``, each with its description.
RULES = {
    "kmeans_pp": (apply_to_both(variants.kmeans_pp), "seeds of k-means++ (Arthur and Vassilvitskii 2007)"),
    "leverage": (apply_to_both(variants.leverage), "largest ridge leverage scores (Mahoney and Drineas 2009)"),
    "received": (variants.received, "rows by position, columns by attention received (H2O: Zhang et al. 2023)"),
}
CUR_RULES = {
    f"cur_{name}": (select_and_combine(rule, variants.product, inverse=cubic_4), description)
    for name, (rule, description) in RULES.items()
}
# Name -> (function, description)
PAIRS = {
    "cur_step": (cur(), "the paper's: cubic inverse of 4 steps, rows and columns by position"),
    # Selection of queries and keys
    "cur_abs": (cur(score="abs"), "largest absolute sums (the paper's)"),
    "cur_random": (cur(score="random", resample="always"), "drawn uniformly (the paper's)"),
    "cur_farthest": (cur(score="farthest"), "farthest-point traversal (Gonzalez 1985)"),
    **CUR_RULES,
    # Inverse
    "cur_cubic_1": (cur(pinv=partial(cubic, steps=1)), "cubic inverse of 1 step"),
    "cur_cubic_6": (cur(pinv=partial(cubic, steps=6)), "cubic inverse of 6 steps, Nystromformer's"),
    "cur_true": (cur(pinv=exact), "Moore-Penrose inverse"),
    "cur_tikhonov": (cur(pinv=partial(tikhonov, ridge=0.1)), "Tikhonov (1963), ridge 0.1"),
    "cur_cutoff": (cur(pinv=partial(exact, rtol=0.1)), "truncated SVD, from 0.1 of the largest (Hansen 1987)"),
    # Combination
    "cur_missing_mass": (
        select_and_combine(step_rule, variants.missing_mass, inverse=cubic_4),
        "missing mass to the mean value",
    ),
    "cur_row_sums": (
        select_and_combine(step_rule, variants.row_sums, inverse=cubic_4),
        "divided by row sums (Performer, equation 4)",
    ),
    "cur_least_squares_farthest": (
        select_and_combine(farthest_rule, variants.least_squares),
        "farthest; M minimises |A - C M R| (Stewart 1999), which needs all of A",
    ),
    # Clusters of keys
    "cur_plus": (plus(), "clusters of keys, smoothed correction, farthest (lra.ops.cluster_attention)"),
    "plus_step": (plus(score="step", resample="always"), "score=step"),
    "plus_abs": (plus(score="abs", resample="always"), "score=abs"),
    "plus_random": (plus(score="random", resample="always"), "score=random"),
    "plus_lloyd": (
        select_and_combine(farthest_rule, smoothed, lloyd=1),
        "clusters formed again around their means once (Lloyd 1982)",
    ),
    "plus_heavy": (
        select_and_combine(farthest_rule, variants.heavy_keys, share=0.5),
        "count / 2 heavy keys of each query exactly (Vyas et al. 2020)",
    ),
    "plus_uncorrected": (
        select_and_combine(farthest_rule, smoothed, corrected=False),
        "no correction (ToMe: Bolya et al. 2023)",
    ),
    # Other methods
    "nystrom": (mechanism(Nystrom, "landmarks", kernel=0), "Nystromformer without convolution (Xiong et al. 2021)"),
    "nystrom_kmeans": (nystrom_kmeans, "the same, means of clusters (Zhang et al. 2008)"),
    "clustered": (clustered, "clustered attention (Vyas et al. 2020), queries only"),
    "clustered_improved": (clustered_improved, "improved, with count heavy keys (Vyas et al. 2020)"),
    "performer": (
        mechanism(lambda sizes, count: Performer(sizes, features=2 * count, eps=0.0)),
        "FAVOR+, 2 count features (Choromanski et al. 2021)",
    ),
    "mean": (mean, "the mean value for every query"),
}
CANDIDATES = {name: Candidate(*pair) for name, pair in PAIRS.items()}
