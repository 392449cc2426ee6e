"""Every candidate by its name, with a description: q, k (N,H,L,D), v (N,H,L,E) of real tokens, count -> (N,H,L,E).

Unless the description says otherwise a candidate keeps ``count`` rows and ``count`` columns by position (``step``) and
copies the kept rows of the output, as CUR does. Names that begin with cur_ differ from the paper's CUR in one respect,
those that begin with plus_ from ``cur_plus``.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ...attention.cur import CUR
from ...attention.cur_plus import CURPlus
from ...ops.pinv import cubic, exact, tikhonov
from . import baselines
from .cell_variants import cells_alone, heavy_keys, smoothed
from .cur_variants import (
    Choice,
    KeptFactors,
    alike,
    kmeans_pp,
    least_squares,
    leverage,
    missing_mass,
    product,
    received,
    row_sums,
    select,
)

Function = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class Candidate(NamedTuple):
    function: Function
    about: str


def cur(**options) -> Function:
    """Make CUR with options, by position unless they choose another score."""
    return lambda q, k, v, count: CUR(baselines.sizes(q, v), count=count, **{"score": "step"} | options)(q, k, v)


def plus(**options) -> Function:
    """Make ``cur_plus`` with options."""
    return lambda q, k, v, count: CURPlus(baselines.sizes(q, v), count=count, **options)(q, k, v)


def made(choose: Choice, combine: Callable[..., Tensor], **options) -> Function:
    """Make a candidate that combines the rows and columns that a rule keeps.

    Args:
        choose: the rule.
        combine: function of kept rows and columns.
        options: options of ``combine``.
    """

    def function(q, k, v, count):
        x = KeptFactors(q, k, v, *choose(q, k, v, count))
        return x.copied(combine(x, **options))

    return function


step, far = select("step"), select("farthest")
paper = partial(cubic, steps=4)
CHOICES = {
    "kmeans_pp": (alike(kmeans_pp), "seeds of k-means++ (Arthur and Vassilvitskii 2007)"),
    "leverage": (alike(leverage), "largest ridge leverage scores (Mahoney and Drineas 2009)"),
    "received": (received, "rows by position, columns by attention received (H2O: Zhang et al. 2023)"),
}
CANDIDATES = {
    "cur_step": (cur(), "the paper's: cubic inverse of 4 steps, rows and columns by position"),
    # selection of rows and columns
    "cur_abs": (cur(score="abs"), "largest absolute sums (the paper's)"),
    "cur_random": (cur(score="random", resample="always"), "drawn uniformly (the paper's)"),
    "cur_farthest": (cur(score="farthest"), "farthest-point traversal (Gonzalez 1985)"),
    **{f"cur_{name}": (made(rule, product, inverse=paper), what) for name, (rule, what) in CHOICES.items()},
    # the inverse
    "cur_cubic_1": (cur(pinv=partial(cubic, steps=1)), "cubic inverse of 1 step"),
    "cur_cubic_6": (cur(pinv=partial(cubic, steps=6)), "cubic inverse of 6 steps, Nystromformer's"),
    "cur_true": (cur(pinv=exact), "Moore-Penrose inverse"),
    "cur_tikhonov": (cur(pinv=partial(tikhonov, ridge=0.1)), "Tikhonov (1963), ridge 0.1"),
    "cur_cutoff": (cur(pinv=partial(exact, rtol=0.1)), "truncated SVD, from 0.1 of the largest (Hansen 1987)"),
    # combination
    "cur_missing_mass": (made(step, missing_mass, inverse=paper), "missing mass to the mean value"),
    "cur_row_sums": (made(step, row_sums, inverse=paper), "divided by row sums (Performer, equation 4)"),
    "cur_least_squares_farthest": (
        made(far, least_squares),
        "farthest; M minimises |A - C M R| (Stewart 1999), which needs all of A",
    ),
    # cells of keys
    "cur_plus": (plus(), "cells of keys, smoothed correction, farthest (lra.ops.cells)"),
    **{
        f"plus_{score}": (plus(score=score, resample="always"), f"score={score}") for score in ("step", "abs", "random")
    },
    "plus_lloyd": (made(far, smoothed, lloyd=1), "cells drawn anew around their means once (Lloyd 1982)"),
    "plus_heavy": (made(far, heavy_keys, share=0.5), "count / 2 heavy keys of each row exactly (Vyas et al. 2020)"),
    "plus_uncorrected": (made(far, cells_alone), "no correction (ToMe: Bolya et al. 2023)"),
    # others
    "nystrom": (baselines.nystrom, "Nystromformer without convolution (Xiong et al. 2021)"),
    "nystrom_kmeans": (baselines.nystrom_kmeans, "the same, means of clusters (Zhang et al. 2008)"),
    "clustered": (baselines.clustered, "clustered attention (Vyas et al. 2020), rows only"),
    "clustered_improved": (baselines.clustered_improved, "improved, with count heavy keys (Vyas et al. 2020)"),
    "performer": (baselines.performer, "FAVOR+, 2 count features (Choromanski et al. 2021)"),
    "mean": (baselines.mean, "the mean value for every query"),
}
CANDIDATES = {name: Candidate(*pair) for name, pair in CANDIDATES.items()}
