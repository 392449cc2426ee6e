"""Tables of transfers: the seeds of one configuration as a point, beside the run of their weights."""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ...report.score_cells import score
from ...report.summary import joined
from ...report.table import Table, frame
from .record import TransferRecord

GROUP, POINT = ["study", "task", "source"], ["label", "tuned"]
HEAD = ("mechanism", "kept", "tuned", "exact", "test", "change", "n", "mean |O - O'|", "relative", "stacked")
LEGEND = (
    "Test scores in percent, mean ± sample standard deviation over n seeds. kept: rows and columns of CUR, landmarks "
    "of Nystrom; tuned: steps of fine-tuning, 0 for the weights as they are; exact: of the run itself; change: test - "
    "exact, seed by seed. mean |O - O'|, relative (Frobenius): a mechanism's output against the exact one on the exact "
    "model's queries, keys and values, layer by layer; stacked: relative, with the mechanism in the layers before as "
    "well. All three before fine-tuning, over dev examples."
)


def points(records: Iterable[TransferRecord]) -> pd.DataFrame:
    """List the seeds of each point, a mechanism with one number of fine-tuning steps.

    A fine-tuned transfer belongs to two points: before and after its fine-tuning.

    Returns:
        A row for each seed with the columns of ``GROUP``, ``POINT`` and ``seed``; ``options``, those of the mechanism,
        and ``tuned``; ``exact`` and ``test``, the scores of the run and of the transfer, NaN if it diverged;
        ``mean_abs``, the mean over layers; ``record``. Points are ordered by steps of fine-tuning, mechanism, other
        changed options and count.
    """
    rows = {}  # by their order
    for r in sorted(records, key=lambda r: -r.steps):  # before fine-tuning a transfer without it comes first
        name, _, rest = r.label.partition("-")
        changed, mean_abs = natural(rest.replace(f"count={r.kept}", "")), np.mean([x.mean_abs for x in r.layers])
        for tuned in (0, r.steps):
            point = r.study, r.task, r.source, r.label, tuned, r.seed, r.attn | {"tuned": tuned}
            test = r.tuned_test if tuned else r.direct_test
            order = r.study, r.task, r.source, tuned, name, changed, r.kept or 0, r.label, r.seed
            rows[order] = *point, r.exact_test, test, mean_abs, r
    columns = [*GROUP, *POINT, "seed", "options", "exact", "test", "mean_abs", "record"]
    return pd.DataFrame([row for _, row in sorted(rows.items())], columns=columns).astype({"test": float})


def natural(text: str) -> tuple:
    """Sort key of a text by which count=8 comes before count=16."""
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text))


def curves(some: pd.DataFrame, axis: tuple[str, ...]) -> pd.DataFrame:
    """Group points into curves, within which only the axis differs.

    A curve has the seeds that all of its points share; one with a single point or without such a seed is left out.

    Args:
        some: points of one group.
        axis: options of the axis, one of which a point on a curve has.

    Returns:
        The rows on curves with their ``value`` and ``curve``, a legend that names the options that differ and the
        number of seeds: the class if there are several, and within a class the options that not all of its curves
        share.
    """
    rest = [tuple((k, str(v)) for k, v in sorted(o.items()) if k not in axis) for o in some.options]
    value = [next((o[k] for k in axis if k in o), None) for o in some.options]
    some = some.assign(value=pd.Series(value, some.index, dtype=object), rest=rest).dropna(subset="value")
    some = some.drop_duplicates(["rest", "seed", "value"])  # a default that was named makes another label
    values = some.groupby("rest").value.transform("nunique")
    some = some[(values > 1) & (some.groupby(["rest", "seed"]).value.transform("count") == values)]
    lines = dict(iter(some.groupby("rest", sort=False)))
    kind = lambda rest: dict(rest).get("_target_")
    kinds = Counter(map(kind, lines))
    shared = Counter((kind(rest), option) for rest in lines for option in rest)
    for rest, line in lines.items():
        words = [kind(rest).rpartition(".")[2]] if len(kinds) > 1 else []
        own = [option for option in rest if option[0] != "_target_" and shared[kind(rest), option] < kinds[kind(rest)]]
        words += [f"{key}={value}" for key, value in own]
        name = ", ".join(words) or line.label.iloc[0].partition("-")[0]
        lines[rest] = line.assign(curve=f"{name} (n = {line.seed.nunique()})")
    return pd.concat(lines.values()) if lines else some.assign(curve="")


def tables(some: pd.DataFrame) -> list[Table]:
    """Make a table of each group of points."""
    return [
        Table(
            name=f"transfer/{study}/{task}/{source}",
            title=f"{study}: {task}, {source}",
            about=about(group.record),
            cells=frame(HEAD, [cells(*point, seeds) for point, seeds in group.groupby(POINT, sort=False)]),
        )
        for (study, task, source), group in some.groupby(GROUP)
    ]


def cells(label: str, tuned: int, seeds: pd.DataFrame) -> tuple[str, ...]:
    """Write a text for each column of HEAD: the point of a label and ``tuned`` steps of fine-tuning, and its rows."""
    scored = seeds.dropna(subset="test")
    lost = len(seeds) - len(scored)
    spread = lambda values: score(dict(enumerate(values))).text or "-"
    layer = lambda name: ", ".join(
        f"{value:.3g}" for value in np.mean([[getattr(x, name) for x in r.layers] for r in seeds.record], 0)
    )
    return (
        label,
        str(seeds.record.iloc[0].kept or ""),
        str(tuned),
        *map(spread, (seeds.exact, scored.test, scored.test - scored.exact)),
        f"{len(scored)} (+{lost})" if lost else str(len(scored)),
        *map(layer, ("mean_abs", "relative", "stack_relative")),
    )


def about(records: Iterable[TransferRecord]) -> str:
    """Summarise what records share, in one sentence."""
    facts = [
        f"Protocol {joined(r.protocol for r in records)}",
        f"budget {joined(r.budget for r in records)}",
        joined(r.metric for r in records),
        f"{joined(r.n_test for r in records)} test examples",
        f"a constant answer scores {joined(float(r.constant_baseline) for r in records)}",
        f"layers over {joined(r.examples for r in records)} dev examples",
        f"on {joined(r.device for r in records)}",
        f"commit {joined(r.git or 'unknown' for r in records)}",
    ]
    return f"{'; '.join(facts)}."
