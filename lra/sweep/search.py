"""The choice of a learning rate: which rates are tried, and which one of them is taken."""

import math
from collections.abc import Mapping, Sequence


def decide(
    scores: Mapping[float, float | None], rates: Sequence[float], further: Sequence[float] = (), *, examples: int
) -> tuple[list[float], float | None]:
    """Decide what a search over learning rates does next.

    The rate with the highest validation score is chosen. Scores within one standard error of the difference from the
    highest count as equal to it. Of equal scores the one nearest the middle of ``rates`` counts, of two at the same
    distance the lower rate. If the best rate is the lowest or the highest that was tried, the next one of ``further``
    outside is tried as well. If every run diverged or collapsed, lower rates are tried.

    Args:
        scores: validation score in percent by rate of the runs that ended, None for a run that diverged or collapsed.
        rates: rates that are tried in any case.
        further: rates outside, tried one by one.
        examples: number of validation examples, for the standard error.

    Returns:
        The rates that must be run next, and the chosen rate if there are none.
    """
    left = [rate for rate in rates if rate not in scores]
    if left:
        return left, None

    # The rates that were tried are neighbours on the ladder of all rates, from low to high.
    ladder = sorted({*rates, *further})
    low, high = ladder.index(min(rates)), ladder.index(max(rates))
    middle = (low + high) / 2
    while low > 0 and ladder[low - 1] in scores:
        low -= 1
    while high < len(ladder) - 1 and ladder[high + 1] in scores:
        high += 1

    # The best rate: of those with about the highest score the one nearest the middle.
    values = {k: scores[ladder[k]] for k in range(low, high + 1) if scores[ladder[k]] is not None}
    highest = max(values.values(), default=0.0)
    equal = [k for k, score in values.items() if highest - score <= _error(score, highest, examples)]
    best = min(equal or range(low, high + 1), key=lambda k: (abs(k - middle), k))

    # A best rate at an end of the tried ones: try the next one outside.
    edge = best if equal else low
    if edge == low and low > 0:
        return [ladder[low - 1]], None
    if edge == high and high < len(ladder) - 1:
        return [ladder[high + 1]], None
    return [], ladder[best]


def _error(a: float, b: float, examples: int) -> float:
    """The standard error of the difference between two shares in percent, each of as many examples."""
    return math.sqrt((a * (100 - a) + b * (100 - b)) / examples)
