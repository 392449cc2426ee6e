"""The rank correlation of a board with published scores."""

import pytest
from support.records import add_seeds, of_study

from lra.report import published
from lra.report.board import agreement_figure
from lra.report.board.agreement import agreement_table, by_source
from lra.report.board.results import BoardResults

ORDER = ("reformer", "linformer", "performer", "linear", "local", "longformer", "bigbird", "luna", "nystrom", "sdpa")
PRINTED = {"softmax" if label == "sdpa" else label: 60.0 + place for place, label in enumerate(ORDER)}


@pytest.fixture
def papers(monkeypatch):
    """One source that prints two tasks, of which it lacks one for reformer."""
    row = lambda model, task, value: published.PrintedValue(
        paper="Paper (2020)", table="Table 1", model=model, task=task, metric="accuracy_percent", value=str(value),
        std="", note="", attn=model)  # fmt: skip
    rows = [row(model, "listops", value) for model, value in PRINTED.items()]
    rows += [row(model, "text", 10.0) for model in PRINTED if model != "reformer"]
    rows += [row("sinkhorn", "listops", "FAIL")]
    monkeypatch.setattr(published, "read", lambda: tuple(rows))


def study(runs, tests):
    for label, test in tests.items():
        add_seeds(runs, label, [test] * 2, study="board", floor=10.0)
    return BoardResults("board", of_study(runs, "board"))


def test_only_tasks_that_a_source_prints_for_all_are_averaged(papers):
    printed = {"sdpa" if model == "softmax" else model: value for model, value in PRINTED.items()}
    assert by_source([*ORDER, "sinkhorn"], ("listops", "text")) == {"Paper T1": printed}


@pytest.mark.parametrize(("order", "correlation"), [(ORDER, 1.0), (ORDER[::-1], -1.0)])
def test_the_same_order_is_1_and_the_opposite_one_is_minus_1(papers, tmp_path, order, correlation):
    board = study(tmp_path, {label: 20.0 + 5 * place for place, label in enumerate(order)})
    lines = [cells for _, cells in agreement_table(board).rows()]
    for source, _, n, value, _ in lines:
        assert (source.text, n.value, value.value) == ("Paper T1", 10, pytest.approx(correlation))
    assert [tasks.text for _, tasks, *_ in lines] == ["all", "listops"]
    sdpa = ("sdpa", 69.0, pytest.approx(100 * (10.0 + 5 * order.index("sdpa")) / 90))
    made = agreement_figure.picture(board)
    assert all(sdpa in some for some in made.panels.values())
    assert [len(axes.lines) for axes in agreement_figure.draw(made.panels).axes] == [10, 10]


def test_fewer_than_ten_mechanisms_give_no_table(papers, tmp_path):
    board = study(tmp_path, dict.fromkeys(ORDER[:9], 30.0))
    assert agreement_table(board) is None and agreement_figure.picture(board) is None
