"""The choice of a learning rate: which rates are tried, and which one of them is taken."""

from collections.abc import Mapping, Sequence


def decide(
    scores: Mapping[float, float | None], rates: Sequence[float], further: Sequence[float] = ()
) -> tuple[list[float], float | None]:
    """Decide what a search over learning rates does next.

    The rate with the highest dev score is chosen. Of equal scores the one nearer the middle of ``rates`` counts, of two
    as near the lower rate. If the best rate is the lowest or the highest that was tried, the next one of ``further``
    outside is tried as well. If every run diverged or collapsed, lower rates are tried.

    Args:
        scores: dev score by rate of the runs that ended, None for a run that diverged or collapsed.
        rates: that are tried in any case.
        further: rates outside, tried one by one.

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

    def value(k: int) -> tuple[float, float, int]:
        score = scores[ladder[k]]
        return (-1.0 if score is None else score, -abs(k - middle), -k)

    best = max(range(low, high + 1), key=value)
    edge = low if scores[ladder[best]] is None else best
    if edge == low and low > 0:
        return [ladder[low - 1]], None
    if edge == high and high < len(ladder) - 1:
        return [ladder[high + 1]], None
    return [], ladder[best]
