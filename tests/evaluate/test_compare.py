"""Comparisons of mechanisms on made-up outcomes whose true difference is known."""

import math

import numpy as np
import pytest

from lra.evaluate import compare

EXAMPLES = 400


def made_up(rng, mean, seeds, easiness, seed_std=0.03):
    """Outcomes (seeds, examples) with the probability mean + effect of the seed + effect of the example."""
    probability = mean + rng.normal(0, seed_std, (seeds, 1)) + easiness
    return (rng.random(probability.shape) < probability).astype(float)


@pytest.mark.parametrize("seeds", [(3, 3), (5, 5), (5, 2)])
def test_intervals_cover_the_true_difference(seeds):
    """95 % of the intervals have to; 600 trials leave a standard deviation of 0.9 %."""
    rng = np.random.default_rng(0)
    trials = 600
    covered = 0
    covered_by_examples_alone = 0
    for _ in range(trials):
        easiness = rng.choice([-0.25, 0.25], EXAMPLES)
        first = made_up(rng, 0.45, seeds[0], easiness)
        second = made_up(rng, 0.40, seeds[1], easiness)
        result = compare.difference(first, second)
        covered += result.low <= 5 <= result.high
        covered_by_examples_alone += abs(result.value - 5) <= 1.96 * result.examples_error
    assert 0.92 <= covered / trials <= 0.985
    assert covered_by_examples_alone / trials < 0.9


def test_equal_mechanisms_are_called_different_in_five_percent_of_trials():
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(600):
        easiness = rng.choice([-0.25, 0.25], EXAMPLES)
        p_values.append(compare.difference(*(made_up(rng, 0.4, 4, easiness) for _ in range(2))).p)
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.08


def test_the_same_examples_make_a_difference_more_precise():
    rng = np.random.default_rng(2)
    # Every example is either solved by all or by none.
    easiness = rng.choice([-0.5, 0.5], EXAMPLES)
    first = made_up(rng, 0.5, 3, easiness, seed_std=0.0)
    second = made_up(rng, 0.5, 3, easiness, seed_std=0.0)
    shuffled = rng.permuted(second, axis=1)
    assert compare.difference(first, second).examples_error < 0.1
    assert compare.difference(first, shuffled).examples_error > 2


def test_one_seed_has_an_error_over_examples_alone():
    rng = np.random.default_rng(3)
    result = compare.difference(made_up(rng, 0.5, 1, np.zeros(EXAMPLES)), made_up(rng, 0.4, 3, np.zeros(EXAMPLES)))
    assert (result.low, result.p, result.standard_error) == (None, None, None) and result.examples_error > 1
    with pytest.raises(ValueError, match=r"400 and 300 examples; score both on the same"):
        compare.difference(np.zeros((2, 400)), np.zeros((2, 300)))


def test_the_error_of_a_score_is_its_spread_over_seeds_and_draws_of_examples():
    rng = np.random.default_rng(5)
    scores = []
    errors = []
    for _ in range(500):
        outcomes = made_up(rng, 0.4, 5, rng.choice([-0.25, 0.25], EXAMPLES))
        scores.append(100 * outcomes.mean())
        errors.append(compare.standard_error(outcomes))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(scores), rel=0.1)
    one = made_up(rng, 0.4, 1, np.zeros(EXAMPLES))
    assert compare.standard_error(one) == pytest.approx(
        100 * math.sqrt(one.mean() * (1 - one.mean()) / EXAMPLES), rel=0.01
    )


def test_pairs_have_the_higher_score_first():
    outcomes = {"low": np.zeros((2, 50)), "high": np.ones((2, 50)), "middle": np.tile([0.0, 1.0], (2, 25))}
    pairs = compare.all_pairs(outcomes)
    assert list(pairs) == [("high", "middle"), ("high", "low"), ("middle", "low")]
    assert pairs["high", "low"].value == 100 and pairs["high", "low"].p == 0


def test_the_significant_gap_is_that_of_two_draws_of_the_test_set():
    """With perfect seeds: the difference of two binomial proportions of 2,000 examples each."""
    gap = compare.significant_gap(
        37.0, examples=2000, seed_std=0.0, seeds=5, published_examples=2000, published_seeds=5
    )
    assert gap.threshold == pytest.approx(1.96 * 100 * math.sqrt(2 * 0.37 * 0.63 / 2000), rel=1e-3)
    assert 2.9 < gap.threshold < 3.1
    rng = np.random.default_rng(4)
    draws = 100 * (rng.binomial(2000, 0.37, (4000, 2)) / 2000)
    assert np.mean(np.abs(draws[:, 0] - draws[:, 1]) > gap.threshold) == pytest.approx(0.05, abs=0.015)
    # Spread over seeds counts on both sides.
    wide = compare.significant_gap(
        37.0, examples=20_000, seed_std=1.0, seeds=4, published_examples=2000, published_seeds=4
    )
    assert wide.standard_error**2 == pytest.approx(wide.draw**2 + wide.own_error**2 + 0.25)
