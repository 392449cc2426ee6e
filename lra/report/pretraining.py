"""The table of each mechanism from scratch, pretrained on the task's own inputs, and pretrained at equal cost."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..results import paper_values
from ..results.score_cells import gain_column
from ..results.summary import Row
from ..results.table import Cell, Table, TableRow, frame

HEAD = ("mechanism", "task", "scratch", "pretrained", "gain", "matched", "gain matched", "cost", "published")
WORDS = ("mechanism", "task", "cost", "published")
# An option of the pretraining in a label, up to the next option.
OPTION = re.compile(r"-pretrain\.[\w.]+=.*?(?=-[a-z_]+[\w.]*=|$)")
# Objective -> its name in the papers.
PAPER_NAMES = {"masked": "masked", "next": "causal"}
# Two runs cost the same if their tokens differ by at most this share, since sequences differ in length.
TOLERANCE = 0.02
ABOUT = (
    "Test scores from scratch, after pretraining, and after pretraining with the total number of tokens matched to the "
    "run from scratch; gains over scratch ± standard error. Published: from scratch, pretrained (other model sizes)."
)


class Line(NamedTuple):
    """A line of the table: the runs of a mechanism and objective on a task; None where there are none."""

    label: str
    task: str
    objective: str
    scratch: Row | None
    unmatched: Row | None
    matched: Row | None


def pretraining(rows: list[Row]) -> Table | None:
    """Make the table, with a row for each mechanism, objective and task; None if no run is pretrained."""
    lines = _lines(rows)
    if not lines:
        return None

    gains = _gains([(line.unmatched, line.scratch) for line in lines])
    matched_gains = _gains([(line.matched, line.scratch) for line in lines])
    table_rows: list[TableRow] = []
    keys = []
    for line, gain_cell, matched_gain in zip(lines, gains, matched_gains, strict=True):
        costs = []
        for name, row in {"scratch": line.scratch, "pretrained": line.unmatched, "matched": line.matched}.items():
            if row and row.cost:
                costs.append(f"{name} {row.cost}")
        cells: TableRow = [
            line.scratch.cell if line.scratch else Cell(),
            _score(line.unmatched),
            gain_cell,
            _score(line.matched),
            matched_gain,
            "; ".join(costs),
            _published(line.label, line.objective, line.task),
        ]
        table_rows.append([line.label, line.task, *cells])
        first = line.unmatched or line.matched
        assert first is not None
        keys.append((first.study, first.label, ""))

    choices = paper_values.incomparable_choices(row.facts for row in rows)
    caption = ABOUT
    if choices:
        # Our runs have another protocol, budget or data than the published values: part of the same sentence.
        caption = f"{ABOUT.removesuffix(').')}; not comparable: {choices})."
    return Table(
        name=f"pretraining/{rows[0].study}",
        title="Pretraining on the task's own inputs",
        about=caption,
        cells=frame(HEAD, table_rows, keys),
        words=WORDS,
        errors=("gain", "gain matched"),
    )


def _lines(rows: list[Row]) -> list[Line]:
    """List the lines of the table: for each mechanism its runs from scratch and its pretrained runs."""
    scratch_rows = {(row.label, row.task): row for row in rows if not row.objective}
    lines = []
    for (task, label, objective), pretrained_rows in sorted(_by_mechanism(rows).items()):
        # The run from scratch has the same label without the options of pretraining.
        scratch_label = OPTION.sub("", label.replace(f"+{objective}", ""))
        scratch = scratch_rows.get((scratch_label, task))
        # The first row of pretrain.matched=true, and the first other one.
        matched_rows = [row for row in pretrained_rows if _is_matched(row, scratch)]
        matched = matched_rows[0] if matched_rows else None
        others = [row for row in pretrained_rows if row is not matched]
        unmatched = others[0] if others else None
        lines.append(Line(label, task, objective, scratch, unmatched, matched))
    return lines


def _by_mechanism(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Group the pretrained rows by task, label without "-matched", and objective."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        objective = row.objective
        if objective:
            label = row.label.replace(f"+{objective}-matched", f"+{objective}")
            groups[row.task, label, objective].append(row)
    return groups


def _is_matched(row: Row, scratch: Row | None) -> bool:
    """Whether a row has pretrain.matched=true, and as many tokens as the row from scratch, up to TOLERANCE."""
    if f"+{row.objective}-matched" not in row.label:
        return False
    # Old records have no number of tokens.
    if scratch is None or not row.tokens or not scratch.tokens:
        return True
    return abs(row.tokens - scratch.tokens) <= TOLERANCE * scratch.tokens


def _score(row: Row | None) -> Cell:
    """Make the cell of a pretrained row's score, with its cost."""
    if row is None:
        return Cell()
    return replace(row.cell, note=f"{row.cell.note}; {row.cost}")


def _gains(pairs: Sequence[tuple[Row | None, Row | None]]) -> list[Cell]:
    """Make the column of the gains of pretrained rows over rows from scratch."""
    return gain_column([(row.scores, scratch.scores) if row and scratch else None for row, scratch in pairs])


def _published(label: str, objective: str, task: str) -> str:
    """Format the scores of the same mechanism from scratch and pretrained, of every paper that prints both."""
    name = re.split(r"[-+]", label)[0]
    names = {name}
    if name == "sdpa":
        # sdpa and softmax compute the same function.
        names.add("softmax")

    values = {}
    for value in paper_values.read():
        if value.task == task and value.metric == paper_values.ACCURACY:
            values[value.paper, value.model] = value

    # A paper prints the pretrained model as another row.
    suffix = f", {PAPER_NAMES[objective]} self-pretraining"
    pairs = []
    for (paper, model), scratch in values.items():
        pretrained = values.get((paper, f"{model}{suffix}"))
        mechanisms = set(scratch.attn.split())
        if pretrained and names & mechanisms:
            pairs.append(f"{pretrained.source}: {scratch.text}, {pretrained.text}")
    return "; ".join(pairs)
