"""Statistics over tasks and seeds: known values, scipy as reference, interval coverage and false-positive rate."""

import math

import numpy as np
import pytest
from scipy import stats

from lra.results import statistics
from lra.results.score_cells import gain_column, mark, score
from lra.results.statistics import bootstrap_interval, interquartile_mean, mean_over_tasks, normalised, permutation_test


def test_means_and_holm_match_hand_computed_values():
    assert [normalised(*case) for case in ((25, 25), (100, 25), (10, 25), (100, 100))] == [0, 1, pytest.approx(-0.2), 0]
    # The middle half of the eight scores is 2, 3, 4, 5; the outlier 700 has no effect.
    assert interquartile_mean([np.array([0.0, 1, 2, 3]), np.array([4.0, 5, 6, 700])]) == 3.5
    # Every task has the same weight, whatever its number of seeds: (0.5 + 3) / 2.
    assert mean_over_tasks([np.array([0.0, 1.0]), np.array([3.0])]) == 1.75
    assert statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
    assert statistics.holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def simulate(rng, tasks=4, seeds=5, centre=0.5):
    return [centre + 0.2 * task + rng.normal(0, 0.1, seeds) for task in range(tasks)]


@pytest.mark.parametrize("statistic", [mean_over_tasks, interquartile_mean])
def test_bootstrap_interval_has_nominal_coverage(statistic):
    """Nominal coverage is 95 %; allow 3 points for only 20 seeds per task and 3 binomial standard errors."""
    truth = statistic(simulate(np.random.default_rng(1), seeds=100_000))
    covered, widths, values = 0, [], []
    for draw in range(200):
        scores = simulate(np.random.default_rng(draw), seeds=20)
        low, high = bootstrap_interval(scores, statistic, seed=draw)
        covered += low <= truth <= high
        widths.append(high - low)
        values.append(statistic(scores))
    assert covered / 200 > 0.95 - 0.03 - 3 * (0.95 * 0.05 / 200) ** 0.5
    # Resampling the tasks too would make the interval about ten times as wide as the spread over draws.
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.std(values), rel=0.3)


