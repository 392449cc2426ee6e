"""The pictures of a board: costs, families, labels that can be read; seeds and learning rates by mechanism and task."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex
from support.bench import made, row
from support.records import add, add_seeds, diverged, of_study

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.report.board.costs import LENGTH_PER_BUDGET, costs
from lra.report.board.results import BoardResults
from lra.report.board.score_over_cost import Point, draw, not_timed, picture
from lra.report.palette import COLOURED, COLOURS, CONTROL, FAMILIES, OTHER, family
from lra.report.plots import lr_curves, seed_points

LABELS = "sdpa none mean conv cur_abs cur_step nystrom soft psf linear s4d_lin mega performer luna s5 longformer mine"


def test_every_mechanism_has_a_family_and_every_name_one_alone():
    names = [path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom"]
    assert not [name for name in names if family(name) == OTHER]
    members = list(itertools.chain(*FAMILIES.values()))
    assert len(set(members)) == len(members)
    assert {family(name) for name in members} == set(FAMILIES)
    longest = {"softpp": "low rank", "soft-steps=3": "low rank", "softmax": "exact", "mega_cur_abs": "MEGA"}
    assert {label: family(label) for label in (*longest, "sofa")} == longest | {"sofa": OTHER}


def test_without_a_benchmark_the_cost_is_the_median_step_of_the_tasks(tmp_path):
    for task, ms in (("chain", 10.0), ("recall", 30.0), ("listops", 11.0)):
        add(tmp_path, task=task, label="linear", step_ms=ms)
    found, axis = costs(BoardResults("board", of_study(tmp_path)))
    assert found == {"linear": 11.0} and "median over tasks" in axis


@pytest.mark.parametrize(
    ("override", "counts"),
    [
        ("++budgets.paper.allowance=512", True),  # 4,096 / 8, as on the board
        ("budgets.paper.allowance=64", False),
        ("++budgets.quick.allowance=512", False),  # of another budget
        (None, False),  # each mechanism's default
    ],
)
def test_only_costs_at_the_token_budget_of_the_board_count(tmp_path, override, counts):
    """The others leave the steps of the runs; a mechanism without a time is not in the picture, and named."""
    for label, score in (("soft", 40.0), ("linear", 50.0), ("psf", 30.0)):
        add_seeds(tmp_path, label, (score, score + 1), floor=20.0, step_ms=7.0)
    timed = [row(label, 4096, ms, mode="training") for label, ms in (("soft", 300.0), ("linear", 8.0))]
    choices = {"budget": "paper", "overrides": [override] if override else [], "clock": "cpu"}
    board = BoardResults("board", of_study(tmp_path), measured=[made(timed, choices=choices)])
    ms, axis = costs(board)
    assert ms == ({"soft": 300.0, "linear": 8.0} if counts else dict.fromkeys(("soft", "linear", "psf"), 7.0))
    assert ("token budget 512" in axis) == counts and not_timed(board) == (["psf"] if counts else [])
    ((_, points),) = picture(board).panels.items()
    (axes,) = draw({axis: points}).axes
    assert ("psf" in {text.get_text() for text in axes.texts}) != counts


def test_the_tasks_of_the_board_have_the_token_budget_at_which_costs_count():
    for name in yaml.safe_load((CONF / "sweep" / "board.yaml").read_text())["sweep"]["tasks"]:
        experiment = compose(Experiment, [f"experiment={name}", "attn=cur_abs"])
        assert experiment.task.length == LENGTH_PER_BUDGET * experiment.choices({})["attn.count"]


def test_a_board_of_controls_alone_has_no_picture(tmp_path):
    add_seeds(tmp_path, "mean", (20.0, 22.0), floor=20.0)
    assert not picture(BoardResults("board", of_study(tmp_path)))
    add_seeds(tmp_path, "mine", (30.0, 32.0), floor=20.0)
    assert picture(BoardResults("board", of_study(tmp_path)))


def test_labels_overlap_neither_each_other_nor_the_edge_and_controls_are_lines():
    rng, board = np.random.default_rng(0), []
    for label, score in zip(LABELS.split(), rng.uniform(20, 90, 17), strict=True):
        score = 10.0 if family(label) == CONTROL else score
        board.append(Point(label, np.exp(rng.uniform(2, 6)), score, score - 5, score + 5))
    figure = draw({"ms": board})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    controls = [box for label, box in boxes.items() if family(label) == CONTROL]
    others = [box for label, box in boxes.items() if label in LABELS.split() and family(label) != CONTROL]
    assert len(controls) == 3 <= len(axes.lines) and len(others) == len(board) - 3
    for several in (controls, others):
        assert not [pair for pair in itertools.combinations(several, 2) if pair[0].overlaps(pair[1])]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in others)


@pytest.fixture
def rows(tmp_path):
    add_seeds(tmp_path, "sdpa", (60.0, 70.0), floor=20.0, lr=1e-3)
    add_seeds(tmp_path, "sdpa", (61.0, 71.0), task="text", floor=50.0)
    add_seeds(tmp_path, "a$_$", (90.0, 90.0), floor=20.0)  # a wrong formula
    diverged(tmp_path, 7, label="sdpa", seed=2, floor=20.0)
    for rate, dev in (("0.01", 40.0), ("0.0003", 30.0)):
        add(tmp_path, label=f"sdpa-optim.lr={rate}", val=dev)
    diverged(tmp_path, 7, label="sdpa-optim.lr=0.003")
    return of_study(tmp_path)


def test_every_seed_is_a_point_in_the_row_of_its_mechanism(rows):
    figure = seed_points.draw_figure(seed_points.by_task(rows))
    listops, text = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["listops", "text"]
    assert [label.get_text() for label in listops.get_yticklabels()] == ["sdpa", "a$_$"]  # first, since on both tasks
    points = lambda axes: sorted(tuple(at) for marks in axes.collections for at in marks.get_offsets().tolist())
    assert points(listops) == [(20.0, 0.0), (60.0, 0.0), (70.0, 0.0), (90.0, 1.0), (90.0, 1.0)]  # the lost one at 20
    assert points(text) == [(61.0, 0.0), (71.0, 0.0)]
    assert [line.get_xdata()[0] for line in (*listops.lines, *text.lines)] == [20.0, 50.0]


def test_a_curve_over_rates_has_the_rate_of_the_budget_and_a_gap_where_it_diverged(rows):
    (curve,) = lr_curves.by_task(rows)["listops"]
    assert curve == ("sdpa", [3e-4, 1e-3, 3e-3, 1e-2], [30.0, 38.0, None, 40.0])
    (axes,) = lr_curves.draw_figure({"listops": [curve]}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.0003", "0.001", "0.003", "0.01"]


def test_of_many_mechanisms_the_best_and_the_reference_have_a_colour():
    search = lambda label, dev: lr_curves.LrCurve(label, [1e-3, 1e-2], [dev, None])
    many = [search("sdpa", 1.0), *(search(f"m{i:02}", float(i)) for i in range(60))]
    (axes,) = lr_curves.draw_figure({"recall": many}).axes
    coloured = [to_hex(line.get_color()) != to_hex("0.85") for line in axes.lines]
    assert coloured == [False] * (61 - COLOURED) + [True] * COLOURED
    first, *best = axes.lines[-COLOURED:]
    assert first.get_ydata()[0] == 1.0  # of sdpa
    assert len({line.get_color() for line in (first, *best[1 - len(COLOURS) :])}) == len(COLOURS)


def test_a_search_has_no_strips_and_a_study_of_one_rate_no_curves(rows):
    assert not seed_points.by_task([row for row in rows if "lr=" in row.label])
    names = lambda rows, study: [
        made.name for made in seed_points.pictures([replace(row, study=study) for row in rows])
    ]
    assert names(rows, "x") == ["x/seeds", "x/rates"] and names(rows[:1], "x") == ["x/seeds"]
    assert names(rows, "x-rates")[1:] == ["x-rates"]
