"""The table of each mechanism from scratch and after pretraining on its own inputs, and of both at equal cost."""

import re
from collections import defaultdict
from dataclasses import replace

from . import published
from .significance import APART, difference
from .summary import Row
from .table import Cell, Table, frame, stem

HEAD = ("mechanism", "task", "scratch", "pretrained", "gain", "matched", "gain matched", "cost", "published")
WORDS = ("mechanism", "task", "cost", "published")
OPTION = re.compile(r"-pretrain\.[\w.]+=.*?(?=-[a-z_]+[\w.]*=|$)")  # of the pretraining in a label
PUBLISHED = {"masked": "masked", "next": "causal"}  # objective -> its name in the papers
SAME = 0.02  # share of the tokens from scratch by which a matched run may differ, as rows differ in length


def pretraining(rows: list[Row]) -> Table | None:
    """Make a line for each mechanism, objective and task with a pretrained run; None if the study has none."""
    scratch = {(row.label, row.task): row for row in rows if not row.objective}
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.objective:
            unmatched = row.label.replace(f"+{row.objective}-matched", f"+{row.objective}")
            found[row.task, unmatched, row.objective].append(row)
    lines, keys = [], []
    for (task, label, objective), mine in sorted(found.items()):
        from_scratch = OPTION.sub("", label.replace(f"+{objective}", ""))
        before = scratch.get((from_scratch, task))
        matched = next((row for row in mine if before and _same_cost(row, before)), None)
        longer = next((row for row in mine if row is not matched), None)
        phases = {"scratch": before, "pretrained": longer, "matched": matched}
        costs = "; ".join(f"{name} {row.cost}" for name, row in phases.items() if row and row.cost)
        scores = [before.cell if before else Cell(), *_cells(longer, before), *_cells(matched, before)]
        lines.append([label, task, *scores, costs, _published(label, objective, task)])
        keys.append((mine[0].study, mine[0].label, ""))
    if not lines:
        return None
    return Table(
        name=stem(f"pretraining-{rows[0].study}"),
        title="Pretraining on the task's own inputs",
        about="scratch: no pretraining; pretrained: phase one before the whole fine-tuning; matched: both phases "
        "together see as many tokens as a run from scratch. gain: over scratch, ± standard error from the seeds of "
        f"both; ≈: not told apart from it, below {APART} standard errors. cost: tokens of the phases and the time of "
        "their steps. published: from scratch, then pretrained, of models of other sizes. "
        f"{published.caution(row.facts for row in rows)}".rstrip(),
        cells=frame(HEAD, lines, keys),
        words=WORDS,
        errors=("gain", "gain matched"),
    )


def _same_cost(row: Row, scratch: Row) -> bool:
    own, theirs = row.tokens, scratch.tokens
    return bool(own and theirs) and abs(own - theirs) <= SAME * theirs


def _cells(row: Row | None, scratch: Row | None) -> list[Cell]:
    """Make the cells of a pretrained row's score and of its gain."""
    if row is None:
        return [Cell(), Cell()]
    score = replace(row.cell, note=f"{row.cell.note}; {row.cost}")
    return [score, difference(row.scores, scratch.scores) if scratch else Cell()]


def _published(label: str, objective: str, task: str) -> str:
    """Scores of the same mechanism from scratch and pretrained, of every paper that prints both."""
    name = re.split(r"[-+]", label)[0]
    names = {name, "softmax"} if name == "sdpa" else {name}  # the same function
    found = {(v.paper, v.model): v for v in published.read() if (v.task, v.metric) == (task, "accuracy_percent")}
    pairs = [
        (one, found.get((paper, f"{model}, {PUBLISHED[objective]} self-pretraining")))
        for (paper, model), one in found.items()
        if names & set(one.attn.split())
    ]
    return "; ".join(f"{two.source}: {one.text}, {two.text}" for one, two in pairs if two)
