"""Figures show the numbers of their runs, colours are distinguishable, and labels of the board do not overlap."""

import itertools
import math

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from support.records import add, add_seeds, diverged, made, metrics, of_study, row

from lra.board.costs import Point, costs, draw, not_timed, picture
from lra.board.results import BoardResults
from lra.config import CONF
from lra.report import page
from lra.report.plots import learning_curves, lr_curves, seed_points, speed_accuracy
from lra.report.plots.learning_curves import Curve
from lra.report.plots.speed_accuracy import Bubble
from lra.results import figures
from lra.results.palette import COLOURED, COLOURS, CONTROL_FAMILY, FAMILIES, GROUND, INK, OTHER, Palette, family

# Machado et al. 2009, "A physiologically-based model for simulation of color vision deficiency", severity 1.0.
COLOUR_VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
# Linear sRGB to CIE XYZ with white point D65.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
ATTN_NAMES = [path.stem for path in (CONF / "attn").glob("*.yaml")]
LABELS = "sdpa none mean conv cur_abs cur_step nystrom soft psf linear s4d_lin mega performer luna s5 longformer mine"


@pytest.fixture
def axes():
    return Figure(figsize=(5, 4)).subplots()


def flat(label):
    return Curve(label, [1, 2], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], 1)


def test_learning_curve_shows_mean_and_standard_deviation(axes):
    two_seeds = Curve("a", [10, 20], [30.0, 40.0], [28.0, 37.0], [32.0, 43.0], 2)
    one_seed = Curve("b", [10, 20], [5.0, 6.0], [5.0, 6.0], [5.0, 6.0], 1)
    palette = Palette(["a", "b"])
    notes = learning_curves.draw(axes, [two_seeds, one_seed], palette)
    assert [line.get_ydata().tolist() for line in axes.lines] == [[30.0, 40.0], [5.0, 6.0]]
    assert all(line.get_xdata().tolist() == [10, 20] for line in axes.lines)
    (band,) = axes.patches
    assert {tuple(corner) for corner in band.get_xy()} == {(10, 32.0), (20, 43.0), (20, 37.0), (10, 28.0)}
    colours = [to_hex(line.get_color()) for line in axes.lines]
    assert colours == [to_hex(COLOURS[palette.colour_index(name)][0]) for name in "ab"] and len(set(colours)) == 2
    assert notes == {"a": "a: 40.00 ± 3.00 at step 20, n = 2", "b": "b: 6.00 at step 20, n = 1"}


def test_bubble_position_is_time_and_score_and_area_is_memory(axes):
    group = [Bubble("small", 10.0, 60.0, 1.0, 5, 1 * 2**30), Bubble("large", 100.0, 80.0, None, 1, 4 * 2**30)]
    speed_accuracy.draw(axes, group, Palette(["large", "small"]))
    # Larger bubbles are drawn first, behind smaller ones.
    large, small = axes.collections
    assert [mark.get_offsets()[0].tolist() for mark in (large, small)] == [[100.0, 80.0], [10.0, 60.0]]
    most, least = (mark.get_sizes()[0] - 0.4 * rcParams["font.size"] ** 2 for mark in (large, small))
    assert most / least == pytest.approx(4) and to_hex(large.get_facecolor()[0]) != to_hex(small.get_facecolor()[0])


def test_labels_without_space_are_omitted(axes):
    group = [Bubble(f"{i:02} of some long names", 10.0 + i / 1e3, 60.0 + i % 2, None, 1, None) for i in range(24)]
    speed_accuracy.draw(axes, group, Palette(bubble.label for bubble in group))
    figures.place_labels(axes.figure)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 1 < len(boxes) < 24 and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_legend_names_coloured_curves_and_counts_the_rest():
    palette = Palette(["first", "second"])
    panels = {"listops": [flat("second"), flat("first")], "text": [flat("second"), flat("third")]}
    figure = figures.charts(panels, learning_curves.draw, palette)
    assert [axes.get_title("left") for axes in figure.axes] == ["listops", "text"]
    (key,) = figure.legends
    names = [text.get_text() for text in key.texts]
    by_name = dict(zip(names, (to_hex(line.get_color()) for line in key.legend_handles), strict=True))
    coloured = {name: to_hex(COLOURS[palette.colour_index(name)][0]) for name in ("first", "second")}
    assert by_name == coloured | {"1 other": to_hex("0.85")}
    assert [to_hex(line.get_color()) for line in figure.axes[0].lines] == [by_name["second"], by_name["first"]]


def test_learning_curve_averages_finished_seeds_at_shared_steps(tmp_path):
    for seed, values in enumerate(([1.0, 2.0, 3.0], [3.0, 6.0])):
        metrics(add(tmp_path, seed=seed), values)
    metrics(diverged(tmp_path, 20, seed=2), [100.0])
    (row,) = of_study(tmp_path)
    curves = {folder: page.read_artifacts(folder)[0].curves for folder in row.runs}
    (curve,) = learning_curves.by_task([row], curves)["listops"]
    assert (curve.steps, curve.mean, curve.n) == ([10, 20], [2.0, 4.0], 2)
    assert curve.high == pytest.approx([2 + math.sqrt(2), 4 + 2 * math.sqrt(2)])


