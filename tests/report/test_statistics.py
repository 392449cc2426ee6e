"""Statistics over tasks and seeds: known answers, coverage of intervals and false positives on made-up scores."""

import numpy as np
import pytest
from scipy import stats

from lra.report.statistics import holm, interquartile_mean, interval, mean_over_tasks, normalised, permutation_test


def test_floor_is_0_and_ceiling_1():
    assert normalised(25, floor=25) == 0
    assert normalised(100, floor=25) == 1
    assert normalised(10, floor=25) == pytest.approx(-0.2)


def test_interquartile_mean_of_known_numbers():
    # the middle half of 0..7 is 2, 3, 4, 5; however far the outer ones are
    assert interquartile_mean([np.array([0.0, 1, 2, 3]), np.array([4.0, 5, 6, 700])]) == 3.5


def test_mean_over_tasks_weighs_tasks_alike_whatever_their_seeds():
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


def test_equal_seeds_have_an_interval_without_width():
    assert interval([np.full(5, 0.5)] * 2, mean_over_tasks) == (0.5, 0.5)


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


def test_a_difference_of_all_tasks_is_found():
    rng = np.random.default_rng(0)
    assert permutation_test(made_up(rng), made_up(rng, centre=0.7)) < 1e-3


def test_one_run_against_one_is_never_significant():
    assert permutation_test([np.array([0.0])], [np.array([1.0])]) > 0.9


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