def test_t_interval_of_mean_matches_scipy_and_has_nominal_coverage():
    """One task is Student's interval; two tasks are half of Welch's interval of a difference of the negated scores."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0.5, 0.1, 5), rng.normal(0.2, 0.4, 4)
    one_task = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    assert statistics.mean_interval([a]) == pytest.approx((one_task.low, one_task.high))
    two_tasks = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    assert statistics.mean_interval([a, b]) == pytest.approx((two_tasks.low / 2, two_tasks.high / 2))
    assert statistics.mean_interval([a, np.array([1.0])]) is None
    assert statistics.mean_interval([np.ones(3)]) == (1.0, 1.0)
    # Only the first task varies, so that few seeds decide: the bootstrap covers the mean in 84 % of the draws.
    covered = 0
    for _ in range(1000):
        low, high = statistics.mean_interval([rng.normal(0, 1, 5), np.ones(5)])
        covered += low <= 0.5 <= high
    assert covered / 1000 == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 1000) ** 0.5)


def test_bootstrap_interval_matches_scipy_for_one_task():
    scores = np.random.default_rng(3).normal(0.5, 0.1, 40)
    trimmed_mean = lambda x, axis: stats.trim_mean(x, 0.25, axis=axis)
    resamples = stats.bootstrap((scores,), trimmed_mean, method="percentile", n_resamples=20_000, rng=0)
    low, high = resamples.confidence_interval
    # The end points of 2,000 resamples vary by about a tenth of the interval's width.
    assert bootstrap_interval([scores], interquartile_mean) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_permutation_test_matches_scipy_and_needs_several_seeds_per_group():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 5), rng.normal(1, 1, 5)
    distance = lambda a, b: abs(a.mean() - b.mean())
    exact = stats.permutation_test((a, b), distance, alternative="greater", n_resamples=np.inf).pvalue
    assert permutation_test([a], [b]) == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 9999) ** 0.5 + 1e-4)
    # A shift by two standard deviations is significant, a single seed per group never is.
    assert permutation_test(simulate(rng), simulate(rng, centre=0.7)) < 1e-3
    assert permutation_test([np.array([0.0])], [np.array([1.0])]) > 0.9
    # Equal scores in another order differ by rounding.
    assert permutation_test([np.array([0.1, 0.2, 0.3])], [np.array([0.3, 0.2, 0.1])]) == 1


def test_permutation_test_has_5_percent_false_positives():
    """1,000 draws without a difference between the groups: 5 % are rejected, within 3 standard errors."""
    rng = np.random.default_rng(0)
    rejects = [permutation_test(simulate(rng), simulate(rng), draws=399, seed=draw) <= 0.05 for draw in range(1000)]
    assert abs(np.mean(rejects) - 0.05) < 3 * (0.05 * 0.95 / 1000) ** 0.5


def test_p_value_matches_scipy_and_handles_zero_variance():
    rng = np.random.default_rng(0)
    a, b = (dict(enumerate(rng.normal(mean, std, seeds))) for mean, std, seeds in ((37, 1, 5), (37.5, 2, 4)))
    test = stats.ttest_ind(list(a.values()), list(b.values()), equal_var=False)
    assert statistics.p_value(a, b) == pytest.approx(test.pvalue, rel=1e-9)
    assert statistics.p_value({0: 1.0}, {0: 2.0, 1: 3.0}) is None
    assert statistics.p_value({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}) is None
    assert statistics.p_value({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}) == 1.0


def marks(*columns):
    return [cell.mark for cell in mark([score(s) for s in columns], columns)]


def test_best_mark_needs_significance_over_every_other():
    high, low, close = ({k: level + (-1) ** k for k in range(4)} for level in (50, 30, 49.5))
    assert marks(low, high, {}) == ["", "best", ""] and marks(low, high, close) == ["", "tied", "tied"]
    # A single seed cannot be tested.
    assert marks(low, high, {0: 31.0}) == ["", "", ""]
    assert marks({0: 50.0}, low) == marks(high, {}) == ["", ""] and marks(high, high) == ["tied", "tied"]
    # With two others, Holm's correction doubles the smaller p-value.
    below = {k: 48.0 + (-1) ** k for k in range(4)}
    p = stats.ttest_ind(list(high.values()), list(below.values()), equal_var=False).pvalue
    assert p < 0.05 < 2 * p and marks(high, below) == ["best", ""]
    assert marks(high, below, below) == ["tied", "tied", "tied"]


@pytest.mark.parametrize("factor, mark", [(0.999, "tied"), (1.001, ""), (-1.001, ""), (-0.999, "tied")])
def test_gain_above_quantile_of_student_is_significant(factor, mark):
    # Variance 2 with two seeds in each group: the standard error of the difference is sqrt(2 / 2 + 2 / 2). Welch's
    # test has two degrees of freedom, so that 4.3 standard errors are significant.
    scores = {0: -1.0, 1: 1.0}
    shifted = {seed: score + factor * stats.t.ppf(0.975, 2) * math.sqrt(2) for seed, score in scores.items()}
    assert gain_column([(shifted, scores), None])[0].mark == mark
    # Two gains at this significance are not significant together.
    assert [cell.mark for cell in gain_column([(shifted, scores)] * 2)] == ["tied", "tied"]
    assert gain_column([({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0})])[0].mark == "tied"


def test_rank_correlation_interval_widens_with_fewer_mechanisms():
    ends = lambda n: statistics.rank_correlation(range(n), [x + 10 * (x % 3) for x in range(n)])[1:]
    assert np.ptp(ends(6)) > np.ptp(ends(40))
    assert statistics.rank_correlation(range(5), [x**4 for x in range(5)]) == pytest.approx((1.0, 1.0, 1.0))
