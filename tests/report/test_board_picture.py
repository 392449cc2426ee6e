"""The picture of a board: costs, families, labels that can be read."""

import itertools

import numpy as np
import pytest
from support.records import add

from lra.config import CONF
from lra.report import summary
from lra.report.board_picture import Point, costs, draw
from lra.report.families import CONTROL, FAMILIES, OTHER, family

LABELS = "sdpa none mean conv cur_abs cur_step nystrom soft psf linear s4d_lin mega performer luna s5 longformer mine"


def test_every_mechanism_has_a_family_and_every_name_one_alone():
    names = [path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom"]
    assert not [name for name in names if family(name) == OTHER]
    members = list(itertools.chain(*FAMILIES.values()))
    assert len(set(members)) == len(members)
    assert {family(name) for name in members} == set(FAMILIES)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("softpp", "low rank"),
        ("soft-steps=3", "low rank"),
        ("softmax", "exact"),
        ("mega_cur_abs", "MEGA"),
        ("sofa", OTHER),
    ],
)
def test_the_longest_name_decides(label, kind):
    assert family(label) == kind


def test_without_a_benchmark_the_cost_is_the_median_step_of_the_tasks(tmp_path):
    for task, ms in (("chain", 10.0), ("recall", 30.0), ("listops", 11.0)):
        add(tmp_path, task=task, label="linear", step_ms=ms)
    found, axis = costs(summary.collect(tmp_path)[0]["paper-paper"], [])
    assert found == {"linear": 11.0} and "median over tasks" in axis


def test_labels_overlap_neither_each_other_nor_the_edge_and_controls_are_lines():
    rng = np.random.default_rng(0)
    board = []
    for label, score in zip(LABELS.split(), rng.uniform(20, 90, 17), strict=True):
        score = 10.0 if family(label) == CONTROL else score
        board.append(Point(label, np.exp(rng.uniform(2, 6)), score, score - 5, score + 5))
    figure = draw({"ms": board})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    texts = [text for text in axes.texts if text.get_text() in LABELS.split() and family(text.get_text()) != CONTROL]
    assert len(texts) == len(board) - 3 and len(axes.lines) >= 3
    boxes = [text.get_window_extent() for text in texts]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    whole = figure.bbox
    controls = [text.get_window_extent() for text in axes.texts if family(text.get_text()) == CONTROL]
    assert len(controls) == 3 and not [
        pair for pair in itertools.combinations(controls, 2) if pair[0].overlaps(pair[1])
    ]
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in boxes)
