"""Comparisons below the Arena's table: on fresh examples, of bf16 with fp32, and with a published value."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from ..console import plural
from ..evaluate.record import FreshTest
from ..results import outcome_statistics
from ..results.palette import EXACT
from ..results.paper_values import TITLES
from ..results.statistics import SIGNIFICANCE, holm, sample_std
from ..results.summary import Row, Studies
from ..results.table import Cell, Table, TableRow, frame
from ..runs import reader
from .arena_entries import LONGER, ArenaEntry, arena_rows, difference_cell, line_name, outcomes, score_text

# The mechanism whose gap to its published value is judged.
LABEL = "cur_abs"
# CUR with a correction is not a selection of CUR.
CORRECTED = "cur_plus"
# CURformer, Table 4, selection abs: mean and standard deviation of five runs on the official 2,000 test examples.
PUBLISHED = 39.62
PUBLISHED_STD = 0.62
PUBLISHED_SEEDS = 5
PUBLISHED_EXAMPLES = 2000

# The runs of a line of the Arena's table, and their fresh-test results by seed.
Runs = tuple[Row, dict[int, FreshTest]]


def pair_table(task: str, lines: list[ArenaEntry]) -> Table | None:
    """Compare the selections of CUR and exact attention with each other on the fresh examples.

    Args:
        task: name of the task.
        lines: entries of the task.

    Returns:
        The table; None without two mechanisms that have two seeds each.
    """
    # Compare entries with a spread over seeds, of the usual training of the two-layer encoder. Another training has a
    # remark in its name, such as "longer training", or a changed option in its label, such as optim.lr=0.001.
    compared = []
    for entry in lines:
        label = entry.row.label
        is_selection = label.startswith("cur_") and label != CORRECTED
        is_compared = is_selection or label == EXACT
        is_usual = entry.name == label and "=" not in label
        if is_compared and is_usual and len(entry.fresh) > 1:
            compared.append(entry)
    # Only scores on the same examples are compared: on the examples that most mechanisms share.
    if not compared:
        return None
    digests = Counter(_digest(entry) for entry in compared)
    digest, _ = digests.most_common(1)[0]
    scored = {entry.name: outcomes(entry.fresh) for entry in compared if _digest(entry) == digest}
    others = [entry.name for entry in compared if entry.name not in scored]
    if len(scored) < 2:
        return None

    pairs = {}
    for (higher, lower), result in outcome_statistics.all_pairs(scored).items():
        pairs[f"{higher} - {lower}"] = result
    # Every mechanism has two seeds or more, so every pair has a p-value.
    p_values = {}
    for pair, result in pairs.items():
        assert result.p is not None, pair
        p_values[pair] = result.p
    corrected = holm(p_values)
    rows: list[TableRow] = []
    for pair, result in pairs.items():
        p = corrected[pair]
        significant = "yes" if p < SIGNIFICANCE else "no"
        interval = f"{result.low:+.2f} to {result.high:+.2f}"
        difference = Cell.of(result.value, "{:+.2f}".format)
        rows.append([pair, difference, interval, Cell.of(p, "{:.3f}".format), significant])
    about = (
        "Which selections of CUR, and exact attention, differ: difference of the fresh-test scores in points, on the "
        "same examples, with a 95 % interval over seeds and examples (two-way random effects), not corrected. p: "
        f"corrected for {plural(len(pairs), 'comparison')} (Holm)."
    )
    if others:
        about += f" Scored on other examples and left out: {', '.join(others)}."
    return Table(
        name=f"arena-{task}-selections",
        title=f"{TITLES[task]}: which selections of CUR differ",
        about=about,
        cells=frame(("pair", "difference", "interval", "p", "significant"), rows),
        words=("pair", "interval", "significant"),
    )


def _digest(entry: ArenaEntry) -> str:
    """Return the digest of the fresh examples, which all results of an entry share."""
    first = next(iter(entry.fresh.values()))
    return first.data


def precision_table(studies: Studies) -> Table | None:
    """Compare mechanisms that were trained in bf16 and in fp32; None if there are none."""
    # Rows of the same training on the same data; of several studies with one precision the one with the most seeds.
    by_line: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in arena_rows(studies):
        by_precision = by_line[row.task, line_name(row), row.facts["data"]]
        row_precision = precision(row.runs)
        if row_precision not in by_precision or row.n > by_precision[row_precision].n:
            by_precision[row_precision] = row

    lines: list[TableRow] = []
    for (task, name, _), by_precision in sorted(by_line.items()):
        bf16 = by_precision.get("bf16")
        fp32 = by_precision.get("fp32")
        if bf16 is None or fp32 is None:
            continue
        difference = difference_cell(bf16.scores, fp32.scores)
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
    two_draws = 1.96 * math.sqrt(2) * gap.draw_error
    parts = [
        "### When a gap to a published value means something",
        f"A test set is one random draw of examples, and all seeds of a paper share it. For a score near {score:.0f} % "
        f"a draw of {PUBLISHED_EXAMPLES:,} examples has a standard deviation of √(p (1 - p) / n) = "
        f"{gap.draw_error:.2f} points, which more seeds do not reduce. In 95 % of cases two scores on two draws of "
        f"this size differ by up to 1.96 · √2 · {gap.draw_error:.2f} = {two_draws:.1f} points by chance alone, even "
        "without any error of the seeds: **if the test sets differ, a gap below about 3 points may be chance.** On the "
        "same test set the limit is smaller, since the mechanisms share this error, but papers do not print what is "
        "needed to compute it.",
        f"Our score: {score:.2f} on {examples:,} examples. The standard error of our mean is {gap.our_error:.2f}, of "
        f"the published mean over its seeds {gap.published_error:.2f}, of its test set {gap.draw_error:.2f}, together "
        f"{gap.standard_error:.2f}: a gap of at least {gap.threshold:.1f} points is significant. The error of our mean "
        "is larger than in the table above, because it assumes a standard deviation over seeds of at least the "
        f"published {PUBLISHED_STD} and, for the examples, the variance p (1 - p).",
    ]

    # The longer training of the same mechanism.
    longer = runs.get(f"{LABEL} ({LONGER})")
    if longer is None:
        longer_verdict = (
            "Whether it is different from the longer training (`experiment=curformer_listops`) is open: that training "
            "has no finished run here."
        )
    else:
        longer_verdict = verdict("the longer training", longer)
    parts.append(
        f"CURformer prints {PUBLISHED} ± {PUBLISHED_STD} for `{LABEL}` (Table 4). "
        f"{verdict('the base training', runs[LABEL])} {longer_verdict} This assumes that the official examples follow "
        "the distribution of our generator."
    )
    return "\n\n".join(parts)


def gap_of(runs: Runs) -> tuple[outcome_statistics.Gap, float, int]:
    """Compute the smallest distance to the published value that is significant.

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
    """Judge whether the published value is significantly different from the score of a training.

    Args:
        name: name of the training in the sentence.
        runs: its runs.
    """
    gap, score, _ = gap_of(runs)
    distance = PUBLISHED - score
    p = outcome_statistics.normal_p_value(distance / gap.standard_error)
    judgement = "is significantly different from" if p < SIGNIFICANCE else "is not significantly different from"
    n = runs[0].n
    seeds = "one seed" if n == 1 else f"{n} seeds"
    return f"It {judgement} {name} ({score:.2f}, {seeds}): a distance of {distance:+.2f} points, p = {p:.3f}."
