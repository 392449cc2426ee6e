"""Statistics of outcomes on shared test examples: a two-way random-effects model of seeds and examples.

Outcome of example i under seed s of a mechanism: y_si = mean + seed_s + example_i + residual_si, with independent
effects of variance σ²_seed, σ²_example and σ²_residual. The score of a mechanism with S seeds and N examples then has
the variance

    σ²_seed / S + σ²_example / N + σ²_residual / (S N).

Two mechanisms scored on the same examples share the examples, so the second term becomes the variance of the difference
of the example effects. Variances are estimated by the mean squares of the two-way layout (Searle, Casella and McCulloch
1992, chapter 4), and degrees of freedom by Satterthwaite's formula. A hierarchical bootstrap over seeds and examples is
too narrow with three to five seeds, since resampled seeds vary by (S - 1) / S of the variance.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .statistics import CONFIDENCE, degrees_of_freedom, student_p_value, student_quantile


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of the scores of two mechanisms on the same examples, in percentage points.

    Args:
        value: first minus second.
        standard_error: standard error over seeds and examples; None if one of the mechanisms has a single seed.
        low, high: ends of the 95 % interval; None with a single seed.
        p: two-sided p-value of no difference; None with a single seed.
        examples_error: standard error over examples alone, for exactly these seeds.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    p: float | None
    examples_error: float


def difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """Compare two mechanisms.

    Args:
        first, second: outcomes (seeds, examples) of 0 and 1; the examples are the same, the seeds are unrelated.

    Raises:
        ValueError: the numbers of examples differ.
    """
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"the mechanisms have {first.shape[1]} and {second.shape[1]} examples; score both on the same")
    num_examples = first.shape[1]
    value = first.mean() - second.mean()

    # Examples: variance of the per-example difference of the means over seeds. Its expectation is the variance of the
    # difference of the example effects, plus σ²_residual / S of each mechanism.
    by_example = first.mean(0) - second.mean(0)
    examples_variance = by_example.var(ddof=1) / num_examples
    examples_error = 100 * math.sqrt(examples_variance)
    if min(len(first), len(second)) < 2:
        return Difference(
            value=100 * value, standard_error=None, low=None, high=None, p=None, examples_error=examples_error
        )

    # Seeds: variance of the seed means of each mechanism. Its expectation is σ²_seed + σ²_residual / N.
    terms = [(examples_variance, num_examples - 1)]
    for outcomes in (first, second):
        seed_variance = outcomes.mean(1).var(ddof=1) / len(outcomes)
        terms.append((seed_variance, len(outcomes) - 1))
        # Both kinds of terms contain the residual once; take it out once.
        residual = residual_variance(outcomes) / outcomes.size
        terms.append((-residual, (len(outcomes) - 1) * (num_examples - 1)))

    total = sum(term for term, _ in terms)
    # The residual may be estimated larger than it is; the variance over examples is a lower bound.
    total = max(total, examples_variance)
    if not total:
        return Difference(
            value=100 * value,
            standard_error=0.0,
            low=100 * value,
            high=100 * value,
            p=float(value == 0),
            examples_error=0,
        )
    freedom = degrees_of_freedom(terms, total)
    error = math.sqrt(total)
    half_width = student_quantile(freedom) * error
    return Difference(
        value=100 * value,
        standard_error=100 * error,
        low=100 * (value - half_width),
        high=100 * (value + half_width),
        p=student_p_value(value / error, freedom),
        examples_error=examples_error,
    )


def standard_error(outcomes: np.ndarray) -> float:
    """Estimate the standard error of a mechanism's score, over seeds and examples, in percentage points.

    Args:
        outcomes: outcomes (seeds, examples) of 0 and 1. With a single seed the error is over examples alone.
    """
    num_seeds, num_examples = outcomes.shape
    examples_variance = outcomes.mean(0).var(ddof=1) / num_examples
    if num_seeds == 1:
        return 100 * math.sqrt(examples_variance)
    seed_variance = outcomes.mean(1).var(ddof=1) / num_seeds
    # Both variances contain the residual; take it out once.
    residual = residual_variance(outcomes) / outcomes.size
    total = examples_variance + seed_variance - residual
    # The variance over examples is a lower bound.
    return 100 * math.sqrt(max(examples_variance, total))


def binomial_error(share: float, examples: int) -> float:
    """Estimate the standard error of one model's score over examples, in percentage points.

    Args:
        share: share of correct examples.
        examples: number of examples.
    """
    return 100 * math.sqrt(share * (1 - share) / examples)


def residual_variance(outcomes: np.ndarray) -> float:
    """Estimate σ²_residual: the mean square of what neither the seed nor the example explains.

    Args:
        outcomes: outcomes (seeds, examples) of at least two seeds.
    """
    fitted = outcomes.mean(0) + outcomes.mean(1)[:, None] - outcomes.mean()
    num_seeds, num_examples = outcomes.shape
    return float(((outcomes - fitted) ** 2).sum() / ((num_seeds - 1) * (num_examples - 1)))


def all_pairs(outcomes: Mapping[str, np.ndarray]) -> dict[tuple[str, str], Difference]:
    """Compare every pair of mechanisms, the higher score first.

    Args:
        outcomes: outcomes (seeds, examples) of each mechanism.
    """
    by_score = sorted(outcomes, key=lambda label: -outcomes[label].mean())
    return {
        (higher, lower): difference(outcomes[higher], outcomes[lower])
        for higher, lower in itertools.combinations(by_score, 2)
    }


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The smallest significant difference between our score and a published one, and its parts.

    Args:
        draw_error: standard deviation of a score over draws of the published test set, in percentage points.
        our_error: standard error of our mean, over seeds and our own examples.
        published_error: standard error of the published mean over seeds.
        standard_error: standard error of the difference.
        threshold: gap in percentage points that is significant at 5 %.
    """

    draw_error: float
    our_error: float
    published_error: float
    standard_error: float
    threshold: float


def normal_quantile() -> float:
    """Return the number of standard errors in half a 95 % interval of the normal distribution."""
    return float(stats.norm.ppf((1 + CONFIDENCE) / 2))


def normal_p_value(statistic: float) -> float:
    """Return the two-sided p-value of a statistic with the normal distribution."""
    return float(2 * stats.norm.sf(abs(statistic)))


def significant_gap(
    score: float, *, examples: int, seed_std: float, seeds: int, published_examples: int, published_seeds: int
) -> Gap:
    """Compute the gap to a published score that is significant.

    A test set is a random draw of examples that all seeds share, so more seeds do not reduce its error. The variance of
    the example effects is taken as p (1 - p) for a score p, an upper bound that is reached if all seeds solve the same
    examples.

    Args:
        score: our score in percent.
        examples: number of our test examples.
        seed_std: standard deviation of the score over seeds, also assumed for the published runs.
        seeds: number of our seeds.
        published_examples: number of test examples behind the published score.
        published_seeds: number of its seeds.
    """
    share = score / 100
    example_std = 100 * math.sqrt(share * (1 - share))
    draw_error = example_std / math.sqrt(published_examples)
    our_error = math.hypot(example_std / math.sqrt(examples), seed_std / math.sqrt(seeds))
    published_error = seed_std / math.sqrt(published_seeds)
    error = math.sqrt(draw_error**2 + our_error**2 + published_error**2)
    return Gap(
        draw_error=draw_error,
        our_error=our_error,
        published_error=published_error,
        standard_error=error,
        threshold=normal_quantile() * error,
    )
