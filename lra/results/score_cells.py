"""Table cells of scores: means over seeds, remarks on seeds, gains over a control, and marks of the best mean."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean, variance

from ..console import plural, spread_text
from ..runs.record import RunRecord
from .statistics import SIGNIFICANCE, holm, p_value, sample_std
from .table import Cell

# Scores by seed, and scores of the control.
Comparison = tuple[Mapping[int, float], Mapping[int, float]]
# Explanations of the marks of scores and of gains.
BEST_MARKS = (
    f"Bold: the highest mean of a column, if it is significantly different from every other mean (p < {SIGNIFICANCE}, "
    "Welch's t-test on the finished seeds, with Holm's correction). ≈ after a score: no significant difference from "
    "the highest mean. "
)
GAIN_MARKS = (
    f"≈ after a gain: no significant difference from zero (p > {SIGNIFICANCE}, Welch's t-test on the finished seeds, "
    "with Holm's correction for the gains of the column). With two seeds the test is unreliable. A gain without ± has "
    "no test: one side has a single seed, or no score varies (≈ if the means are equal)."
)
MARKS = BEST_MARKS + GAIN_MARKS


def score(scores: Mapping[int, float], num_failed: int = 0, collapsed: Collection[int] = ()) -> Cell:
    """Make a cell of test scores: mean ± sample standard deviation over seeds.

    The mean includes collapsed seeds: leaving them out afterwards would favour a mechanism that seldom trains. Their
    number is in the text, and the note has the mean of the other seeds.

    Args:
        scores: scores by seed.
        num_failed: number of seeds without a result.
        collapsed: seeds that give every example the same answer.
    """
    failed = num_failed or None
    if not scores:
        return Cell(failed=failed, note=f"{plural(num_failed, 'seed')} without a result" if num_failed else "")

    # Mean and spread over all finished seeds.
    values = list(scores.values())
    text = spread_text(values)
    note = f"n = {len(values)}"
    if num_failed:
        note += f", {num_failed} more without a result"

    # The mean without collapsed seeds is in the note only.
    num_collapsed = len(collapsed)
    if collapsed:
        text += f" (collapsed {num_collapsed}/{len(values)})"
        trained = [value for seed, value in scores.items() if seed not in collapsed]
        if trained:
            note += f", {mean(trained):.2f} over the {len(trained)} that did not collapse"
    return Cell(
        text=text,
        value=mean(values),
        std=sample_std(values),
        n=len(values),
        failed=failed,
        collapsed=num_collapsed or None,
        note=note,
    )


def remarks(results: Sequence[RunRecord], scores: Mapping[int, float], collapsed: Collection[int]) -> list[str]:
    """Describe diverged, collapsed and contradictory seeds.

    Args:
        results: records of all seeds of a mechanism.
        scores: scores of the finished seeds.
        collapsed: seeds that give every example the same answer.
    """
    texts = []
    # Seeds without a result.
    diverged_steps = sorted(r.steps for r in results if r.status == "diverged")
    if diverged_steps:
        num_diverged = len(diverged_steps)
        noun = "step" if num_diverged == 1 else "steps"
        steps = ", ".join(map(str, diverged_steps))
        texts.append(f"{num_diverged} diverged at {noun} {steps}")

    # Seeds with a constant answer.
    if collapsed:
        remark = f"collapsed {len(collapsed)}/{len(scores)}"
        trained = [value for seed, value in scores.items() if seed not in collapsed]
        if trained:
            remark += f", others {mean(trained):.2f}"
        texts.append(remark)

    # Seeds with several results.
    counts = Counter(r.seed for r in results)
    for seed, count in sorted(counts.items()):
        if count > 1:
            texts.append(f"{count} different results of seed {seed}")
    return texts


def mark(cells: Sequence[Cell], scores: Sequence[Mapping[int, float]]) -> list[Cell]:
    """Mark the best cell of a column.

    The highest mean is "best" if it is significantly different from all others. Means that are not significantly
    different from it are "tied", and then it is "tied" too. If every tested mean is significantly different but some
    mean has no test, no cell is marked.

    Args:
        cells: cells of the column.
        scores: scores by seed of each cell; empty for a cell without seeds, which has no test.
    """
    values = {i: cell.value for i, cell in enumerate(cells) if cell.value is not None}
    if len(values) < 2:
        return list(cells)

    # Compare every mean with the highest one; a comparison without two seeds on both sides has no test.
    best = max(values, key=values.__getitem__)
    p_values = {}
    for i in values:
        p = p_value(scores[i], scores[best])
        if i != best and p is not None:
            p_values[i] = p
    corrected = holm(p_values)

    # Bold needs a significant difference from every other mean.
    marks = {}
    tied = [i for i, p in corrected.items() if p >= SIGNIFICANCE]
    num_others = len(values) - 1
    if tied:
        marks = dict.fromkeys([best, *tied], "tied")
    elif len(corrected) == num_others:
        marks = {best: "best"}

    # Notes with the p-values.
    marked_cells = []
    for i, cell in enumerate(cells):
        note = cell.note
        if i in corrected:
            note += f"; p = {corrected[i]:.2g} against the highest"
        marked_cells.append(replace(cell, mark=marks.get(i, ""), note=note))
    return marked_cells


def gain(scores: Mapping[int, float], control: Mapping[int, float]) -> Cell:
    """Make a cell of the gain over a control: difference of means ± standard error.

    With one seed on a side, or without any variance, there is no error; with no seed the cell is empty.

    Args:
        scores: scores by seed.
        control: scores of the control by seed.
    """
    if not scores or not control:
        return Cell()
    # Seeds of both sides are treated as independent.
    values = list(scores.values())
    control_values = list(control.values())
    difference = mean(values) - mean(control_values)
    text = f"{difference:+.2f}"
    note = f"n = {len(values)} and {len(control_values)}"
    error = gain_error(values, control_values)
    if not error:
        return Cell(text=text, value=difference, note=note)
    return Cell(text=f"{text} ± {error:.2f}", value=difference, std=error, note=note)


def gain_column(comparisons: Sequence[Comparison | None]) -> list[Cell]:
    """Make the cells of the gains of a column, see ``gain``.

    A gain that is not significantly different from zero, by Welch's t-test with Holm's correction for the gains of the
    column, is marked as tied.

    Args:
        comparisons: scores and scores of the control of each cell, by seed; None for an empty cell.
    """
    cells = [Cell() if comparison is None else gain(*comparison) for comparison in comparisons]
    p_values = {}
    for i, comparison in enumerate(comparisons):
        # With one seed on a side there is no test.
        p = p_value(*comparison) if comparison else None
        if p is not None:
            p_values[i] = p
    for i, p in holm(p_values).items():
        if p >= SIGNIFICANCE:
            cells[i] = replace(cells[i], mark="tied")
    return cells


def gain_error(scores: Sequence[float], control: Sequence[float]) -> float | None:
    """Compute the standard error of a difference of means, sqrt(s1²/n1 + s2²/n2).

    Args:
        scores, control: scores of independent seeds.

    Returns:
        The standard error; None if a side has fewer than two seeds.
    """
    if min(len(scores), len(control)) < 2:
        return None
    # Variances of the two means.
    score_variance = variance(scores) / len(scores)
    control_variance = variance(control) / len(control)
    return math.sqrt(score_variance + control_variance)
