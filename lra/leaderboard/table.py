"""The leaderboard as a table and as the page docs/leaderboard.md: filters, order, cells and remarks."""

from collections.abc import Sequence
from typing import Literal

from ..results.paper_values import TASKS, TITLES, Protocol
from ..results.table import Cell, Table, frame, in_markdown
from .lines import LeaderboardLine, Status

Order = Literal[
    "model", "mean", "average", "year", "listops", "text", "retrieval", "image", "pathfinder", "pathfinder_x"
]
HEAD = (
    "model",
    *TITLES.values(),
    "mean of 5",
    "protocol",
    "status",
    "year",
    "source",
    "average",
    "averaged over",
    "size",
)
TEXT_COLUMNS = ("model", "averaged over", "size", "protocol", "source", "status")
ABOUT = (
    "Accuracies in percent, FAIL: no better than chance; mean of 5: over the tasks without Path-X, the only average "
    "that compares all sources. average, averaged over: as the source prints it, and how it was computed."
)
INTRO = """# Leaderboard of the Long Range Arena

This table has the accuracies on the Long Range Arena that we know of: printed in papers, measured in this repository,
and [submitted](../CONTRIBUTING.md#submit-results). The table of
[google-research/long-range-arena](https://github.com/google-research/long-range-arena) has the results of its authors
of November 2020 and two external entries, IGLOO (2021) and TLB (2022).

**Compare rows of the same protocol only**: size and training can change a score as much as the mechanism does.

On the site (`make docs`) you can filter and sort the table. On the command line:

```sh
lra leaderboard task=listops protocol=two-layer since=2023 sort=listops
lra leaderboard write=true   # writes this page and the index of docs/mechanisms.md
```

| protocol | training |
| --- | --- |
| two-layer | the encoder of Nystromformer and of this suite: 2 layers, d 64, best validation (Text: test) checkpoint |
| official | sizes of the Long Range Arena: up to 6 layers, d 512, chosen per task |
| s4-sized | as state-space models and MEGA: mostly 4 to 8 layers, longer training, settings per task |
| pretrained | the same model first trained to predict masked or next inputs of the task |
| other | anything else, or not printed |

| status | meaning |
| --- | --- |
| verified | measured in this repository, or a submission whose rerun by another person agrees |
| reported | a submission without a rerun that agrees |
| quoted | printed in a paper, and read there or in [one that quotes it](published.md#where-the-numbers-were-read) |
| digest | printed in a paper, read in a summary of it |
| recalled | general knowledge that was not checked in the paper |

How to read the table:

* **mean of 5** is recomputed over ListOps, Text, Retrieval, Image and Pathfinder. Printed averages are not comparable:
  some count a missing Path-X or each FAIL as 50, some as 0, some leave it out (column *averaged over*).
* Papers that repeat the same numbers share a row. Different numbers for the same model are in adjacent rows; models are
  sorted by the highest mean of 5 among their rows.
* **year** is the year of the source, which may quote an older model. **size**: layers and width d of the models.
  FAIL: no better than chance.
* Rows with n (seeds) are *verified* or *reported*. (+k): k failed seeds, excluded from the mean. collapsed k/n: k of n
  seeds give every example the same answer; the mean includes them.
* On ListOps, with 2,000 test examples, a difference below about three points
  [may be chance](results.md#when-a-gap-to-a-published-value-means-something) if the test sets differ; on the same test
  set the limit is smaller, but papers do not print what is needed to compute it.

## All results

<div id="leaderboard-filters"></div>
"""


def select(
    lines: Sequence[LeaderboardLine],
    *,
    task: str | None = None,
    protocol: Protocol | None = None,
    since: int | None = None,
    status: Status | None = None,
) -> list[LeaderboardLine]:
    """Filter lines.

    Args:
        lines: lines of the leaderboard.
        task: task on which a line needs a score.
        protocol: class of training.
        since: first year; lines of an unknown year are left out.
        status: status of the scores.
    """
    # A line needs every property that is asked for.
    selected = []
    for line in lines:
        has_task = task is None or task in line.scores
        has_protocol = protocol in (None, line.protocol)
        is_recent = since is None or (line.year is not None and line.year >= since)
        has_status = status in (None, line.status)
        if has_task and has_protocol and is_recent and has_status:
            selected.append(line)
    return selected


