"""The scores of a board over published accuracies, a chart for each source."""

from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure

from .. import figures
from ..figures import Picture
from ..palette import INK, family, look
from .agreement import Pair, pairs
from .results import BoardResults


def picture(board: BoardResults) -> Picture | None:
    """Make the picture of a board; None if no source has enough mechanisms in common."""
    panels = {f"{source}, tasks: {tasks}": common for (source, tasks), common in pairs(board).items()}
    if not panels:
        return None
    caption = f"scores of {board.name} over published accuracies"
    return Picture(f"{board.name}/agreement", caption, draw, panels)


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Pair]], width: float = figures.TEXT) -> Figure:
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
    figures.families(figure, labels)
    figures.place_labels(figure, leaders=True)
    return figure
