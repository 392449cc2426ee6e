"""The curves of one run: a line for each seed."""

from matplotlib.axes import Axes

from ..figures import ABOVE, SERIES, ticks
from ..palette import Palette


def draw(axes: Axes, curves: dict[int, dict[int, float]], palette: Palette) -> dict[str, str]:
    """Draw a line for each seed.

    Args:
        axes: axes to draw into.
        curves: value by step, by seed.
        palette: colours of the seeds.

    Returns:
        A tooltip for each seed.
    """
    for i, (seed, curve) in enumerate(curves.items()):
        steps = list(curve)
        values = list(curve.values())
        axes.plot(steps, values, **palette.line(seed), gid=f"{SERIES}{i}", **ABOVE)
    ticks(axes, "step")
    return {str(seed): f"seed {seed}" for seed in curves}
