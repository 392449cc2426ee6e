"""The agreement of a board's ranking with published scores of the Long Range Arena."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..results import figures, paper_values
from ..results.figures import Picture
from ..results.palette import EXACT, INK, family, look
from ..results.statistics import mean_over_tasks, rank_correlation
from ..results.table import Cell, Table, TableRow, frame
from .results import BoardResults

# A source is compared from this number of common mechanisms on: with fewer the interval covers nearly everything.
MIN_MECHANISMS = 10
# Without Path-X, for which many sources print no number.
FIVE_TASKS = paper_values.TASKS[:5]
LISTOPS = "listops"
ABOUT = (
    "Spearman's rank correlation between the scores of this board and the mean accuracies of a published source, with "
    "a 95 % bootstrap interval over mechanisms. Sources with fewer than "
    f"{MIN_MECHANISMS} common mechanisms are left out."
)


class Pair(NamedTuple):
    """A mechanism: its mean accuracy in a published source and its score on the board, both in percent."""

    label: str
    published: float
    board: float


def pairs(board: BoardResults) -> dict[tuple[str, str], list[Pair]]:
    """Pair the scores of a board with the accuracies of each source, over all tasks and on ListOps alone.

    Returns:
        (source, "all" or "listops") -> the mechanisms that both have.
    """
    all_tasks = {label: float(mean_over_tasks(scores)) for label, scores in board.complete.items()}
    listops = {}
    for label, by_task in board.scores.items():
        if LISTOPS in by_task:
            listops[label] = float(by_task[LISTOPS].mean())

    pairs_of = {}
    comparisons = (("all", all_tasks, FIVE_TASKS), (LISTOPS, listops, (LISTOPS,)))
    for name, scores, tasks in comparisons:
        published_means = by_source(list(scores), tasks)
        for source, accuracies in sorted(published_means.items()):
            common = []
            for label, score in scores.items():
                if label in accuracies:
                    common.append(Pair(label, accuracies[label], 100 * score))
            if len(common) >= MIN_MECHANISMS:
                pairs_of[source, name] = common
    return pairs_of


def agreement_table(board: BoardResults) -> Table | None:
    """Make the table of rank correlations with each published source; None if no source has enough mechanisms."""
    lines: list[TableRow] = []
    for (source, tasks), common in pairs(board).items():
        board_scores = [pair.board for pair in common]
        accuracies = [pair.published for pair in common]
        correlation, low, high = rank_correlation(board_scores, accuracies)
        num_mechanisms = len(common)
        cells = [
            Cell.of(num_mechanisms, str),
            Cell.of(correlation, n=num_mechanisms),
            Cell(text=f"{low:.2f} to {high:.2f}"),
        ]
        lines.append([source, tasks, *cells])
    if not lines:
        return None
    return Table(
        name=f"agreement/{board.name}",
        title=f"{board.name}: agreement with published scores",
        about=ABOUT,
        cells=frame(("source", "tasks", "mechanisms", "correlation", "interval"), lines),
        words=("source", "tasks", "interval"),
    )


def by_source(labels: list[str], tasks: Collection[str]) -> dict[str, dict[str, float]]:
    """Average the published accuracies in each source over the tasks that it prints for all of its labels.

    Args:
        labels: labels on the board.
        tasks: tasks that count.

    Returns:
        Source -> label -> mean accuracy in percent, without sources that have no task in common for their labels.
    """
    # Source -> label -> task -> accuracy.
    printed: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for label in labels:
        values = paper_values.accuracies(label, tasks)
        # sdpa and softmax compute the same function.
        if label == EXACT:
            values += paper_values.accuracies("softmax", tasks)
        for value in values:
            if value.number is not None:
                by_task = printed[value.source][label]
                by_task.setdefault(value.task, value.number)

    averages: dict[str, dict[str, float]] = {}
    for source, by_label in printed.items():
        common_tasks = set.intersection(*map(set, by_label.values()))
        if not common_tasks:
            continue
        averages[source] = {}
        for label, accuracies in by_label.items():
            common = [accuracies[task] for task in common_tasks]
            averages[source][label] = mean(common)
    return averages


def picture(board: BoardResults) -> Picture | None:
    """Make the picture of a board, a chart for each source; None if no source has enough mechanisms in common."""
    panels = {f"{source}, tasks: {tasks}": common for (source, tasks), common in pairs(board).items()}
    if not panels:
        return None
    caption = f"scores of {board.name} over published accuracies"
    return Picture(f"{board.name}/agreement", caption, draw, panels)


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Pair]], width: float = figures.TEXT_WIDTH) -> Figure:
    """Draw a point for each mechanism.

    Args:
        panels: mechanisms by source.
        width: width in inches.
    """
    figure, charts = figures.grid(panels, width)
    labels = []
    for axes, common in zip(charts, panels.values(), strict=True):
        for pair in common:
            axes.plot(pair.published, pair.board, linestyle="none", **look(family(pair.label)))
            axes.text(pair.published, pair.board, pair.label, color=INK)
            labels.append(pair.label)
        axes.set(xlabel="published accuracy, %", ylabel="score on the board, %")
    figures.add_family_legend(figure, labels)
    figures.place_labels(figure, leaders=True)
    return figure
