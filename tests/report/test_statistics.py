"""Statistics over tasks and seeds: known answers, coverage of intervals and false positives on made-up scores."""

import math

import numpy as np
import pytest
from scipy import stats

from lra.results.score_cells import gain, mark, score
from lra.results.statistics import (
    holm,
    interquartile_mean,
    interval,
    mean_over_tasks,
    normalised,
    p_value,
    permutation_test,
    rank_correlation,
)


def test_means_of_known_numbers():
    assert [normalised(*case) for case in ((25, 25), (100, 25), (10, 25), (100, 100))] == [0, 1, pytest.approx(-0.2), 0]
    # the middle half of 0..7 is 2, 3, 4, 5; however far the outer ones are
    assert interquartile_mean([np.array([0.0, 1, 2, 3]), np.array([4.0, 5, 6, 700])]) == 3.5
    # tasks weigh alike whatever their seeds
    assert mean_over_tasks([np.array([0.0, 1.0]), np.array([3.0])]) == 1.75


def made_up(rng, tasks=4, seeds=5, centre=0.5):
    return [centre + 0.2 * task + rng.normal(0, 0.1, seeds) for task in range(tasks)]


@pytest.mark.parametrize("statistic", [mean_over_tasks, interquartile_mean])
def test_interval_covers_the_mean_of_many_seeds(statistic):
    """The bootstrap of 20 seeds a task covers in 95 % of draws, less a little for so few; 3 standard errors allowed."""
    truth = statistic(made_up(np.random.default_rng(1), seeds=100_000))
    covered = 0
    for draw in range(200):
        low, high = interval(made_up(np.random.default_rng(draw), seeds=20), statistic, seed=draw)
        covered += low <= truth <= high
    assert covered / 200 > 0.95 - 0.03 - 3 * (0.95 * 0.05 / 200) ** 0.5


def test_intervals_are_those_of_scipy_for_one_task():
    scores = np.random.default_rng(3).normal(0.5, 0.1, 40)
    ours = interval([scores], interquartile_mean)
    by_scipy = stats.bootstrap(
        (scores,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", n_resamples=20_000, rng=0
    ).confidence_interval
    # ends of 2,000 resamples scatter by about a tenth of the width
    assert ours == pytest.approx(tuple(by_scipy), abs=0.1 * (by_scipy.high - by_scipy.low))


def test_permutations_of_one_task_are_those_of_scipy():
    rng = np.random.default_rng(0)
    one, other = rng.normal(0, 1, 5), rng.normal(1, 1, 5)
    exact = stats.permutation_test(
        (one, other), lambda a, b: abs(a.mean() - b.mean()), alternative="greater", n_resamples=np.inf
    ).pvalue
    ours = permutation_test([one], [other])
    assert ours == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 9999) ** 0.5 + 1e-4)


def test_false_positives_are_5_percent():
    """1,000 draws without a difference, tasks of very different difficulty: 5 % within 3 standard errors."""
    rng = np.random.default_rng(0)
    found = [permutation_test(made_up(rng), made_up(rng), draws=399, seed=draw) <= 0.05 for draw in range(1000)]
    assert abs(np.mean(found) - 0.05) < 3 * (0.05 * 0.95 / 1000) ** 0.5


def test_a_difference_of_all_tasks_is_found_and_one_of_two_runs_never():
    rng = np.random.default_rng(0)
    assert permutation_test(made_up(rng), made_up(rng, centre=0.7)) < 1e-3
    assert permutation_test([np.array([0.0])], [np.array([1.0])]) > 0.9


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_p_values_are_those_of_scipy_and_of_what_it_has_none_for():
    rng = np.random.default_rng(0)
    a, b = (dict(enumerate(rng.normal(mean, std, seeds))) for mean, std, seeds in ((37, 1, 5), (37.5, 2, 4)))
    test = stats.ttest_ind(list(a.values()), list(b.values()), equal_var=False)
    assert p_value(a, b) == pytest.approx(test.pvalue, rel=1e-9)
    assert p_value({0: 1.0}, {0: 2.0, 1: 3.0}) is None
    assert p_value({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}) == 0.0
    assert p_value({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}) == 1.0


def marks(*columns):
    return [cell.mark for cell in mark([score(s) for s in columns], columns)]


def test_bold_is_significantly_better_than_every_other():
    high, low, close = ({k: level + (-1) ** k for k in range(4)} for level in (50, 30, 49.5))
    assert marks(low, high, {}) == ["", "best", ""]
    assert marks(low, high, close) == ["", "tied", "tied"]
    assert marks(low, high, {0: 31.0}) == ["", "", ""]  # no test of one seed
    assert marks({0: 50.0}, low) == marks(high, {}) == ["", ""]
    assert marks(high, high) == ["tied", "tied"]


def test_marks_are_corrected_for_the_number_of_comparisons():
    high, near = {k: 50.0 + (-1) ** k for k in range(4)}, {k: 48.0 + (-1) ** k for k in range(4)}
    p = stats.ttest_ind(list(high.values()), list(near.values()), equal_var=False).pvalue
    assert p < 0.05 < 2 * p
    assert marks(high, near) == ["best", ""]
    assert marks(high, near, near) == ["tied", "tied", "tied"]


@pytest.mark.parametrize("shift, mark", [(1.999, "tied"), (2.001, ""), (-2.001, ""), (-1.999, "tied")])
def test_a_gain_of_two_standard_errors_is_significant(shift, mark):
    scores = {0: -1.0, 1: 1.0}  # variance 2, so that the error of the difference is sqrt(2)
    moved = {seed: score + shift * math.sqrt(2) for seed, score in scores.items()}
    assert gain(moved, scores).mark == mark
    assert gain({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}).mark == "tied"


def test_the_interval_holds_the_correlation_and_widens_with_fewer_mechanisms():
    _, *many = rank_correlation(list(range(40)), [x + 10 * (x % 3) for x in range(40)])
    _, *few = rank_correlation(list(range(6)), [x + 10 * (x % 3) for x in range(6)])
    assert few[1] - few[0] > many[1] - many[0]
    assert rank_correlation(range(5), range(5)) == pytest.approx((1.0, 1.0, 1.0))
