"""Charts are those of the numbers; colours differ in grey and for colour-blind readers, and no two looks are alike."""

import itertools
import math

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from support.records import add, diverged, metrics, of_study

from lra.config import CONF
from lra.report import artifacts, figures
from lra.report.palette import COLOURS, GROUND, INK, Palette
from lra.report.plots import learning_curves, speed_accuracy
from lra.report.plots.learning_curves import Curve
from lra.report.plots.speed_accuracy import Bubble

# Machado et al. 2009, "A physiologically-based model for simulation of color vision deficiency", severity 1.0.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB, D65


@pytest.fixture
def axes():
    return Figure(figsize=(5, 4)).subplots()


def flat(label):
    return Curve(label, [1, 2], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], 1)


def test_a_curve_is_the_mean_and_its_band_the_deviation(axes):
    curves = [
        Curve("a", [10, 20], [30.0, 40.0], [28.0, 37.0], [32.0, 43.0], 2),
        Curve("b", [10, 20], [5.0, 6.0], [5.0, 6.0], [5.0, 6.0], 1),
    ]
    palette = Palette(["a", "b"])
    notes = learning_curves.draw(axes, curves, palette)
    assert [line.get_ydata().tolist() for line in axes.lines] == [[30.0, 40.0], [5.0, 6.0]]
    assert all(line.get_xdata().tolist() == [10, 20] for line in axes.lines)
    (band,) = axes.patches
    assert {tuple(corner) for corner in band.get_xy()} == {(10, 32.0), (20, 43.0), (20, 37.0), (10, 28.0)}
    colours = [to_hex(line.get_color()) for line in axes.lines]
    assert colours == [to_hex(COLOURS[palette.colour(name)][0]) for name in "ab"] and len(set(colours)) == 2
    assert notes == {"a": "a: 40.00 ± 3.00 at step 20, n = 2", "b": "b: 6.00 at step 20, n = 1"}


def test_a_bubble_stands_at_its_time_and_score_and_its_area_is_the_memory(axes):
    group = [Bubble("small", 10.0, 60.0, 1.0, 5, 1 * 2**30), Bubble("large", 100.0, 80.0, None, 1, 4 * 2**30)]
    speed_accuracy.draw(axes, group, Palette(["large", "small"]))
    large, small = axes.collections  # the larger ones are behind
    assert [mark.get_offsets()[0].tolist() for mark in (large, small)] == [[100.0, 80.0], [10.0, 60.0]]
    most, least = (mark.get_sizes()[0] - 0.4 * rcParams["font.size"] ** 2 for mark in (large, small))
    assert most / least == pytest.approx(4) and to_hex(large.get_facecolor()[0]) != to_hex(small.get_facecolor()[0])
    figures.place_labels(axes.figure)
    shown = {text.get_text(): axes.transData.transform(text.get_position()) for text in axes.texts}
    for name, mark in (("large", large), ("small", small)):
        at = axes.transData.transform(mark.get_offsets()[0])
        assert math.dist(shown[name], at) < axes.figure.dpi  # an inch


def test_a_label_without_space_is_left_out(axes):
    group = [Bubble(f"{i:02} of some long names", 10.0 + i / 1e3, 60.0 + i % 2, None, 1, None) for i in range(24)]
    speed_accuracy.draw(axes, group, Palette(bubble.label for bubble in group))
    figures.place_labels(axes.figure)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 1 < len(boxes) < 24 and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_the_key_of_a_figure_names_each_line_and_its_charts():
    palette = Palette(["first", "second"])
    panels = {"listops": [flat("second"), flat("first")], "text": [flat("second"), flat("third")]}
    figure = figures.charts(panels, learning_curves.draw, palette)
    assert [axes.get_title("left") for axes in figure.axes] == ["listops", "text"]
    (key,) = figure.legends
    names = [text.get_text() for text in key.texts]
    shown = dict(zip(names, (to_hex(line.get_color()) for line in key.legend_handles), strict=True))
    coloured = {name: to_hex(COLOURS[palette.colour(name)][0]) for name in ("first", "second")}
    assert shown == coloured | {"1 others": to_hex("0.85")}
    assert [to_hex(line.get_color()) for line in figure.axes[0].lines] == [shown["second"], shown["first"]]


def test_curves_are_means_over_finished_seeds_at_shared_steps(tmp_path):
    for seed, values in enumerate(([1.0, 2.0, 3.0], [3.0, 6.0])):
        metrics(add(tmp_path, seed=seed), values)
    metrics(diverged(tmp_path, 20, seed=2), [100.0])
    (row,) = of_study(tmp_path)
    (curve,) = learning_curves.by_task([row], {folder: artifacts.read(folder)[0].curves for folder in row.runs})[
        "listops"
    ]
    assert (curve.steps, curve.mean, curve.n) == ([10, 20], [2.0, 4.0], 2)
    assert curve.high == pytest.approx([2 + math.sqrt(2), 4 + 2 * math.sqrt(2)])


def lab(colours, sight="normal"):
    """CIELAB of colours as a person with this sight sees them: lightness, then two hues."""
    rgb = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = (linear @ np.array(SIGHT[sight]).T).clip(0, 1) @ XYZ.T / XYZ.sum(1)
    f = np.where(seen > (6 / 29) ** 3, np.cbrt(seen), seen / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def closest(points):
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2))


def test_the_formula_knows_white_black_and_a_pair_that_a_deuteranope_confuses():
    assert lab(["#ffffff", "#000000"]) == pytest.approx(np.array([[100, 0, 0], [0, 0, 0]]), abs=0.05)
    pair = ["#c44e52", "#8a7a2c"]  # red and olive
    assert closest(lab(pair)) > 50 and closest(lab(pair, "deuteranopia")) < 20


@pytest.mark.parametrize("ground", [0, 1])
def test_colours_differ_for_everyone_and_in_grey(ground):
    """A difference of 2.3 is just noticed; the colours differ by ten times that, their greys by twice."""
    colours = [pair[ground] for pair in COLOURS]
    assert all(closest(lab(colours, sight)) > 23 for sight in SIGHT)
    assert closest(lab(colours)[:, :1]) > 4.6
    assert closest(lab([*(light for light, _ in COLOURS), INK, GROUND])[:, :1]) > 4.6


@pytest.mark.parametrize("look", [Palette.line, Palette.marker])
def test_no_two_labels_of_a_picture_have_one_look(look):
    labels = [path.stem for path in (CONF / "attn").glob("*.yaml")]
    palette = Palette(labels)
    assert len({str(look(palette, label)) for label in labels}) == len(labels) > 3 * len(COLOURS)
    assert len({(palette.colour(label), palette.dash(label)) for label in labels}) == len(labels)


def test_fonts_of_a_file_are_truetype(tmp_path):
    figure = figures.charts({"listops": [flat("a")]}, learning_curves.draw, Palette("a"), figures.COLUMN)
    figures.write(figure, tmp_path / "x", ["pdf"])
    written = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in written and b"/Type3" not in written
    box = written[written.index(b"/MediaBox") :].split(b"]")[0].split()
    assert float(box[-2]) == pytest.approx(72 * figures.COLUMN)
