"""Statistics over seeds: spreads, significance tests, normalised scores and confidence intervals.

Scores of a mechanism on several tasks are a list with one array (seeds,) per task. Normalised scores map chance to 0
and a perfect score to 1. Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
sections 4.1 and 4.3.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev, variance
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy import stats

Key = TypeVar("Key")
# Scores on several tasks: one array (seeds,) per task.
Scores = Sequence[np.ndarray]
SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
RESAMPLES = 2000
# A seed counts as solving a task from this normalised score on.
SOLVED = 0.9


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def p_value(a: Mapping[int, float], b: Mapping[int, float]) -> float | None:
    """Test whether two sets of scores have different means: Welch's two-sided t-test.

    Seeds are not paired, although two mechanisms share the order of the examples and some initial weights of a seed.

    Args:
        a, b: scores by seed.

    Returns:
        The p-value; None if a set has fewer than two seeds, or if the means differ and neither set varies.
    """
    if min(len(a), len(b)) < 2:
        return None
    x = list(a.values())
    y = list(b.values())

    # Scores are counts of examples, so equal scores do not prove zero variance: different means have no test then.
    if variance(x) + variance(y) == 0:
        return 1.0 if x[0] == y[0] else None

    test = stats.ttest_ind_from_stats(
        mean1=mean(x),
        std1=stdev(x),
        nobs1=len(x),
        mean2=mean(y),
        std2=stdev(y),
        nobs2=len(y),
        equal_var=False,
    )
    return float(test.pvalue)


def degrees_of_freedom(terms: Sequence[tuple[float, int]], total: float) -> float:
    """Compute the degrees of freedom of a sum of variances; Satterthwaite 1946, Welch 1947.

    Args:
        terms: each variance with its degrees of freedom.
        total: their sum, or a larger estimate of it.
    """
    scatter = 0.0
    for term, degrees in terms:
        # A term of zero may have no degrees of freedom.
        if term:
            scatter += term**2 / degrees
    return total**2 / scatter


def student_quantile(freedom: float) -> float:
    """Return the number of standard errors in half a 95 % interval of Student's t distribution."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


def student_p_value(statistic: float, freedom: float) -> float:
    """Return the two-sided p-value of a statistic with Student's t distribution."""
    return float(2 * stats.t.sf(abs(statistic), freedom))


def welch_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Compute the 95 % interval of the difference of means of independent values with unequal variances.

    Args:
        a, b: at least two values each.

    Returns:
        The lower and the upper end; None without any variance.
    """
    difference = mean(a) - mean(b)
    # The variance of each mean, with its degrees of freedom.
    terms = []
    for side in (a, b):
        n = len(side)
        terms.append((variance(side) / n, n - 1))
    half_width = interval_half_width(terms)
    if not half_width:
        return None
    return difference - half_width, difference + half_width


def interval_half_width(terms: Sequence[tuple[float, int]]) -> float:
    """Compute half a 95 % t interval of a sum of independent means; zero without any variance.

    Args:
        terms: the variance of each mean with its degrees of freedom.
    """
    total = sum(term for term, _ in terms)
    if not total:
        return 0.0
    freedom = degrees_of_freedom(terms, total)
    return student_quantile(freedom) * math.sqrt(total)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Correct p-values for multiple comparisons; Holm 1979.

    Args:
        p_values: p-value of each comparison.

    Returns:
        The corrected values, at most 1 and never below the one of a smaller p-value.
    """
    # Smallest first.
    p = pd.Series(p_values, dtype=float)
    p = p.sort_values(kind="stable")
    # The i-th smallest of m values is multiplied by m - i + 1.
    factors = range(len(p), 0, -1)
    corrected = (p * factors).clip(upper=1.0)
    return corrected.cummax().to_dict()


def normalised(score: float, chance: float) -> float:
    """Normalise a score so that chance is 0 and 100 is 1; below chance it is negative.

    Args:
        score: score in percent.
        chance: baseline score in percent; the result is 0 for a baseline of 100.
    """
    if chance >= 100:
        return 0.0
    return (score - chance) / (100.0 - chance)


