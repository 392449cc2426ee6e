"""Comparisons below the Arena's table: selections of CUR, bf16 with fp32, and the gap to a published value."""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from ..console import plural
from ..evaluate.record import FreshTest
from ..results import outcome_statistics
from ..results.published import TITLES
from ..results.statistics import SIGNIFICANCE, holm, sample_std
from ..results.summary import Row, Studies
from ..results.table import Cell, Table, TableRow, frame
from ..runs import reader
from ..runs.reader import CONTROL
from .arena_entries import LONGER, ArenaEntry, arena_rows, gain_cell, line_name, score_text

LABEL = "cur_abs"
# CURformer, Table 4, selection abs: mean and standard deviation of five runs on the official 2,000 test examples.
PUBLISHED = 39.62
PUBLISHED_STD = 0.62
PUBLISHED_SEEDS = 5
PUBLISHED_EXAMPLES = 2000

Runs = tuple[Row, dict[int, FreshTest]]


def pair_table(task: str, lines: list[ArenaEntry]) -> Table | None:
    """Compare the selections of CUR with each other on the fresh examples; None without two of them with two seeds.

    Args:
        task: name of the task.
        lines: entries of the task.
    """
    outcomes = {}
    digests = set()
    for entry in lines:
        if entry.name.startswith("cur_") and len(entry.fresh) > 1:
            outcomes[entry.name] = entry.outcomes()
            digests |= {result.data for result in entry.fresh.values()}
    if len(outcomes) < 2 or len(digests) > 1:
        return None

    pairs = {}
    for (higher, lower), result in outcome_statistics.all_pairs(outcomes).items():
        pairs[f"{higher} - {lower}"] = result
    # Every mechanism has two seeds or more, so that every pair has a p-value.
    corrected = holm({pair: result.p for pair, result in pairs.items() if result.p is not None})
    rows: list[TableRow] = []
    for pair, result in pairs.items():
        p = corrected[pair]
        is_significant = "yes" if p < SIGNIFICANCE else "no"
        interval = f"{result.low:+.2f} to {result.high:+.2f}"
        difference = Cell.of(result.value, "{:+.2f}".format)
        rows.append([pair, difference, interval, Cell.of(p, "{:.3f}".format), is_significant])
    about = (
        "Difference of the fresh-test scores in points, on the same examples, with a 95 % interval over seeds "
        f"and examples (two-way random effects). p: corrected for {plural(len(pairs), 'comparison')} (Holm)."
    )
    return Table(
        name=f"arena-{task}-selections",
        title=f"{TITLES[task]}: which selections of CUR differ",
        about=about,
        cells=frame(("pair", "difference", "interval", "p", "significant"), rows),
        words=("pair", "interval", "significant"),
    )


def precision_table(studies: Studies) -> Table | None:
    """Compare mechanisms that were trained in bf16 and in fp32; None if there are none."""
    by_line: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in arena_rows(studies):
        if not row.study.startswith(LONGER):
            by_precision = by_line[row.task, line_name(row)]
            by_precision[precision(row.runs)] = row

    lines: list[TableRow] = []
    for (task, name), by_precision in sorted(by_line.items()):
        bf16 = by_precision.get("bf16")
        fp32 = by_precision.get("fp32")
        if bf16 is None or fp32 is None:
            continue
        # The gain of bf16, with the runs in fp32 as its control.
        difference = gain_cell(ArenaEntry(name, bf16, fp32, {}))
        if bf16.label == CONTROL:
            gain = mean(bf16.scores.values()) - mean(fp32.scores.values())
            difference = Cell.of(gain, "{:+.1f}".format)
        lines.append([name, TITLES[task], score_text(fp32), str(fp32.n), score_text(bf16), str(bf16.n), difference])
    if not lines:
        return None
    return Table(
        name="arena-precision",
        title="bf16 compared with fp32",
        about="Test scores of the same training in both precisions; difference: bf16 minus fp32, with a 95 % Welch "
        "interval if both sides have two seeds.",
        cells=frame(("mechanism", "task", "fp32", "n", "bf16", "n (bf16)", "difference"), lines),
        words=("mechanism", "task"),
    )


def precision(folders: Iterable[Path]) -> str:
    """Precision of the training of runs, fp32 if their configuration does not name one."""
    names = {reader.read_choices(folder).get("trainer.precision", "fp32") for folder in folders}
    return " / ".join(sorted(names))


def gap_section(runs: dict[str, Runs]) -> str:
    """Render the section on the gap to the published value; empty without runs of ``cur_abs``.

    Args:
        runs: runs at the papers' budget and their fresh-test results by the names of the lines.
    """
    if LABEL not in runs:
        return ""
    gap, score, examples = gap_of(runs[LABEL])
    # Two scores differ by the errors of both test sets.
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
    longer = [runs[name] for name in runs if runs[name][0].label == LABEL and runs[name][0].study.startswith(LONGER)]
    if longer:
        parts[-1] += " " + verdict("the longer training", longer[0])
    else:
        parts[-1] += (
            " Whether it is compatible with the longer training (`experiment=curformer_listops`) is open: that "
            "training has no finished run here."
        )
    return "\n\n".join(parts)


def gap_of(runs: Runs) -> tuple[outcome_statistics.Gap, float, int]:
    """Compute from which distance to the published value on a gap is significant.

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
    # At least the published spread, since few seeds underestimate theirs; it alone counts for a single seed.
    seed_std = sample_std(scores) or PUBLISHED_STD
    gap = outcome_statistics.significant_gap(
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
    p = outcome_statistics.normal_p_value(distance / gap.standard_error)
    judgement = "is not compatible at the 5 % level" if p < SIGNIFICANCE else "is compatible"
    n = runs[0].n
    seeds = "one seed" if n == 1 else f"{n} seeds"
    return f"It {judgement} with {name} ({score:.2f}, {seeds}): a distance of {distance:+.2f} points, p = {p:.3f}."
