"""The table of each mechanism from scratch and after pretraining on its own inputs, and of both at equal cost."""

import re
from dataclasses import replace

from . import published
from .significance import APART, difference
from .summary import Row
from .table import Cell, Table, frame, stem

HEAD = ("mechanism", "task", "scratch", "pretrained", "gain", "matched", "gain matched", "cost", "published")
WORDS = ("mechanism", "task", "cost", "published")
PUBLISHED = {"masked": "masked", "next": "causal"}  # objective -> its name in the papers
SAME = 0.02  # share of the tokens from scratch by which a matched run may differ, as rows differ in length


def pretraining(study: str, rows: list[Row]) -> Table | None:
    """Make a line for each mechanism, objective and task with a pretrained run; None if the study has none.

    Args:
        study: its name.
        rows: its results.
    """
    scratch = {(row.label, row.task): row for row in rows if not row.objective}
    lines, keys = [], []
    pairs = dict.fromkeys((unmatched(row), row.objective, row.task) for row in rows if row.objective)
    for label, objective, task in sorted(pairs, key=lambda pair: (pair[2], pair[:2])):
        mine = [row for row in rows if (unmatched(row), row.objective, row.task) == (label, objective, task)]
        before = scratch.get((from_scratch(label, objective), task))
        matched = next((row for row in mine if before and _same_cost(row, before)), None)
        longer = next((row for row in mine if row is not matched), None)
        lines.append(
            [
                label,
                task,
                before.cell if before else Cell(),
                _cell(longer),
                _gain(longer, before),
                _cell(matched),
                _gain(matched, before),
                _costs(before, longer, matched),
                _published(label, objective, task),
            ]
        )
        keys.append((study, mine[0].label, ""))
    if not lines:
        return None
    return Table(
        name=stem(f"pretraining-{study}"),
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


def unmatched(row: Row) -> str:
    """The label of a row, which is the same if both phases see as many tokens as a run from scratch."""
    return row.label.replace(f"+{row.objective}-matched", f"+{row.objective}")


def from_scratch(label: str, objective: str) -> str:
    """The label of the run without pretraining that a label's is compared with."""
    return re.sub(r"-pretrain\.[\w.]+=.*?(?=-[a-z_]+[\w.]*=|$)", "", label.replace(f"+{objective}", ""))


def _same_cost(row: Row, scratch: Row) -> bool:
    own, theirs = row.tokens, scratch.tokens
    return bool(own and theirs) and abs(own - theirs) <= SAME * theirs


def _cell(row: Row | None) -> Cell:
    return replace(row.cell, note=f"{row.cell.note}; {row.cost}") if row else Cell()


def _gain(row: Row | None, scratch: Row | None) -> Cell:
    return difference(row.scores, scratch.scores) if row and scratch else Cell()


def _costs(*rows: Row | None) -> str:
    names = ("scratch", "pretrained", "matched")
    return "; ".join(f"{name} {row.cost}" for name, row in zip(names, rows, strict=True) if row and row.cost)


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