def lab(colours, vision="normal"):
    """Convert hex colours to CIELAB (L*, a*, b*) as seen with a colour-vision deficiency."""
    rgb = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    visible_rgb = (linear @ np.array(COLOUR_VISION[vision]).T).clip(0, 1) @ XYZ.T / XYZ.sum(1)
    f = np.where(visible_rgb > (6 / 29) ** 3, np.cbrt(visible_rgb), visible_rgb / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def min_distance(points):
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2))


def test_colours_are_distinct_for_colour_blind_readers_and_in_grey():
    """A distance of 2.3 is just noticeable; require ten times that between colours and twice that between greys."""
    # The conversion: white, black, and a pair of red and olive, which deuteranopes confuse.
    assert lab(["#ffffff", "#000000"]) == pytest.approx(np.array([[100, 0, 0], [0, 0, 0]]), abs=0.05)
    pair = ["#c44e52", "#8a7a2c"]
    assert min_distance(lab(pair)) > 50 and min_distance(lab(pair, "deuteranopia")) < 20
    # The colours on a light and on a dark ground.
    for colours in zip(*COLOURS, strict=True):
        assert all(min_distance(lab(colours, vision)) > 23 for vision in COLOUR_VISION)
        assert min_distance(lab(colours)[:, :1]) > 4.6
    assert min_distance(lab([*(light for light, _ in COLOURS), INK, GROUND])[:, :1]) > 4.6
    light, dark = (lab(colours)[:, 0] for colours in zip(*COLOURS, strict=True))
    assert light.max() < 61.6 and dark.min() > 41.7  # a contrast of 3 with #ffffff and #151514


@pytest.mark.parametrize("look", [Palette.line, Palette.marker])
def test_every_label_has_a_distinct_line_and_marker(look):
    palette = Palette(ATTN_NAMES)
    assert len({str(look(palette, label)) for label in ATTN_NAMES}) == len(ATTN_NAMES) > 3 * len(COLOURS)
    assert len({(palette.colour_index(label), palette.dash(label)) for label in ATTN_NAMES}) == len(ATTN_NAMES)


def test_pdf_embeds_truetype_fonts(tmp_path):
    figure = figures.charts({"listops": [flat("a")]}, learning_curves.draw, Palette("a"), figures.COLUMN_WIDTH)
    figures.write(figure, tmp_path / "x", ["pdf"])
    pdf_bytes = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in pdf_bytes and b"/Type3" not in pdf_bytes
    box = pdf_bytes[pdf_bytes.index(b"/MediaBox") :].split(b"]")[0].split()
    assert float(box[-2]) == pytest.approx(72 * figures.COLUMN_WIDTH)


def test_every_mechanism_has_exactly_one_family():
    assert not [name for name in ATTN_NAMES if family(name) == OTHER and name != "custom"]
    members = list(itertools.chain(*FAMILIES.values()))
    assert len(set(members)) == len(members) and {family(name) for name in members} == set(FAMILIES)
    longest = {"softpp": "low rank", "soft-steps=3": "low rank", "softmax": "exact", "mega_cur_abs": "MEGA"}
    longest |= {"sdpa+masked": "exact", "cur_abs+next": "CUR", "conv-width=3": CONTROL_FAMILY}
    others = ("sofa", "conv_mixer")
    assert {label: family(label) for label in (*longest, *others)} == longest | dict.fromkeys(others, OTHER)


def test_cost_figure_needs_a_mechanism_and_shows_median_step_times(tmp_path):
    add_seeds(tmp_path, "mean", (20.0, 22.0), floor=20.0)
    # Controls alone give no figure.
    assert not picture(BoardResults("board", of_study(tmp_path)))
    for task, ms in (("chain", 10.0), ("recall", 30.0), ("listops", 11.0)):
        add_seeds(tmp_path, "linear", (30.0, 32.0), task=task, floor=20.0, step_ms=ms)
    board = BoardResults("board", of_study(tmp_path))
    step_times, axis = costs(board)
    # Without a benchmark the cost is the median over tasks.
    assert step_times == {"linear": 11.0, "mean": 10.0} and "median over tasks" in axis and picture(board)


# The option of another budget, another value, and each mechanism's default; 4,096 / 8 = 512 tokens on the board.
OTHER_BUDGETS = (["++budgets.quick.allowance=512"], ["budgets.paper.allowance=64"], [])


