"""The choice of a learning rate: which rates are tried, and which one of them is taken."""

import math
from collections.abc import Mapping, Sequence


def decide(
    scores: Mapping[float, float | None], rates: Sequence[float], further: Sequence[float] = (), *, examples: int
) -> tuple[list[float], float | None]:
    """Decide what a search over learning rates does next.

    The rate with the highest dev score is chosen. Scores within one standard error of the difference from the highest
    count as equal to it. Of equal scores the one nearer the middle of ``rates`` counts, of two as near the lower rate.
    If the best rate is the lowest or the highest that was tried, the next one of ``further`` outside is tried as well.
    If every run diverged or collapsed, lower rates are tried.

    Args:
        scores: dev score in percent by rate of the runs that ended, None for a run that diverged or collapsed.
        rates: that are tried in any case.
        further: rates outside, tried one by one.
        examples: number of dev examples, which the standard error needs.

    Returns:
        The rates that must be run next, and the chosen rate if there are none.
    """
    if left := [rate for rate in rates if rate not in scores]:
        return left, None
    ladder = sorted({*rates, *further})
    low, high = ladder.index(min(rates)), ladder.index(max(rates))
    middle = (low + high) / 2
    while low > 0 and ladder[low - 1] in scores:
        low -= 1
    while high < len(ladder) - 1 and ladder[high + 1] in scores:
        high += 1

    values = {k: score for k in range(low, high + 1) if (score := scores[ladder[k]]) is not None}
    highest = max(values.values(), default=0.0)
    equal = [k for k, score in values.items() if highest - score <= _error(score, highest, examples)]
    best = min(equal or range(low, high + 1), key=lambda k: (abs(k - middle), k))
    edge = best if equal else low
    if edge == low and low > 0:
        return [ladder[low - 1]], None
    if edge == high and high < len(ladder) - 1:
        return [ladder[high + 1]], None
    return [], ladder[best]


def _error(a: float, b: float, examples: int) -> float:
    """The standard error of the difference between two shares in percent, each of as many examples."""
    return math.sqrt((a * (100 - a) + b * (100 - b)) / examples)
