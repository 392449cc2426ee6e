"""Speed against accuracy: test score over milliseconds per step, with bubbles whose area shows the peak memory."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from ...results.figures import ABOVE, SERIES, set_ticks_and_labels
from ...results.palette import GROUND, INK, Palette
from ...results.summary import Row


class Bubble(NamedTuple):
    """A label on one task and device: ms per step, test score with std over n seeds, peak bytes (None if unknown)."""

    label: str
    ms: float
    test: float
    std: float | None
    n: int
    peak: float | None


def by_task_and_device(rows: list[Row]) -> dict[tuple[str, str], list[Bubble]]:
    """Group rows as bubbles by (task, device), if there are two or more labels to compare."""
    groups = defaultdict(list)
    for row in rows:
        if not row.ms or row.test is None:
            continue
        bubble = Bubble(
            label=row.label,
            ms=row.ms,
            test=row.test,
            std=row.cell.std,
            n=row.n,
            peak=row.peak,
        )
        groups[row.task, row.ms_device].append(bubble)
    return {key: bubbles for key, bubbles in groups.items() if len(bubbles) > 1}


def draw(axes: Axes, bubbles: Sequence[Bubble], palette: Palette) -> dict[str, str]:
    """Draw a bubble for each label; its area grows with the peak memory.

    Returns:
        A tooltip for each label.
    """
    axes.set_xscale("log")
    axes.margins(0.12)
    largest_peak = max(bubble.peak or 0 for bubble in bubbles)
    # Grey bubbles are drawn first, then large ones, behind the small ones.
    back_to_front = sorted(bubbles, key=lambda bubble: (bubble.label in palette.position, -(bubble.peak or 0)))
    tooltips: dict[str, str] = {}
    for bubble in back_to_front:
        options = {"gid": f"{SERIES}{len(tooltips)}", **ABOVE}
        # Two equal line widths keep matplotlib from writing a shared marker, to which SVG would refer by an id.
        look = palette.marker(bubble.label) | {"ec": GROUND, "lw": (1.5, 1.5)}
        area = _area(bubble, largest_peak)
        axes.scatter(bubble.ms, bubble.test, area, alpha=0.9, **look, **options)

        # The name of a coloured bubble, in front of all bubbles.
        if bubble.label in palette.position:
            name = " ".join(bubble.label.split())
            options["zorder"] = 4
            axes.text(bubble.ms, bubble.test, name, color=INK, **options)
        tooltips[bubble.label] = _tooltip(bubble)

    set_ticks_and_labels(axes, "ms per step", "test score")
    times = [bubble.ms for bubble in bubbles]
    ratio = max(times) / min(times)
    if ratio > 4:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    return tooltips


def _area(bubble: Bubble, largest_peak: float) -> float:
    """Return the area of a bubble in square points: linear in its peak memory relative to the largest one."""
    # An unknown memory gets the square of the font size, a known one 0.4 to 6.4 times as much.
    letter = rcParams["font.size"] ** 2
    if not bubble.peak or not largest_peak:
        return letter
    return letter * (0.4 + 6 * bubble.peak / largest_peak)


def _tooltip(bubble: Bubble) -> str:
    """Describe a bubble: "cur_abs: 40.00 ± 3.00 (n = 2), 10.0 ms per step, 1.00 GiB"."""
    text = f"{bubble.label}: {bubble.test:.2f}"
    if bubble.std is not None:
        text += f" ± {bubble.std:.2f}"
    text += f" (n = {bubble.n}), {bubble.ms:.1f} ms per step"
    if bubble.peak:
        gibibytes = bubble.peak / 2**30
        text += f", {gibibytes:.2f} GiB"
    return text