@pytest.mark.parametrize("overrides", [["++budgets.paper.allowance=512"], *OTHER_BUDGETS], ids=str)
def test_benchmark_needs_token_budget_of_the_board(tmp_path, overrides):
    """Otherwise the step times of the runs are the costs; mechanisms without a benchmark are omitted and listed."""
    counts = overrides not in OTHER_BUDGETS
    for label, score in (("soft", 40.0), ("linear", 50.0), ("psf", 30.0)):
        add_seeds(tmp_path, label, (score, score + 1), floor=20.0, step_ms=7.0)
    bench_rows = [row(label, 4096, ms, mode="training") for label, ms in (("soft", 300.0), ("linear", 8.0))]
    choices = {"budget": "paper", "overrides": overrides, "clock": "cpu"}
    board = BoardResults("board", of_study(tmp_path), measured=[made(bench_rows, choices=choices)])
    ms, axis = costs(board)
    assert ms == ({"soft": 300.0, "linear": 8.0} if counts else dict.fromkeys(("soft", "linear", "psf"), 7.0))
    assert ("token budget 512" in axis) == counts and not_timed(board) == (["psf"] if counts else [])
    ((_, points),) = picture(board).panels.items()
    (axes,) = draw({axis: points}).axes
    assert ("psf" in {text.get_text() for text in axes.texts}) != counts


def test_cost_labels_do_not_overlap_and_controls_are_lines():
    rng, board = np.random.default_rng(0), []
    for label, score in zip(LABELS.split(), rng.uniform(20, 90, 17), strict=True):
        score = 10.0 if family(label) == CONTROL_FAMILY else score
        board.append(Point(label, np.exp(rng.uniform(2, 6)), score, score - 5, score + 5))
    figure = draw({"ms": board})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    controls = [box for label, box in boxes.items() if family(label) == CONTROL_FAMILY]
    label_boxes = [box for label, box in boxes.items() if label in LABELS.split() and family(label) != CONTROL_FAMILY]
    assert len(controls) == 3 <= len(axes.lines) and len(label_boxes) == len(board) - 3
    for group_boxes in (controls, label_boxes):
        assert not [pair for pair in itertools.combinations(group_boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in label_boxes)


@pytest.fixture
def rows(tmp_path):
    add_seeds(tmp_path, "sdpa", (60.0, 70.0), floor=20.0, lr=1e-3)
    add_seeds(tmp_path, "sdpa", (61.0, 71.0), task="text", floor=50.0)
    # A label that is invalid TeX math.
    add_seeds(tmp_path, "a$_$", (90.0, 90.0), floor=20.0)
    diverged(tmp_path, 7, label="sdpa", seed=2, floor=20.0)
    for rate, val in (("0.01", 40.0), ("0.0003", 30.0)):
        add(tmp_path, label=f"sdpa-optim.lr={rate}", val=val)
    diverged(tmp_path, 7, label="sdpa-optim.lr=0.003")
    return of_study(tmp_path)


def test_seed_plot_shows_every_seed(rows):
    figure = seed_points.draw_figure(seed_points.by_task(rows))
    listops, text = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["listops", "text"]
    # sdpa comes first because it has runs on both tasks.
    assert [label.get_text() for label in listops.get_yticklabels()] == ["sdpa", "a$_$"]
    points = lambda axes: sorted(tuple(xy) for marks in axes.collections for xy in marks.get_offsets().tolist())
    # The diverged seed is drawn at chance, 20.
    assert points(listops) == [(20.0, 0.0), (60.0, 0.0), (70.0, 0.0), (90.0, 1.0), (90.0, 1.0)]
    assert points(text) == [(61.0, 0.0), (71.0, 0.0)]
    assert [line.get_xdata()[0] for line in (*listops.lines, *text.lines)] == [20.0, 50.0]
    # Rates are drawn only where they apply.
    assert [picture.name for picture in seed_points.pictures(rows[:1])] == ["paper-paper/seeds"]


def test_lr_curve_includes_default_rate_and_gap_for_divergence(rows):
    (curve,) = lr_curves.by_task(rows)["listops"]
    assert curve == ("sdpa", [3e-4, 1e-3, 3e-3, 1e-2], [30.0, 38.0, None, 40.0])
    (axes,) = lr_curves.draw_figure({"listops": [curve]}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.0003", "0.001", "0.003", "0.01"]
    # Of many mechanisms the reference and the best ones are coloured.
    rate_curve = lambda label, val: lr_curves.LrCurve(label, [1e-3, 1e-2], [val, None])
    many = [rate_curve("sdpa", 1.0), *(rate_curve(f"m{i:02}", float(i)) for i in range(60))]
    (axes,) = lr_curves.draw_figure({"recall": many}).axes
    coloured = [to_hex(line.get_color()) != to_hex("0.85") for line in axes.lines]
    assert coloured == [False] * (61 - COLOURED) + [True] * COLOURED
    reference, *top_curves = axes.lines[-COLOURED:]
    assert reference.get_ydata()[0] == 1.0
    assert len({line.get_color() for line in (reference, *top_curves[1 - len(COLOURS) :])}) == len(COLOURS)
