"""Tables and curves of transfers. A point is the seeds of one mechanism and number of fine-tuning steps."""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ...results.score_cells import score
from ...results.table import Table, frame, joined
from .record import TransferRecord

# Columns whose values identify a group, which is a table, and within it a point.
GROUP = ["study", "task", "source"]
POINT = ["label", "tuned"]
HEAD = ("mechanism", "count", "tuned", "exact", "test", "change", "n", "mean |O - O'|", "relative", "stacked")
LEGEND = (
    "Test scores in percent, mean ± sample standard deviation over n seeds. count: selected queries and keys of CUR, "
    "landmarks of Nystromformer; tuned: steps of fine-tuning, 0 for the trained weights; exact: score of the run; "
    "change: test - exact, averaged per seed. mean |O - O'|, relative (Frobenius): output of a mechanism compared with "
    "the exact output, layer by layer, on queries, keys and values of the exact model; stacked: relative, with the "
    "mechanism in the earlier layers as well. All three before fine-tuning, over validation examples."
)


def points(records: Iterable[TransferRecord]) -> pd.DataFrame:
    """List the seeds of each point.

    A fine-tuned transfer belongs to two points: before and after its fine-tuning.

    Returns:
        A row for each seed with the columns of ``GROUP``, ``POINT`` and ``seed``; ``options`` of the mechanism,
        including ``tuned``; ``exact`` and ``test``, the scores of the run and of the transfer, NaN if it diverged;
        ``mean_abs``, the mean over layers; ``record``. Points are ordered by steps of fine-tuning, mechanism, other
        changed options and count.
    """
    # Rows by their place in the order. The scores before fine-tuning may come from several transfers of a seed: the one
    # with the fewest steps comes last here and replaces the others.
    rows = {}
    for r in sorted(records, key=lambda r: -r.steps):
        name, _, options = r.label.partition("-")
        # The count has its own place in the order.
        changed = natural(options.replace(f"count={r.token_budget}", ""))
        mean_abs = np.mean([layer.mean_abs for layer in r.layers])
        for tuned in (0, r.steps):
            order = (r.study, r.task, r.source, tuned, name, changed, r.token_budget or 0, r.label, r.seed)
            rows[order] = {
                "study": r.study,
                "task": r.task,
                "source": r.source,
                "label": r.label,
                "tuned": tuned,
                "seed": r.seed,
                "options": r.attn | {"tuned": tuned},
                "exact": r.exact_test,
                "test": r.tuned_test if tuned else r.direct_test,
                "mean_abs": mean_abs,
                "record": r,
            }
    columns = [*GROUP, *POINT, "seed", "options", "exact", "test", "mean_abs", "record"]
    ordered = [rows[order] for order in sorted(rows)]
    return pd.DataFrame(ordered, columns=columns).astype({"test": float})


def natural(text: str) -> tuple:
    """Return a sort key for natural order, in which count=8 comes before count=16."""
    key = []
    for part in re.split(r"(\d+)", text):
        key.append((int(part), "") if part.isdigit() else (0, part))
    return tuple(key)


def curves(group: pd.DataFrame, axis: tuple[str, ...]) -> pd.DataFrame:
    """Group points into curves: points whose options are equal except for the axis.

    A curve has the seeds that all of its points share. It is left out if it has a single point or no such seed.

    Args:
        group: points of one group.
        axis: names of the option on the axis, of which a mechanism has at most one; points without it are left out.

    Returns:
        The rows on curves, with their ``value`` on the axis and the legend of their ``curve``: its name from
        ``_curve_names`` and its number of seeds.
    """
    # The value on the axis, and the other options, which are equal within a curve.
    values = []
    constants = []
    for options in group.options:
        on_axis = [options[key] for key in axis if key in options]
        values.append(on_axis[0] if on_axis else None)
        constant = []
        for key, value in sorted(options.items()):
            if key not in axis:
                constant.append((key, str(value)))
        constants.append(tuple(constant))
    group = group.assign(value=pd.Series(values, group.index, dtype=object), constant=constants)
    # A diverged seed has no score.
    group = group.dropna(subset=["value", "test"])
    # A default that was written on the command line is part of the label, but the point is the same.
    group = group.drop_duplicates(["constant", "seed", "value"])

    # Keep the seeds that have every value of their curve, on curves of two values or more.
    num_values = group.groupby("constant").value.transform("nunique")
    values_of_seed = group.groupby(["constant", "seed"]).value.transform("count")
    is_complete = values_of_seed == num_values
    group = group[(num_values > 1) & is_complete]
    lines = dict(iter(group.groupby("constant", sort=False)))
    if not lines:
        return group.assign(curve="")
    names = _curve_names(lines)
    # The legend has the number of seeds of each curve.
    named = []
    for key, line in lines.items():
        num_seeds = line.seed.nunique()
        named.append(line.assign(curve=f"{names[key]} (n = {num_seeds})"))
    return pd.concat(named)


