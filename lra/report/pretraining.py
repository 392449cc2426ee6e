"""The table of each mechanism from scratch, pretrained on the task's own inputs, and pretrained at equal cost."""

import re
from collections import defaultdict
from dataclasses import replace

from ..results import published
from ..results.score_cells import gain
from ..results.summary import Row
from ..results.table import Cell, Table, TableRow, frame

HEAD = ("mechanism", "task", "scratch", "pretrained", "gain", "matched", "gain matched", "cost", "published")
WORDS = ("mechanism", "task", "cost", "published")
# An option of the pretraining in a label, up to the next option.
OPTION = re.compile(r"-pretrain\.[\w.]+=.*?(?=-[a-z_]+[\w.]*=|$)")
# Objective -> its name in the papers.
PUBLISHED = {"masked": "masked", "next": "causal"}
# Two runs cost the same if their tokens differ by at most this share, since sequences differ in length.
TOLERANCE = 0.02
ABOUT = (
    "Test scores from scratch, after pretraining, and after pretraining with the total number of tokens matched to the "
    "run from scratch; gains over scratch ± standard error. Published: from scratch, pretrained (other model sizes)."
)


def pretraining(rows: list[Row]) -> Table | None:
    """Make the table, with a row for each mechanism, objective and task; None if no run is pretrained."""
    scratch_rows = {(row.label, row.task): row for row in rows if not row.objective}
    lines: list[TableRow] = []
    keys = []
    for (task, label, objective), pretrained_rows in sorted(_by_mechanism(rows).items()):
        # The run from scratch has the same label without the options of pretraining.
        scratch_label = OPTION.sub("", label.replace(f"+{objective}", ""))
        scratch = scratch_rows.get((scratch_label, task))
        # Of the pretrained rows, the first with the cost of the run from scratch, and the first other one.
        same_cost = [row for row in pretrained_rows if scratch and _same_cost(row, scratch)]
        matched = same_cost[0] if same_cost else None
        others = [row for row in pretrained_rows if row is not matched]
        unmatched = others[0] if others else None

        costs = []
        for name, row in {"scratch": scratch, "pretrained": unmatched, "matched": matched}.items():
            if row and row.cost:
                costs.append(f"{name} {row.cost}")
        cells: TableRow = [
            scratch.cell if scratch else Cell(),
            *_cells(unmatched, scratch),
            *_cells(matched, scratch),
            "; ".join(costs),
            _published(label, objective, task),
        ]
        lines.append([label, task, *cells])
        first = pretrained_rows[0]
        keys.append((first.study, first.label, ""))
    if not lines:
        return None

    unlike = published.unlike(row.facts for row in rows)
    caption = ABOUT
    if unlike:
        # Our runs have another protocol, budget or data than the published values: part of the same sentence.
        caption = f"{ABOUT.removesuffix(').')}; not comparable: {unlike})."
    return Table(
        name=f"pretraining/{rows[0].study}",
        title="Pretraining on the task's own inputs",
        about=caption,
        cells=frame(HEAD, lines, keys),
        words=WORDS,
        errors=("gain", "gain matched"),
    )


def _by_mechanism(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Group the pretrained rows by task, label without "-matched", and objective."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        objective = row.objective
        if objective:
            label = row.label.replace(f"+{objective}-matched", f"+{objective}")
            groups[row.task, label, objective].append(row)
    return groups


def _same_cost(row: Row, scratch: Row) -> bool:
    """Whether both rows trained on the same number of tokens, up to TOLERANCE."""
    if not row.tokens or not scratch.tokens:
        return False
    return abs(row.tokens - scratch.tokens) <= TOLERANCE * scratch.tokens


def _cells(row: Row | None, scratch: Row | None) -> list[Cell]:
    """Make the cells of a pretrained row's score and of its gain."""
    if row is None:
        return [Cell(), Cell()]
    score = replace(row.cell, note=f"{row.cell.note}; {row.cost}")
    if scratch is None:
        return [score, Cell()]
    return [score, gain(row.scores, scratch.scores)]


def _published(label: str, objective: str, task: str) -> str:
    """Format the scores of the same mechanism from scratch and pretrained, of every paper that prints both."""
    name = re.split(r"[-+]", label)[0]
    names = {name}
    if name == "sdpa":
        # sdpa and softmax compute the same function.
        names.add("softmax")

    values = {}
    for value in published.read():
        if value.task == task and value.metric == published.ACCURACY:
            values[value.paper, value.model] = value

    # A paper prints the pretrained model as another row.
    suffix = f", {PUBLISHED[objective]} self-pretraining"
    pairs = []
    for (paper, model), scratch in values.items():
        pretrained = values.get((paper, f"{model}{suffix}"))
        mechanisms = set(scratch.attn.split())
        if pretrained and names & mechanisms:
            pairs.append(f"{pretrained.source}: {scratch.text}, {pretrained.text}")
    return "; ".join(pairs)
