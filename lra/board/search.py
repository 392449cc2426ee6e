"""The learning-rate search: the rates to try next, and the choice of the best one."""

import math
from collections.abc import Mapping, Sequence


def decide(
    scores: Mapping[float, float | None], rates: Sequence[float], further: Sequence[float] = (), *, examples: int
) -> tuple[list[float], float | None]:
    """Decide what a search over learning rates does next.

    The rate with the highest validation score is chosen. Scores within one standard error of the difference from the
    highest count as equal to it. Ties go to the rate nearest the middle of ``rates``, then to the lower rate. If the
    best rate is at an end of the tried range, the next one of ``further`` is tried as well. If every run diverged or
    collapsed, lower rates are tried; if none is left, the tried rate nearest the middle is chosen.

    Args:
        scores: validation score in percent by rate of the runs that ended, None for a run that diverged or collapsed.
        rates: rates that are always tried.
        further: rates outside this range, tried one by one.
        examples: number of validation examples, for the standard error.

    Returns:
        The rates that must be run next, and the chosen rate if there are none.
    """
    # First all rates of the grid.
    missing = [rate for rate in rates if rate not in scores]
    if missing:
        return missing, None

    # The rates that were tried are neighbours on the ladder of all rates, from low to high.
    ladder = sorted({*rates, *further})
    top = len(ladder) - 1
    low = ladder.index(min(rates))
    high = ladder.index(max(rates))
    middle = (low + high) / 2
    while low > 0 and ladder[low - 1] in scores:
        low -= 1
    while high < top and ladder[high + 1] in scores:
        high += 1
    tried = range(low, high + 1)

    # Rates whose scores are not significantly lower than the highest one.
    values = {}
    for k in tried:
        score = scores[ladder[k]]
        if score is not None:
            values[k] = score
    highest = max(values.values(), default=0.0)
    equal = []
    for k, score in values.items():
        if highest - score <= _error(score, highest, examples):
            equal.append(k)

    # The best rate: the one nearest the middle, then the lower one.
    candidates = equal or tried
    best = min(candidates, key=lambda k: (abs(k - middle), k))

    # A best rate at an end of the tried ones: try the next one outside. Without any score, lower rates may help.
    edge = best if equal else low
    if edge == low and low > 0:
        return [ladder[low - 1]], None
    if edge == high and high < top:
        return [ladder[high + 1]], None
    return [], ladder[best]


def _error(a: float, b: float, examples: int) -> float:
    """The standard error of the difference between two accuracies in percent, each over ``examples`` examples."""
    variance_a = a * (100 - a)
    variance_b = b * (100 - b)
    return math.sqrt((variance_a + variance_b) / examples)