def ordered(lines: Sequence[LeaderboardLine], order: Order | None = None) -> list[LeaderboardLine]:
    """Sort lines; lines without the value come last.

    Args:
        lines: lines of the leaderboard.
        order: column; None keeps the lines of one model together, models with the highest mean of five tasks first.
    """
    if order == "model":
        return sorted(lines, key=lambda line: line.model.casefold())
    if order is None:
        # A model ranks by its best line, which its other lines follow.
        best: dict[str, float] = {}
        for line in lines:
            best[line.group] = max(best.get(line.group, 0.0), rank_value(line, "mean"))
        return sorted(lines, key=lambda line: (-best[line.group], line.group, -rank_value(line, "mean")))
    return sorted(lines, key=lambda line: -rank_value(line, order))


def rank_value(line: LeaderboardLine, order: Order) -> float:
    """Value of a line in a column; -1 without one or for FAIL, so that the line comes last."""
    if order == "mean":
        value = line.mean_of_five
    elif order == "average":
        value = line.average
    elif order == "year":
        value = line.year
    else:
        value = line.scores[order].value if order in line.scores else None
    return -1.0 if value is None else float(value)


def table(lines: Sequence[LeaderboardLine], order: Order | None = None) -> Table:
    """Make the table of the lines, sorted by ``ordered``."""
    rows = []
    for line in ordered(lines, order):
        # The model, its score on each task, and the mean of five.
        cells: list[Cell | str] = [line.model]
        for task in TASKS:
            score = line.scores.get(task)
            cells.append(Cell(text=score.text, value=score.value) if score else Cell())
        mean_of_five = line.mean_of_five
        cells.append(Cell() if mean_of_five is None else Cell.of(mean_of_five))
        # Protocol, status, origin, and the average as the source prints it.
        sources = ", ".join(name for name, _ in line.sources)
        year = "" if line.year is None else str(line.year)
        cells += [line.protocol, line.status, year, sources]
        cells.append(Cell() if line.average is None else Cell.of(line.average))
        cells += [line.averaged, line.size]
        rows.append(cells)
    return Table(
        name="leaderboard",
        title="Leaderboard",
        about=ABOUT,
        cells=frame(HEAD, rows),
        words=TEXT_COLUMNS,
    )


def markdown(lines: Sequence[LeaderboardLine]) -> str:
    """Format the table for the page, with links to the sources.

    Args:
        lines: lines in any order.
    """
    alignment = ["---" if name in TEXT_COLUMNS else "---:" for name in HEAD]
    rows = [list(HEAD), alignment]
    for line, (_, cells) in zip(ordered(lines), table(lines).rows(), strict=True):
        # A bar would end the cell.
        texts = {}
        for name, cell in zip(HEAD, cells, strict=True):
            texts[name] = in_markdown(cell.text).replace("|", "\\|")
        texts["source"] = ", ".join(f"[{in_markdown(name)}]({address})" for name, address in line.sources)
        rows.append(list(texts.values()))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(lines: Sequence[LeaderboardLine]) -> str:
    """Render docs/leaderboard.md."""
    return "\n".join([INTRO, markdown(lines), "", remarks(lines)])


def remarks(lines: Sequence[LeaderboardLine]) -> str:
    """List the notes on lines, each with the models that it is about."""
    by_note: dict[str, list[str]] = {}
    for line in lines:
        if line.note:
            # Scores of one line often have the same note.
            note = "; ".join(dict.fromkeys(line.note.split("; ")))
            sources = ", ".join(name for name, _ in line.sources)
            by_note.setdefault(note, []).append(in_markdown(f"{line.model} ({sources})"))
    items = [f"* {', '.join(models)}: {note}." for note, models in by_note.items()]
    return "\n".join(["## Remarks", "", *items, ""])
