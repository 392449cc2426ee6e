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
from . import baselines, inverses, landmarks
from .cell_variants import cells_alone, heavy_keys, inverted, kernel, nearest_row, ridge, smoothed
from .cur_variants import KeptFactors, least_squares, missing_mass, product, row_sums, values_first

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


def made(choose: landmarks.Choice, combine: Callable[..., Tensor], **options) -> Function:
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


def sampled(**options) -> Function:
    """Make CUR with the least-squares M on twice as many rows as are kept, by position."""

    def function(q, k, v, count):
        x = KeptFactors(q, k, v, *step(q, k, v, count))
        rows = landmarks.by_position(q, min(2 * count, q.shape[2]))
        return x.copied(least_squares(x, rows, **options))

    return function


step, far = landmarks.select("step"), landmarks.select("farthest")
paper, damped = partial(cubic, steps=4), partial(tikhonov, ridge=0.1)
inverted_cubic = {"combine": product, "inverse": paper}
smooth = {"combine": smoothed, "smoother": kernel}
CHOICES = {
    "kmeans_pp": (landmarks.alike(landmarks.kmeans_pp), "seeds of k-means++ (Arthur and Vassilvitskii 2007)"),
    "leverage": (landmarks.alike(landmarks.leverage), "largest ridge leverage scores (Mahoney and Drineas 2009)"),
    "segments": (landmarks.alike(landmarks.segments), "largest absolute sum of each segment"),
    "value_norm": (landmarks.value_norm, "rows by position, columns by |k| |v| (Drineas et al. 2006)"),
    "received": (landmarks.received, "rows by position, columns by attention received (H2O: Zhang et al. 2023)"),
}
CANDIDATES = {
    "cur_step": (cur(), "the paper's: cubic inverse of 4 steps, rows and columns by position"),
    # selection of rows and columns
    "cur_abs": (cur(score="abs"), "largest absolute sums (the paper's)"),
    "cur_random": (cur(score="random", resample="always"), "drawn uniformly (the paper's)"),
    "cur_farthest": (cur(score="farthest"), "farthest-point traversal (Gonzalez 1985)"),
    **{f"cur_{name}": (made(rule, **inverted_cubic), what) for name, (rule, what) in CHOICES.items()},
    # the inverse
    "cur_cubic_1": (cur(pinv=partial(cubic, steps=1)), "cubic inverse of 1 step"),
    "cur_cubic_6": (cur(pinv=partial(cubic, steps=6)), "cubic inverse of 6 steps, Nystromformer's"),
    "cur_true": (cur(pinv=exact), "Moore-Penrose inverse"),
    "cur_tikhonov": (cur(pinv=damped), "Tikhonov (1963), ridge 0.1"),
    "cur_tikhonov_more": (cur(pinv=partial(tikhonov, ridge=0.3)), "Tikhonov (1963), ridge 0.3"),
    "cur_cutoff": (cur(pinv=partial(exact, rtol=0.1)), "truncated SVD, from 0.1 of the largest (Hansen 1987)"),
    "cur_damped_cubic": (
        cur(pinv=partial(inverses.damped_cubic, steps=4, ridge=0.1)),
        "cubic inverse of the damped uᵀu, 4 steps",
    ),
    "cur_row_normalised": (cur(pinv=inverses.row_normalised), "cubic inverse with rows that sum to one"),
    # combination
    "cur_missing_mass": (made(step, missing_mass, inverse=paper), "missing mass to the mean value"),
    "cur_row_sums": (made(step, row_sums, inverse=paper), "divided by row sums (Performer, equation 4)"),
    "cur_values_first": (
        made(step, values_first, inverse=damped),
        "Tikhonov towards the kept values (Hansen 1998), ridge 0.1",
    ),
    "cur_oversampled": (
        made(landmarks.uneven(step, 1.5), product, inverse=damped),
        "3/2 count rows, 1/2 count columns, ridge 0.1 (Park and Nakatsukasa 2024)",
    ),
    "cur_least_squares": (sampled(), "M minimises |S(A - C M R)| over 2 count rows S"),
    "cur_least_squares_damped": (sampled(inverse=damped), "the same, both inverses Tikhonov's, ridge 0.1"),
    "cur_least_squares_farthest": (
        made(far, least_squares),
        "farthest; M minimises |A - C M R| (Stewart 1999), which needs all of A",
    ),
    "cur_least_squares_all": (
        made(step, least_squares),
        "M minimises |A - C M R| (Stewart 1999), which needs all of A",
    ),
    # cells of keys
    "cur_plus": (plus(), "cells of keys, smoothed correction, farthest (lra.ops.cells)"),
    **{
        f"plus_{score}": (plus(score=score, resample="always"), f"score={score}") for score in ("step", "abs", "random")
    },
    **{f"plus_{name}": (made(rule, **smooth), what) for name, (rule, what) in CHOICES.items()},
    "plus_half_received": (made(landmarks.spread_and_received, **smooth), "half of the columns by attention received"),
    "plus_rows": (made(landmarks.uneven(far, 1.5), **smooth), "3/2 count rows, 1/2 count columns"),
    "plus_columns": (made(landmarks.uneven(far, 0.5), **smooth), "1/2 count rows, 3/2 count columns"),
    "plus_lloyd": (made(far, **smooth, lloyd=1), "cells drawn anew around their means once (Lloyd 1982)"),
    "plus_heavy": (made(far, heavy_keys, share=0.5), "count / 2 heavy keys of each row exactly (Vyas et al. 2020)"),
    "plus_kept": (made(far, **smooth, averaged=False), "kept keys and values in place of cells"),
    "plus_uncorrected": (made(far, cells_alone), "no correction (ToMe: Bolya et al. 2023)"),
    "plus_once": (made(far, smoothed, smoother=partial(kernel, rounds=1)), "one round of smoothing (Watson 1964)"),
    "plus_nearest": (made(far, smoothed, smoother=nearest_row), "the nearest row's error"),
    "plus_narrow": (made(far, smoothed, smoother=partial(kernel, width=0.5)), "half as wide a kernel"),
    "plus_wide": (made(far, smoothed, smoother=partial(kernel, width=2.0)), "twice as wide"),
    "plus_ridge": (made(far, smoothed, smoother=ridge), "a Gaussian process's mean (Rasmussen and Williams 2006)"),
    "plus_cubic": (
        made(far, inverted, inverse=partial(cubic, steps=1)),
        "cubic inverse of 1 step in place of smoothing",
    ),
    "plus_tikhonov": (
        made(far, inverted, inverse=partial(tikhonov, ridge=0.5)),
        "Tikhonov, ridge 0.5, in place of smoothing",
    ),
    # others
    "nystrom": (baselines.nystrom, "Nystromformer without convolution (Xiong et al. 2021)"),
    "nystrom_kmeans": (baselines.nystrom_kmeans, "the same, means of clusters (Zhang et al. 2008)"),
    "clustered": (baselines.clustered, "clustered attention (Vyas et al. 2020), rows only"),
    "clustered_improved": (baselines.clustered_improved, "improved, with count heavy keys (Vyas et al. 2020)"),
    "performer": (baselines.performer, "FAVOR+, 2 count features (Choromanski et al. 2021)"),
    "mean": (baselines.mean, "the mean value for every query"),
}
CANDIDATES = {name: Candidate(*pair) for name, pair in CANDIDATES.items()}
