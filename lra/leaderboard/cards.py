"""A card for each mechanism: what it computes, what it costs and how it scores."""

import functools
import re
from collections.abc import Sequence
from difflib import get_close_matches

from torch import nn

from ..checks.exceptions import EXCEPTIONS
from ..checks.properties import CHECKS
from ..config.compose import compose
from ..config.experiment import Experiment
from ..console import plural
from ..ops.attention_maps import uses_kernels
from ..report import extensions
from ..report.arena_entries import ArenaEntry, entries, gain_cell, gains_are_fresh, score_text, seeds_text
from ..report.recurrent import state_size
from ..results import bench_record
from ..results.bench_record import BenchRecord
from ..results.lr_search import SEARCH_SUFFIX
from ..results.paper_values import TITLES
from ..results.summary import Row, Studies, collect
from ..runs.published import HOME
from .lines import LeaderboardLine, group_of, mechanism_of
from .mechanism import MechanismFacts, format_option, mechanisms
from .table import markdown

MEGABYTE = 2**20
# Result of ``lra bench preset=growth`` (docs/numbers.md).
COSTS = HOME / "growth.json"


def card(name: str, lines: Sequence[LeaderboardLine]) -> str:
    """Render the card of a mechanism as Markdown.

    Args:
        name: a name of ``attn=``.
        lines: lines of the leaderboard.

    Raises:
        ValueError: there is no such mechanism.
    """
    if name not in mechanisms():
        # A typing error is the usual reason.
        similar = get_close_matches(name, mechanisms(), n=1, cutoff=0.7)
        suggestion = f"; did you mean {similar[0]}?" if similar else "; docs/mechanisms.md lists them"
        raise ValueError(f"card={name} is not a mechanism of conf/attn{suggestion}")
    mechanism = mechanisms()[name]
    parts = [f"# {name}", overview(mechanism), options(mechanism), results(name), costs(name)]
    parts.append(leaderboard_section(name, lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def overview(mechanism: MechanismFacts) -> str:
    """Describe what a mechanism computes, where it is implemented, its complexity, parameters and checks."""
    facts = [f"* Code: [{mechanism.module}](../../{mechanism.module})"]
    if mechanism.reference:
        facts.append(f"* Reference in plain torch: [{mechanism.reference}](../../{mechanism.reference})")
    if mechanism.complexity:
        facts.append(f"* Complexity: {mechanism.complexity}")
    model = encoder(mechanism.name)
    if model is not None:
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        facts.append(f"* Parameters of the two-layer encoder on ListOps: {num_parameters:,}")
        state = state_size(model)
        if state:
            facts.append(f"* State of a layer: {state:,} numbers, carried from token to token in each direction")
    facts += reach(mechanism.name)
    facts.append(check_results(mechanism))
    return "\n\n".join([mechanism.markdown_sentence, "\n".join(facts)])


def check_results(mechanism: MechanismFacts) -> str:
    """Say how many checks a mechanism passes, and which ones it fails as published."""
    failed = []
    for (check, name), reason in EXCEPTIONS.items():
        if name == mechanism.name:
            failed.append(f"{check.replace('_', ' ')} ({reason})")
    # The kernels compute in float32, which is too coarse for the difference quotient.
    num_skipped = 1 if uses_kernels(mechanism.options.get("impl") or "eager") else 0
    num_passed = len(CHECKS) - num_skipped - len(failed)
    text = f"* Checks: passes {num_passed} of {len(CHECKS)} (`lra check attn={mechanism.name}`)"
    if num_skipped:
        text += f", {num_skipped} skipped"
    if failed:
        text += f"; as published it fails: {', '.join(failed)}"
    return text


def encoder(name: str) -> nn.Module | None:
    """Build the encoder on ListOps on the meta device; None if it cannot be built here."""
    try:
        return compose(Experiment, ["task=listops", f"attn={name}"]).meta_model
    except (ValueError, ImportError):
        return None


def reach(name: str) -> list[str]:
    """List the reach of trained models, how far each layer has to attend, for each probed study and task."""
    lines = []
    for study, rows in published_studies().items():
        # The reach is compared with the control on the same task.
        for task in dict.fromkeys(row.task for row in rows):
            distance, about = locality(name, [row for row in rows if row.task == task])
            if distance:
                lines.append(f"* Reach on {task} ({study}): k = {distance}, {about}")
    return lines


def locality(name: str, rows: list[Row]) -> tuple[str, str]:
    """Find the reach of a mechanism among the rows of a task, and its definition; both empty if it was not probed."""
    for column in extensions.columns(rows):
        if column.name != "locality":
            continue
        about = column.about.partition(": ")[2]
        for row, cell in zip(rows, column.cells, strict=True):
            if row.label == name:
                return cell.text, about
    return "", ""


def options(mechanism: MechanismFacts) -> str:
    """List the options of a mechanism with their defaults."""
    rows = [f"| `attn.{key}` | {format_option(value)} |" for key, value in mechanism.options.items()]
    if mechanism.block:
        rows.insert(0, f"| `block` | {mechanism.block} |")
    if not rows:
        return "## Options\n\nThis mechanism has no options."
    return "\n".join(["## Options", "", "| option | default |", "| --- | --- |", *rows])


def results(name: str) -> str:
    """List the results of runs in this repository: the Arena, other studies, scratch and pretrained."""
    studies = published_studies()
    items = []
    # The Arena first, then every study, with pretrained runs next to runs from scratch.
    for task_entries in entries(studies).values():
        items += [arena_result(entry) for entry in task_entries if mechanism_of(entry.row.label) == name]
    for study, rows in studies.items():
        scores = [study_result(row) for row in rows if mechanism_of(row.label) == name and row.scores]
        if scores:
            items.append(f"* {study}: {'; '.join(scores)}")
    if not items:
        return "## Results here\n\nNo runs of this mechanism are published."
    return "\n".join(["## Results here", "", *items])


def arena_result(entry: ArenaEntry) -> str:
    """Describe the runs of a mechanism at the papers' budget, with what differs from the usual training."""
    is_fresh = gains_are_fresh([entry])
    gain = gain_cell(entry, is_fresh=is_fresh).text
    test = " on fresh examples" if is_fresh else ""
    over = f", {gain} over the control{test}" if gain != "-" else ""
    seeds = seeds_text(entry.row.n, entry.row.num_failed)
    # The name of an entry is the label, with the remarks in brackets: cur_abs (6 layers, d 128).
    remarks = entry.name.removeprefix(entry.row.label)
    title = ", ".join([TITLES[entry.row.task], "papers' budget", *label_options(entry.row.label)])
    return f"* **{title}**{remarks}: {score_text(entry.row)} (n = {seeds}){over}"


def study_result(row: Row) -> str:
    """Describe the runs of a mechanism in one study: listops (masked pretraining) 36.02 ± 0.31 (n = 3)."""
    settings = label_options(row.label)
    if row.facts["budget"] != "paper":
        settings.insert(0, f"budget={row.facts['budget']}")
    if row.objective:
        is_matched = f"+{row.objective}-matched" in row.label
        tokens = " with matched tokens" if is_matched else ""
        settings.append(f"{row.objective} pretraining{tokens}")
    named = f" ({', '.join(settings)})" if settings else ""
    return f"{row.task}{named} {score_text(row)} (n = {seeds_text(row.n, row.num_failed)})"


def label_options(label: str) -> list[str]:
    """List the options of a label: ["optim.lr=0.001"] of linear-optim.lr=0.001 and of sdpa+masked-optim.lr=0.001."""
    return re.findall(r"-([\w.]+=.*?)(?=-[\w.]+=|\+(?:masked|next)|$)", label)


def costs(name: str) -> str:
    """List time and memory of a forward and backward pass by length.

    All mechanisms were measured on one machine in one run; kernels need a GPU. Only costs of one kind are comparable:
    attention on queries, keys and values, a mixer with its projections, or a whole layer.
    """
    record = bench()
    if record is None:
        return ""
    measured = [row for row in record.rows if row.mechanism == name and row.mode == "training" and row.ms]
    if not measured:
        return ""
    rows = []
    for row in sorted(measured, key=lambda row: row.n):
        memory = "" if row.peak_bytes is None else f"{row.peak_bytes / MEGABYTE:,.0f}"
        rows.append(f"| {row.n:,} | {row.ms:,.1f} | {memory} |")
    first = measured[0]
    clock = "CPU time" if record.choices.get("clock") == "cpu" else "Time"
    about = (
        f"{clock} and memory of forward and backward, batch {first.batch}, width {first.heads * first.head_dim}, "
        f"{first.dtype}, {plural(record.machine.threads, 'thread')} of {record.machine.hardware}. Attention on "
        f"queries, keys and values ({first.heads} heads of {first.head_dim}) is measured without its projections, a "
        "mixer of token vectors with them, and a mechanism that is a whole layer, such as MEGA, with all of its parts. "
        "MB: 2^20 bytes."
    )
    head = ["| tokens | ms | MB |", "| ---: | ---: | ---: |"]
    return "\n".join(["## Time and memory over length", "", about, "", *head, *rows])


def leaderboard_section(name: str, lines: Sequence[LeaderboardLine]) -> str:
    """Show the lines of the leaderboard that belong to a mechanism."""
    group = group_of("", name)
    mechanism_lines = [line for line in lines if line.group == group or name in line.names]
    if not mechanism_lines:
        return ""
    # The table's links are relative to docs, the card lies in docs/mechanisms.
    table = markdown(mechanism_lines).replace("](results.md", "](../results.md").replace("](../sub", "](../../sub")
    return "\n".join(["## On the leaderboard", "", table])


@functools.cache
def published_studies() -> Studies:
    """Rows of the published studies without learning-rate searches."""
    studies, _ = collect(HOME)
    return {study: rows for study, rows in studies.items() if not study.endswith(SEARCH_SUFFIX)}


@functools.cache
def bench() -> BenchRecord | None:
    """The benchmark of all mechanisms over several lengths; None without one."""
    return bench_record.load(COSTS) if COSTS.is_file() else None
