"""The papers' tables as printed, with our runs below each line that has a mechanism of ours."""

from dataclasses import dataclass
from statistics import geometric_mean

from . import published
from .published import Published
from .results import average, cell, over_tasks
from .significance import MARKS, mark
from .summary import Row
from .table import Cell, Table, frame

AVERAGE = "average"
NAMES = {"speedup_vs_transformer": "speed-up", "peak_memory_ratio_vs_transformer": "memory"}
SMALL = "2 layers, 2 heads, d = 64, mean pooling, the best of the evaluations on dev: what protocol=paper does too"


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A table of published.csv.

    Args:
        name: stem of its files.
        title: of the table in the report.
        paper, table: its rows in published.csv.
        protocol: the treatment behind its numbers.
        unlike: the differences of ours.
        metric: of our rows that are compared with it.
    """

    name: str
    title: str
    paper: str
    table: str
    protocol: str
    unlike: str
    metric: str = "accuracy"


PAPERS = (
    Paper(
        name="curformer-table-1",
        title="CURformer, Table 1: accuracy",
        paper="CURformer",
        table="Table 1",
        protocol=f"CURformer: {SMALL}, 64 rows and columns kept, mean of 5 runs. The other lines are quoted from "
        "papers with models and training of their own (Mega has 4 to 8 layers).",
        unlike="The released script for ListOps trains longer, 20,000 steps of 128 (experiment=curformer_listops); "
        "the paper does not say which one it used. Printed averages partly count a sixth task; ours are over five.",
    ),
    Paper(
        name="curformer-table-2",
        title="CURformer, Table 2: speed-up and peak memory relative to the Transformer",
        paper="CURformer",
        table="Table 2",
        protocol="Length, batch and hardware are not stated with the table; Transformer = 1.",
        unlike="Ours are whole training steps against attn=softmax of the same study, task and device, geometric means "
        "over the tasks that both have; memory only on a GPU, which counts it.",
    ),
    Paper(
        name="curformer-table-4",
        title="CURformer, Table 4: ways to select rows and columns (transposed)",
        paper="CURformer",
        table="Table 4",
        protocol=f"{SMALL}, mean and spread of 5 runs.",
        unlike="As in Table 1. The spreads printed for Pathfinder look like fractions, not percentage points, and "
        "the printed averages are (sum of the five + 50) / 6; ours are over the five.",
    ),
    Paper(
        name="soft-table-12",
        title="SOFT, Table 12: accuracy",
        paper="SOFT",
        table="Table 12",
        protocol=f"{SMALL} (that of Xiong et al. 2021, from which all lines but SOFT are quoted).",
        unlike="Pathfinder is left out, also from our averages. Number of seeds, padding and iterations of "
        "SOFT are not stated.",
    ),
    Paper(
        name="psf-table-2",
        title="PSF-Attn, Table 2: ROC-AUC of predicted classes (balanced accuracy)",
        paper="PSF-Attn",
        table="Table 2",
        protocol="PSF-Attn: one block, the others up to 4 layers, d = 32, constant learning rate. The epoch of the "
        "printed test score is not stated.",
        unlike="The best of the evaluations on dev. These are runs with task.metric=balanced_accuracy, as in "
        "experiment=psf_genome; task=genome itself has roc_auc, of scores.",
        metric="balanced_accuracy",
    ),
    Paper(
        name="psf-table-3",
        title="PSF-Attn, Table 3: accuracy",
        paper="PSF-Attn",
        table="Table 3",
        protocol="PSF-Attn: one block of its own sizes for each task, constant learning rate, mean and deviation of "
        "4 seeds, the best of the evaluations on test. The other lines are quoted from the papers they name.",
        unlike="Ours never chooses on test (but for Text, where protocol=paper makes it the dev set). PSF trains Image "
        "on all 50,000 pictures, mixes the three difficulties of Pathfinder, and reads 4,096 bytes of Text.",
    ),
    Paper(
        name="leaderboard",
        title="Long Range Arena, official leaderboard: accuracy",
        paper="Long Range Arena",
        table="leaderboard",
        protocol="Up to 6 layers and d = 512, sizes and schedule set for each task and partly for each mechanism, "
        "one run, the final weights.",
        unlike="One small encoder for every task and mechanism, and the best of the evaluations on dev. "
        "Averages are over the five tasks without Path-X (pathfinder_x), printed and ours.",
    ),
)


def tables(studies: dict[str, list[Row]]) -> list[Table]:
    """Make every table of ``PAPERS`` with the rows of the studies."""
    return [table(paper, studies) for paper in PAPERS]


def printed(paper: Paper) -> list[Published]:
    """The values of a paper's table, in the order of print."""
    return [v for v in published.read() if v.paper.startswith(paper.paper) and v.table == paper.table]


