"""Every candidate by its name, with a description: q, k (N,H,L,D), v (N,H,L,E) of real tokens, count -> (N,H,L,E).

Unless the description says otherwise a candidate keeps ``count`` rows and ``count`` columns by position (``step``) and
copies the kept rows of the output, as CUR does. Names that begin with cur_ differ from the paper's CUR in one respect,
those that begin with plus_ from ``cur_plus``.
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
from .variants import Choice, KeptFactors, alike, means, select, smoothed, weights

Function = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exact attention, the reference of every error."""
    return weights(q, k) @ v


def mechanism(kind: Callable[..., Attention], kept: str = "count", **options) -> Function:
    """Make a mechanism of the suite a candidate.

    Args:
        kind: class of the mechanism.
        kept: name of the option that takes ``count``.
        options: further options.
    """

    def function(q, k, v, count):
        sizes = Sizes(heads=q.shape[1], head_dim=q.shape[3], value_dim=v.shape[3], length=q.shape[2])
        return kind(sizes, **{kept: count}, **options)(q, k, v)

    return function


def made(choose: Choice, combine: Callable[..., Tensor], **options) -> Function:
    """Make a candidate that combines the rows and columns that a rule keeps, with options of the combination."""

    def function(q, k, v, count):
        x = KeptFactors(q, k, v, *choose(q, k, v, count))
        return scatter_tokens(combine(x, **options), x.rows, x.exact)

    return function


def mean(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """The mean value for every query, a control without attention."""
    return v.mean(2, keepdim=True).expand_as(v)


def nystrom_kmeans(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Nystromformer with means of clusters of queries and of keys (Zhang, Tsang and Kwok 2008)."""
    q_marks, k_marks = centres(q, count), centres(k, count)
    return weights(q, k_marks) @ (cubic(weights(q_marks, k_marks), steps=6) @ (weights(q_marks, k) @ v))


def clustered(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Clustered attention (Vyas et al. 2020, section 3.2): a query has the attention of its cluster's mean query.

    Clusters are those of Lloyd's algorithm; the paper's, from hashes, are coarser. A cluster for each query is exact.
    """
    marks = centres(q, count)
    return gather_tokens(weights(marks, k) @ v, nearest(q, marks, None).squeeze(-1))


def clustered_improved(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Improved clustered attention (Vyas et al. 2020, section 3.3, equations 9 to 11).

    A query distributes the attention of its cluster's mean to the cluster's ``count`` heaviest keys by its own scores.
    There are as many products as in CUR: count L for the clusters and count L for the heavy keys.
    """
    marks = centres(q, count)
    map, cluster = weights(marks, k), nearest(q, marks, None).squeeze(-1)  # (N,H,c,L), (N,H,L)
    mass, heavy = map.topk(count)  # (N,H,c,t)
    rest = map.scatter(-1, heavy, 0) @ v
    pick = gather_tokens(heavy, cluster).flatten(2)  # (N,H,L·t)
    keys, values = (gather_tokens(x, pick).unflatten(2, (-1, count)) for x in (k, v))  # (N,H,L,t,D)
    shared = gather_tokens(mass.sum(-1, keepdim=True), cluster) * weights(q[:, :, :, None], keys).squeeze(3)
    return gather_tokens(rest, cluster) + (shared[:, :, :, None] @ values).squeeze(3)


def centres(x: Tensor, count: int, steps: int = 10) -> Tensor:
    """Compute means of clusters by Lloyd's algorithm from farthest points, (N,H,L,D) -> (N,H,count,D)."""
    centre_points = gather_tokens(x, farthest(x, count, None))
    for _ in range(steps):
        centre_points = means(x, centre_points)
    return centre_points


class Candidate(NamedTuple):
    function: Function
    about: str


step, far = select("step"), select("farthest")
cur, plus, paper = partial(mechanism, CUR, score="step"), partial(mechanism, CURPlus), partial(cubic, steps=4)
CHOICES = {
    "kmeans_pp": (alike(variants.kmeans_pp), "seeds of k-means++ (Arthur and Vassilvitskii 2007)"),
    "leverage": (alike(variants.leverage), "largest ridge leverage scores (Mahoney and Drineas 2009)"),
    "received": (variants.received, "rows by position, columns by attention received (H2O: Zhang et al. 2023)"),
}
PAIRS = {
    "cur_step": (cur(), "the paper's: cubic inverse of 4 steps, rows and columns by position"),
    # selection of rows and columns
    "cur_abs": (cur(score="abs"), "largest absolute sums (the paper's)"),
    "cur_random": (cur(score="random", resample="always"), "drawn uniformly (the paper's)"),
    "cur_farthest": (cur(score="farthest"), "farthest-point traversal (Gonzalez 1985)"),
    **{f"cur_{name}": (made(rule, variants.product, inverse=paper), what) for name, (rule, what) in CHOICES.items()},
    # the inverse
    "cur_cubic_1": (cur(pinv=partial(cubic, steps=1)), "cubic inverse of 1 step"),
    "cur_cubic_6": (cur(pinv=partial(cubic, steps=6)), "cubic inverse of 6 steps, Nystromformer's"),
    "cur_true": (cur(pinv=exact), "Moore-Penrose inverse"),
    "cur_tikhonov": (cur(pinv=partial(tikhonov, ridge=0.1)), "Tikhonov (1963), ridge 0.1"),
    "cur_cutoff": (cur(pinv=partial(exact, rtol=0.1)), "truncated SVD, from 0.1 of the largest (Hansen 1987)"),
    # combination
    "cur_missing_mass": (made(step, variants.missing_mass, inverse=paper), "missing mass to the mean value"),
    "cur_row_sums": (made(step, variants.row_sums, inverse=paper), "divided by row sums (Performer, equation 4)"),
    "cur_least_squares_farthest": (
        made(far, variants.least_squares),
        "farthest; M minimises |A - C M R| (Stewart 1999), which needs all of A",
    ),
    # cells of keys
    "cur_plus": (plus(), "cells of keys, smoothed correction, farthest (lra.ops.cluster_attention)"),
    "plus_step": (plus(score="step", resample="always"), "score=step"),
    "plus_abs": (plus(score="abs", resample="always"), "score=abs"),
    "plus_random": (plus(score="random", resample="always"), "score=random"),
    "plus_lloyd": (made(far, smoothed, lloyd=1), "cells drawn anew around their means once (Lloyd 1982)"),
    "plus_heavy": (
        made(far, variants.heavy_keys, share=0.5),
        "count / 2 heavy keys of each row exactly (Vyas et al. 2020)",
    ),
    "plus_uncorrected": (made(far, smoothed, corrected=False), "no correction (ToMe: Bolya et al. 2023)"),
    # others
    "nystrom": (mechanism(Nystrom, "landmarks", kernel=0), "Nystromformer without convolution (Xiong et al. 2021)"),
    "nystrom_kmeans": (nystrom_kmeans, "the same, means of clusters (Zhang et al. 2008)"),
    "clustered": (clustered, "clustered attention (Vyas et al. 2020), rows only"),
    "clustered_improved": (clustered_improved, "improved, with count heavy keys (Vyas et al. 2020)"),
    "performer": (
        mechanism(lambda sizes, count: Performer(sizes, features=2 * count, eps=0.0)),
        "FAVOR+, 2 count features (Choromanski et al. 2021)",
    ),
    "mean": (mean, "the mean value for every query"),
}
CANDIDATES = {name: Candidate(*pair) for name, pair in PAIRS.items()}