def _curve_names(lines: dict[tuple, pd.DataFrame]) -> dict[tuple, str]:
    """Name each curve by its class, if there are several, and the options that not all curves of the class share.

    A curve without such options has the name of its mechanism.
    """
    class_counts = Counter(map(_class_path, lines))
    option_counts: Counter[tuple] = Counter()
    for constant in lines:
        path = _class_path(constant)
        option_counts.update((path, option) for option in constant)

    names = {}
    for constant, line in lines.items():
        path = _class_path(constant)
        parts = []
        if len(class_counts) > 1:
            parts.append(path.rpartition(".")[2])
        for option in constant:
            key, value = option
            is_shared = option_counts[path, option] == class_counts[path]
            if key != "_target_" and not is_shared:
                parts.append(f"{key}={value}")
        label = line.label.iloc[0].partition("-")[0]
        names[constant] = ", ".join(parts) or label
    return names


def _class_path(constant: tuple) -> str:
    """Return the class of a mechanism from its options; empty without one."""
    return dict(constant).get("_target_", "")


def tables(points: pd.DataFrame) -> list[Table]:
    """Make a table of each group of points."""
    # ``points`` has put the rows in order.
    group_tables = []
    for (study, task, source), group in points.groupby(GROUP):
        lines = [cells(label, tuned, seeds) for (label, tuned), seeds in group.groupby(POINT, sort=False)]
        table = Table(
            name=f"transfer/{study}/{task}/{source}",
            title=f"{study}: {task}, {source}",
            about=about(group.record),
            cells=frame(HEAD, lines),
        )
        group_tables.append(table)
    return group_tables


def cells(label: str, tuned: int, seeds: pd.DataFrame) -> tuple[str, ...]:
    """Format the columns of HEAD for a point: its label, its ``tuned`` steps of fine-tuning, and its seeds."""
    # Diverged seeds have no test score; they are counted in brackets.
    scored = seeds.dropna(subset="test")
    num_diverged = len(seeds) - len(scored)
    count = f"{len(scored)} (+{num_diverged})" if num_diverged else str(len(scored))
    return (
        label,
        str(seeds.record.iloc[0].token_budget or ""),
        str(tuned),
        _mean_and_spread(scored.exact),
        _mean_and_spread(scored.test),
        _mean_and_spread(scored.test - scored.exact),
        count,
        _layer_means(seeds.record, "mean_abs"),
        _layer_means(seeds.record, "relative"),
        _layer_means(seeds.record, "stack_relative"),
    )


def _mean_and_spread(values: pd.Series) -> str:
    """Format mean ± sample standard deviation."""
    return score(dict(enumerate(values))).text or "-"


def _layer_means(records: Iterable[TransferRecord], measure: str) -> str:
    """Format the mean over seeds of a measure of each layer."""
    # A row for each seed, a column for each layer.
    by_seed = []
    for r in records:
        by_seed.append([getattr(layer, measure) for layer in r.layers])
    return ", ".join(f"{value:.3g}" for value in np.mean(by_seed, 0))


def about(records: Iterable[TransferRecord]) -> str:
    """Summarise the conditions under which records were measured, in one sentence."""
    facts = [
        f"Protocol {joined(r.protocol for r in records)}",
        f"budget {joined(r.budget for r in records)}",
        joined(r.metric for r in records),
        f"{joined(r.n_test for r in records)} test examples",
        f"a constant answer scores {joined(float(r.constant_baseline) for r in records)}",
        f"layers over {joined(r.examples for r in records)} validation examples",
        f"on {joined(r.device for r in records)}",
        f"commit {joined(r.git or 'unknown' for r in records)}",
    ]
    return f"{'; '.join(facts)}."
