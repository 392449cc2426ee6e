"""The measured growth of the time with n, next to the claimed one."""

from matplotlib.figure import Figure

from .. import figures
from ..bench_groups import Group, growth, label
from ..palette import COLOURS
from .cost_bars import bar_height


def draw(group: Group, width: float) -> Figure:
    """Draw the measured and the claimed exponent of n of each contestant, the largest first.

    Args:
        group: rows of a benchmark with three or more lengths.
        width: width in inches.
    """
    # Contestants with at least three lengths.
    exponents = {}
    for name, rows in group.over_n().items():
        exponent = growth([(row.n, row.ms) for row in rows])
        if exponent is not None:
            exponents[name] = exponent
    names = sorted(exponents, key=lambda name: -exponents[name])
    claimed = {label(row): row.claimed for row in group.rows}

    figure, (axes,) = figures.grid(("",), width, height=bar_height(group))
    axes.scatter([claimed[name] for name in names], names, marker="|", color="0.5", s=90, label="claimed")
    axes.scatter([exponents[name] for name in names], names, color=COLOURS[0][0], s=22, label="measured")
    axes.set(xlabel=f"exponent of n in the time, up to n = {group.lengths[-1]:,}")
    axes.grid(axis="x")
    axes.margins(y=0.02)
    axes.legend()
    return figure
