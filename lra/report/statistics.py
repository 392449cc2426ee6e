"""Statistics over tasks and seeds: normalised scores, their means with intervals, and comparisons.

Scores of a mechanism are an array (tasks, seeds) of shares of the way from floor to 100. Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice", sections 4.1 and 4.3.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import trim_mean

LEVEL = 0.95  # of an interval
RESAMPLES = 2000
SOLVED = 0.9  # share of the way


def normalised(score: float, floor: float) -> float:
    """The share of the way from floor to 100 that a score has gone; below 0 under the floor, 0 for a floor of 100."""
    return (score - floor) / (100.0 - floor) if floor < 100 else 0.0


def mean_over_tasks(scores: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over tasks of the mean over seeds.

    Args:
        scores: those of each task, (..., seeds).

    Returns:
        (...).
    """
    return np.mean([values.mean(-1) for values in scores], axis=0)


def interquartile_mean(scores: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the middle half of all scores.

    Args:
        scores: those of each task, (..., seeds).

    Returns:
        (...).
    """
    return trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1)


def interval(
    scores: Sequence[np.ndarray], statistic: Callable[[Sequence[np.ndarray]], np.ndarray], *, seed: int = 0
) -> tuple[float, float]:
    """Estimate the 95 % interval of a mean by a percentile bootstrap stratified by task.

    Args:
        scores: those of each task, (seeds,).
        statistic: ``mean_over_tasks`` or ``interquartile_mean``.
        seed: seed of the resampling.

    Returns:
        The lower and the upper end.
    """
    rng = np.random.default_rng(seed)
    drawn = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for values in scores]
    low, high = np.quantile(statistic(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def permutation_test(
    one: Sequence[np.ndarray], other: Sequence[np.ndarray], *, draws: int = 9999, seed: int = 0
) -> float:
    """Test whether two mechanisms have the same scores, by permutations within each task.

    The statistic is the absolute difference of the means over tasks. Seeds are not paired: the same seed of two
    mechanisms has nothing in common but the order of the examples.

    Args:
        one, other: scores of the same tasks, (seeds,) each.
        draws: number of random permutations.
        seed: seed of the permutations.

    Returns:
        The probability of a difference at least as large if the labels of the runs are exchanged at random, at least
        1 / (draws + 1).
    """
    rng, observed, drawn = np.random.default_rng(seed), 0.0, np.zeros(draws)
    for a, b in zip(one, other, strict=True):
        both = np.concatenate([a, b])
        order = rng.permuted(np.broadcast_to(both, (draws, len(both))), axis=1)
        observed += a.mean() - b.mean()
        drawn += order[:, : len(a)].mean(1) - order[:, len(a) :].mean(1)
    reached = np.abs(drawn) >= abs(observed) - 1e-12  # equal up to rounding
    return float((1 + reached.sum()) / (draws + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number; Holm 1979.

    Args:
        p_values: one for each comparison.

    Returns:
        The corrected values, never below an earlier one in the order of size, at most 1.
    """
    p = pd.Series(p_values, dtype=float).sort_values(kind="stable")
    return (p * range(len(p), 0, -1)).clip(upper=1.0).cummax().to_dict()
