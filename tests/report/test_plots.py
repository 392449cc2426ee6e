"""The charts of the report: positions, areas, colours and keys are those of the numbers."""

import itertools
import math

import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lra.report import figures, plots
from lra.report.palette import COLOURS, Palette
from lra.report.plots import Bubble, Curve


@pytest.fixture
def axes():
    return Figure(figsize=(5, 4)).subplots()


def test_a_curve_is_the_mean_and_its_band_the_deviation(axes):
    curves = [
        Curve("a", [10, 20], [30.0, 40.0], [28.0, 37.0], [32.0, 43.0], 2),
        Curve("b", [10, 20], [5.0, 6.0], [5.0, 6.0], [5.0, 6.0], 1),
    ]
    palette = Palette(["a", "b"])
    notes = plots.learning(axes, curves, palette)
    assert [line.get_ydata().tolist() for line in axes.lines] == [[30.0, 40.0], [5.0, 6.0]]
    assert all(line.get_xdata().tolist() == [10, 20] for line in axes.lines)
    (band,) = axes.patches
    assert {tuple(corner) for corner in band.get_xy()} == {(10, 32.0), (20, 43.0), (20, 37.0), (10, 28.0)}
    colours = [to_hex(line.get_color()) for line in axes.lines]
    assert colours == [to_hex(COLOURS[palette.colour(name)][0]) for name in "ab"] and len(set(colours)) == 2
    assert notes == {"a": "a: 40.00 ± 3.00 at step 20, n = 2", "b": "b: 6.00 at step 20, n = 1"}


def test_a_bubble_stands_at_its_time_and_score_and_its_area_is_the_memory(axes):
    group = [Bubble("small", 10.0, 60.0, 1.0, 5, 1 * 2**30), Bubble("large", 100.0, 80.0, None, 1, 4 * 2**30)]
    plots.trade(axes, group, Palette(["large", "small"]))
    large, small = axes.collections  # the larger ones are behind
    assert [mark.get_offsets()[0].tolist() for mark in (large, small)] == [[100.0, 80.0], [10.0, 60.0]]
    most, least = (mark.get_sizes()[0] - 0.4 * rcParams["font.size"] ** 2 for mark in (large, small))
    assert most / least == pytest.approx(4) and to_hex(large.get_facecolor()[0]) != to_hex(small.get_facecolor()[0])
    figures.settle(axes.figure)
    shown = {text.get_text(): axes.transData.transform(text.get_position()) for text in axes.texts}
    for name, mark in (("large", large), ("small", small)):
        at = axes.transData.transform(mark.get_offsets()[0])
        assert math.dist(shown[name], at) < axes.figure.dpi  # an inch


def test_a_label_without_space_is_left_out(axes):
    group = [Bubble(f"{i:02} of some long names", 10.0 + i / 1e3, 60.0 + i % 2, None, 1, None) for i in range(24)]
    plots.trade(axes, group, Palette(bubble.label for bubble in group))
    figures.settle(axes.figure)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 1 < len(boxes) < 24 and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_the_key_of_a_figure_names_each_line_and_its_charts():
    curve = lambda label: Curve(label, [1, 2], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], 1)
    palette = Palette(["first", "second"])
    panels = {"listops": [curve("second"), curve("first")], "text": [curve("second"), curve("third")]}
    figure = figures.charts(panels, plots.learning, palette)
    assert [axes.get_title("left") for axes in figure.axes] == ["listops", "text"]
    (key,) = figure.legends
    shown = {
        text.get_text(): to_hex(line.get_color()) for text, line in zip(key.texts, key.legend_handles, strict=True)
    }
    coloured = {name: to_hex(COLOURS[palette.colour(name)][0]) for name in ("first", "second")}
    assert shown == coloured | {"1 others": to_hex("0.85")}
    assert [to_hex(line.get_color()) for line in figure.axes[0].lines] == [shown["second"], shown["first"]]