def mean_over_tasks(scores: Scores) -> np.ndarray:
    """Average over tasks the mean over seeds, so that tasks have equal weights.

    Args:
        scores: scores of each task, (..., seeds).

    Returns:
        (...).
    """
    means = [values.mean(-1) for values in scores]
    return np.mean(means, axis=0)


def mean_interval(scores: Scores) -> tuple[float, float] | None:
    """Compute the 95 % t interval of ``mean_over_tasks``, whose variance is Σ s²/n / T² over the T tasks.

    Args:
        scores: scores of each task, (seeds,).

    Returns:
        The lower and the upper end, both the mean if there is no variance; None if a task has a single seed.
    """
    if min(map(len, scores)) < 2:
        return None
    # The variance of each task's share of the mean, with its degrees of freedom.
    num_tasks = len(scores)
    terms = []
    for values in scores:
        n = len(values)
        task_variance = float(values.var(ddof=1)) / n
        terms.append((task_variance / num_tasks**2, n - 1))
    center = float(mean_over_tasks(scores))
    half_width = interval_half_width(terms)
    return center - half_width, center + half_width


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Average the middle half of all scores.

    Args:
        scores: scores of each task, (..., seeds).

    Returns:
        (...).
    """
    pooled = np.concatenate(scores, axis=-1)  # (..., seeds of all tasks)
    return stats.trim_mean(pooled, 0.25, axis=-1)


def bootstrap_interval(
    scores: Scores,
    statistic: Callable[[Scores], np.ndarray],
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """Estimate the 95 % confidence interval of a statistic by a percentile bootstrap stratified by task.

    It is too narrow with few seeds: n resampled seeds vary by (n - 1) / n of the variance.

    Args:
        scores: scores of each task, (seeds,).
        statistic: such as ``interquartile_mean``.
        seed: random seed of the resampling.

    Returns:
        The lower and the upper end.
    """
    rng = np.random.default_rng(seed)
    resamples = []
    for values in scores:
        num_seeds = len(values)
        indices = rng.integers(num_seeds, size=(RESAMPLES, num_seeds))
        resamples.append(values[indices])  # (resamples, seeds)
    # The statistic of every resample.
    resampled = statistic(resamples)  # (resamples)
    low, high = np.quantile(resampled, _interval_quantiles())
    return float(low), float(high)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Compute Spearman's rank correlation with its 95 % interval by a percentile bootstrap over the pairs.

    Args:
        x, y: scores of the same mechanisms.

    Returns:
        The correlation, the lower and the upper end. Resamples in which x or y is constant are left out.
    """
    # Resample the pairs.
    rng = np.random.default_rng(0)
    num_pairs = len(x)
    indices = rng.integers(num_pairs, size=(RESAMPLES, num_pairs))
    # Spearman's correlation is Pearson's correlation of the ranks.
    x_ranks = _ranks(x, indices)
    y_ranks = _ranks(y, indices)
    # A constant resample has the correlation NaN, which ``quantile`` leaves out.
    correlations = x_ranks.corrwith(y_ranks, axis=1)
    low, high = correlations.quantile(_interval_quantiles())
    correlation = stats.spearmanr(x, y).statistic
    return float(correlation), float(low), float(high)


def _ranks(values: Sequence[float], indices: np.ndarray) -> pd.DataFrame:
    """Return the ranks of resampled values within each resample, (resamples, values)."""
    resamples = np.array(values)[indices]
    return pd.DataFrame(resamples).rank(axis=1)


def permutation_test(a: Scores, b: Scores, *, draws: int = 9999, seed: int = 0) -> float:
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
        observed += a_scores.mean() - b_scores.mean()
        # Exchange the labels of the runs of this task, once for each draw.
        pooled = np.concatenate([a_scores, b_scores])
        copies = np.broadcast_to(pooled, (draws, len(pooled)))
        shuffled = rng.permuted(copies, axis=1)  # (draws, runs)
        a_shuffled = shuffled[:, : len(a_scores)]
        b_shuffled = shuffled[:, len(a_scores) :]
        permuted += a_shuffled.mean(1) - b_shuffled.mean(1)

    # Differences that are equal up to rounding count as reached.
    threshold = abs(observed) - 1e-12
    num_reached = (np.abs(permuted) >= threshold).sum()
    return float((1 + num_reached) / (draws + 1))


def _interval_quantiles() -> list[float]:
    return [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
