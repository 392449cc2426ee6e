"""The smallest significant gap between our ListOps score and a published one."""

import math
from statistics import mean, stdev

from scipy import stats

from ..evaluate import compare
from ..evaluate.record import FreshTest
from .summary import Row

LABEL = "cur_abs"
# CURformer, Table 4, selection abs: mean and standard deviation of five runs on the official 2,000 test examples.
PUBLISHED = 39.62
PUBLISHED_STD = 0.62
PUBLISHED_SEEDS = 5
PUBLISHED_EXAMPLES = 2000
LEVEL = 0.05

Runs = tuple[Row, dict[int, FreshTest]]


def gap_section(runs: dict[str, Runs]) -> str:
    """Render the section on the gap to the published value; empty without runs of ``cur_abs``.

    Args:
        runs: runs at the papers' budget and their fresh-test results by the names of the lines; the longer training
            has a name that starts with the label.
    """
    if LABEL not in runs:
        return ""
    gap, score, examples = gap_of(runs[LABEL])
    two_draws = 1.96 * math.sqrt(2) * gap.draw
    parts = [
        "### When a gap to a published value means something",
        f"A test set is one random draw of examples, and all seeds of a paper share it. For a score near {score:.0f} % "
        f"a draw of {PUBLISHED_EXAMPLES:,} examples has a standard deviation of √(p (1 - p) / n) = {gap.draw:.2f} "
        "points, which more seeds do not reduce. Two scores on two draws of this size differ by up to "
        f"1.96 · √2 · {gap.draw:.2f} = {two_draws:.1f} points by chance alone: **on the standard test set a gap below "
        "about 3 points means nothing.** Mechanisms on the same examples share this error and can be compared much "
        "more closely.",
        f"Our score: {score:.2f} on {examples:,} examples. The standard error of our mean is {gap.own_error:.2f}, of "
        f"the published mean over its seeds {gap.published_error:.2f}, of its test set {gap.draw:.2f}, together "
        f"{gap.standard_error:.2f}: a gap is significant from {gap.threshold:.1f} points.",
        f"CURformer prints {PUBLISHED} ± {PUBLISHED_STD} for `{LABEL}` (Table 4). "
        f"{verdict('the base training', runs[LABEL])}",
    ]
    longer = [name for name in runs if name.startswith(f"{LABEL} (")]
    if longer:
        parts[-1] += " " + verdict("the longer training", runs[longer[0]])
    else:
        parts[-1] += (
            " Whether it is compatible with the longer training (`experiment=curformer_listops`) is open: that "
            "training has no finished run here."
        )
    return "\n\n".join(parts)


def gap_of(runs: Runs) -> tuple[compare.Gap, float, int]:
    """Compute the significant gap of runs.

    Returns:
        The gap, the score in percent and the number of its examples: fresh ones if all seeds are scored on them, else
        the examples of the standard test set.
    """
    row, fresh = runs
    if len(fresh) == row.n:
        scores = [result.fresh_test for result in fresh.values()]
        examples = next(iter(fresh.values())).examples
    else:
        scores = list(row.scores.values())
        examples = row.done[0].n_test
    # With a single seed here the published spread stands in.
    seed_std = stdev(scores) if len(scores) > 1 else PUBLISHED_STD
    gap = compare.significant_gap(
        mean(scores),
        examples=examples,
        seed_std=max(seed_std, PUBLISHED_STD),
        seeds=len(scores),
        published_examples=PUBLISHED_EXAMPLES,
        published_seeds=PUBLISHED_SEEDS,
    )
    return gap, mean(scores), examples


def verdict(name: str, runs: Runs) -> str:
    """Judge whether the published value is compatible with runs of a training.

    Args:
        name: name of the training in the sentence.
        runs: its runs.
    """
    gap, score, _ = gap_of(runs)
    distance = PUBLISHED - score
    p = 2 * float(stats.norm.sf(abs(distance) / gap.standard_error))
    judgement = "is not compatible at the 5 % level" if p < LEVEL else "is compatible"
    n = runs[0].n
    seeds = "one seed" if n == 1 else f"{n} seeds"
    return f"It {judgement} with {name} ({score:.2f}, {seeds}): a distance of {distance:+.2f} points, p = {p:.3f}."