def table(paper: Paper, studies: dict[str, list[Row]]) -> Table:
    """Make a paper's table: its lines in the order of print, ours directly below, one for each study and label.

    Args:
        paper: the table.
        studies: their rows by name.
    """
    values = printed(paper)
    ratios = values[0].metric in NAMES
    key = (lambda v: v.metric) if ratios else (lambda v: v.task)
    columns = list(dict.fromkeys(map(key, values)))
    if not ratios:
        fits = lambda row: row.task in columns and row.facts["metric"] == paper.metric
        studies = {study: [row for row in rows if fits(row)] for study, rows in studies.items()}
    by_line = {(v.model, key(v)): v for v in values}
    attn = {v.model: v.attn for v in values}
    printed_cells = _best([[_printed(by_line.get((model, column))) for column in columns] for model in attn])
    ours = {
        model: [(study, word) for study, rows in studies.items() for word in words.split() if _has(rows, word)]
        for model, words in attn.items()
    }
    measured: dict[tuple[str, str], list[Cell]] = {}
    for study, rows in studies.items():
        labels = sorted({label for pairs in ours.values() for s, label in pairs if s == study})
        cells_of = _ratios if ratios else _scores
        measured |= {
            (study, label): cells for label, cells in zip(labels, cells_of(rows, labels, columns), strict=True)
        }
    lines, keys = [], []
    for model, cells in zip(attn, printed_cells, strict=True):
        lines.append([model, "published", *cells])
        keys.append(("", "", attn[model]))
        for study, label in ours[model]:
            lines.append([label, study, *measured[study, label]])
            keys.append((study, label, ""))
    return Table(
        name=paper.name,
        title=paper.title,
        about=f"Published: {paper.protocol} Ours: {paper.unlike} {_unequal(studies)}{MARKS}",
        cells=frame(("mechanism", "run", *(NAMES.get(column, column) for column in columns)), lines, keys),
        words=("mechanism", "run"),
    )


def _has(rows: list[Row], word: str) -> bool:
    return any(row.label == word for row in rows)


def _printed(value: Published | None) -> Cell:
    if value is None:
        return Cell()
    return Cell(text=value.text, value=value.number, std=float(value.std) if value.std else None, note=value.note)


def _best(lines: list[list[Cell]]) -> list[list[Cell]]:
    """Mark the highest published cell of each column; there is no test, since single runs are not published."""
    columns = [mark(column, [{} for _ in column]) for column in zip(*lines, strict=True)]
    return [list(line) for line in zip(*columns, strict=True)]


def _scores(rows: list[Row], labels: list[str], columns: list[str]) -> list[list[Cell]]:
    """Make a line of cells for each label, with the best and tied ones of the study marked."""
    by_label_and_task = {(row.label, row.task): row for row in rows}
    # The benchmark's averages leave Path-X out, since hardly any mechanism learns it.
    tasks = [task for task in columns if task not in (AVERAGE, "pathfinder_x")]
    cells = []
    for column in columns:
        lines = [
            [by_label_and_task.get((label, task)) for task in (tasks if column == AVERAGE else [column])]
            for label in labels
        ]
        if column == AVERAGE:
            cells.append(mark([average(line) for line in lines], [over_tasks(line) for line in lines]))
        else:
            cells.append(mark([cell(row) for (row,) in lines], [row.scores if row else {} for (row,) in lines]))
    return [list(line) for line in zip(*cells, strict=True)]


def _ratios(rows: list[Row], labels: list[str], columns: list[str]) -> list[list[Cell]]:
    """Compute speed-up and memory against softmax, geometric means over the tasks that both have on one device."""
    base = {(row.task, row.facts["device"]): row for row in rows if row.label == "softmax"}
    lines = []
    for label in labels:
        comparable = [row for row in rows if row.label == label and (row.task, row.facts["device"]) in base]
        pairs = [(row, base[row.task, row.facts["device"]]) for row in comparable]
        times = {row.task: ref.ms / row.ms for row, ref in pairs if row.ms and ref.ms}
        sizes = {row.task: row.peak / ref.peak for row, ref in pairs if row.peak and ref.peak}
        ratios = {"speedup_vs_transformer": times, "peak_memory_ratio_vs_transformer": sizes}
        lines.append([_ratio(ratios[column]) for column in columns])
    return lines


def _ratio(values: dict[str, float]) -> Cell:
    if not values:
        return Cell()
    value = geometric_mean(values.values())
    return Cell(text=f"{value:.2f}", value=value, note="; ".join(f"{task} {x:.2f}" for task, x in values.items()))


def _unequal(studies: dict[str, list[Row]]) -> str:
    """Name the studies that cannot be compared with published numbers."""
    lines = []
    for study, rows in studies.items():
        words = {
            f"{key} {row.facts[key]}" for row in rows for key in ("protocol", "budget") if row.facts[key] != "paper"
        }
        if words:
            lines.append(f"Study {study} does not compare with them ({', '.join(sorted(words))}). ")
    return "".join(lines)
