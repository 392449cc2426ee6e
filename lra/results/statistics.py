"""All statistics of the report: spreads over seeds, significance tests, normalised scores and bootstrap intervals.

Scores of a mechanism on several tasks are a list with one array (seeds,) per task. Normalised scores map chance to 0
and a perfect score to 1. Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
sections 4.1 and 4.3.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev, variance

import numpy as np
import pandas as pd
from scipy import stats

SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
RESAMPLES = 2000
# A gain of fewer standard errors is not significant.
STANDARD_ERRORS = 2
# A seed counts as solving a task from this normalised score on.
SOLVED = 0.9


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for a single value."""
    return stdev(values) if len(values) > 1 else None


def p_value(a: Mapping[int, float], b: Mapping[int, float]) -> float | None:
    """Test whether two sets of scores have different means: Welch's two-sided t-test.

    Seeds are not paired: the same seed of two mechanisms shares nothing but the order of the examples.

    Args:
        a, b: scores by seed.

    Returns:
        The p-value; None if a set has fewer than two seeds.
    """
    if min(len(a), len(b)) < 2:
        return None
    x = list(a.values())
    y = list(b.values())

    # Without any variance the statistic is infinite, or 0 / 0.
    if variance(x) + variance(y) == 0:
        return 1.0 if x[0] == y[0] else 0.0

    test = stats.ttest_ind_from_stats(mean(x), stdev(x), len(x), mean(y), stdev(y), len(y), equal_var=False)
    return float(test.pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for multiple comparisons; Holm 1979.

    Args:
        p_values: p-value of each comparison.

    Returns:
        The corrected values, at most 1 and never below the one of a smaller p-value.
    """
    # Smallest first.
    p = pd.Series(p_values, dtype=float).sort_values(kind="stable")
    # The i-th smallest of m values is multiplied by m - i + 1.
    factors = range(len(p), 0, -1)
    corrected = (p * factors).clip(upper=1.0)
    return corrected.cummax().to_dict()


def gain_error(scores: Sequence[float], control: Sequence[float]) -> float | None:
    """Compute the standard error of a difference of means, sqrt(s1²/n1 + s2²/n2).

    Args:
        scores, control: scores of independent seeds.

    Returns:
        The standard error; None if a side has fewer than two seeds.
    """
    if min(len(scores), len(control)) < 2:
        return None
    score_variance = variance(scores) / len(scores)
    control_variance = variance(control) / len(control)
    return math.sqrt(score_variance + control_variance)


def normalised(score: float, chance: float) -> float:
    """Normalise a score so that chance is 0 and 100 is 1; below chance it is negative.

    Args:
        score: score in percent.
        chance: baseline score in percent; the result is 0 for a baseline of 100.
    """
    return (score - chance) / (100.0 - chance) if chance < 100 else 0.0


def mean_over_tasks(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Average over tasks the mean over seeds, so that tasks have equal weights.

    Args:
        scores: scores of each task, (..., seeds).

    Returns:
        (...).
    """
    return np.mean([values.mean(-1) for values in scores], axis=0)


def interquartile_mean(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Average the middle half of all scores.

    Args:
        scores: scores of each task, (..., seeds).

    Returns:
        (...).
    """
    return stats.trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1)


def interval(
    scores: Sequence[np.ndarray],
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """Estimate the 95 % confidence interval of a mean by a percentile bootstrap stratified by task.

    Args:
        scores: scores of each task, (seeds,).
        statistic: ``mean_over_tasks`` or ``interquartile_mean``.
        seed: random seed of the resampling.

    Returns:
        The lower and the upper end.
    """
    rng = np.random.default_rng(seed)
    resamples = []
    for values in scores:
        indices = rng.integers(len(values), size=(RESAMPLES, len(values)))
        resamples.append(values[indices])  # (resamples, seeds)
    # The statistic of every resample.
    low, high = np.quantile(statistic(resamples), _interval_quantiles())
    return float(low), float(high)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Compute Spearman's rank correlation with its 95 % interval by a percentile bootstrap over the pairs.

    Args:
        x, y: scores of the same mechanisms.

    Returns:
        The correlation, the lower and the upper end. Resamples of a single pair have no correlation and are left out.
    """
    rng = np.random.default_rng(0)
    indices = rng.integers(len(x), size=(RESAMPLES, len(x)))
    # Spearman's correlation is Pearson's correlation of the ranks.
    x_ranks = pd.DataFrame(np.array(x)[indices]).rank(axis=1)  # (resamples, pairs)
    y_ranks = pd.DataFrame(np.array(y)[indices]).rank(axis=1)
    correlations = x_ranks.corrwith(y_ranks, axis=1)
    low, high = correlations.quantile(_interval_quantiles())
    correlation = stats.spearmanr(x, y).statistic
    return float(correlation), float(low), float(high)


def permutation_test(a: Sequence[np.ndarray], b: Sequence[np.ndarray], *, draws: int = 9999, seed: int = 0) -> float:
    """Test whether two mechanisms have equal scores, by permutations within each task.

    The statistic is the absolute difference of the means over tasks. Seeds are not paired, see ``p_value``.

    Args:
        a, b: scores of the same tasks, (seeds,) each.
        draws: number of random permutations.
        seed: random seed of the permutations.

    Returns:
        The p-value, at least 1 / (draws + 1): the probability of a difference at least this large if the labels of
        the runs are exchanged at random.
    """
    rng = np.random.default_rng(seed)
    observed = 0.0
    permuted = np.zeros(draws)
    for a_scores, b_scores in zip(a, b, strict=True):
        # Exchange the labels of the runs of this task, once for each draw.
        pooled = np.concatenate([a_scores, b_scores])
        shuffled = rng.permuted(np.broadcast_to(pooled, (draws, len(pooled))), axis=1)
        num_a = len(a_scores)
        observed += a_scores.mean() - b_scores.mean()
        permuted += shuffled[:, :num_a].mean(1) - shuffled[:, num_a:].mean(1)

    # Differences that are equal up to rounding count as reached.
    num_larger = (np.abs(permuted) >= abs(observed) - 1e-12).sum()
    return float((1 + num_larger) / (draws + 1))


def _interval_quantiles() -> list[float]:
    return [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
