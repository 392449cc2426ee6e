"""The tables of a board: baselines, admission of a task, ranking, and rank correlation with published scores."""

import re

import pytest
from conftest import assert_error
from scipy import stats
from support.records import add, add_seeds, diverged, metrics, of_study, texts, write_report

from lra.board import agreement
from lra.board import chapter as board
from lra.board.agreement import agreement_table, by_source
from lra.board.results import BoardResults
from lra.report.export import export
from lra.results import paper_values, summary
from lra.runs.published import Published, save
from lra.runs.reader import scan

BOARD = {"study": "board", "task": "recall", "floor": 20.0, "bag": 24.0}
RATES = BOARD | {"study": "board-rates"}
CONTROLS = {"none": 20.0, "mean": 22.0, "conv": 30.0}
ORDER = ("reformer", "linformer", "performer", "linear", "local", "longformer", "bigbird", "luna", "nystrom", "sdpa")
PRINTED = {"softmax" if label == "sdpa" else label: 60.0 + rank for rank, label in enumerate(ORDER)}


def add_board_seeds(runs, label, tests, **changes):
    add_seeds(runs, label, tests, **BOARD | changes)


@pytest.fixture
def runs(tmp_path):
    """A board of one task: three controls, exact attention, and two mechanisms that score between them."""
    for label, test in CONTROLS.items():
        add_board_seeds(tmp_path, label, [test] * 5)
    add_board_seeds(tmp_path, "sdpa", [93.0, 94.0, 95.0, 96.0, 99.0])
    add_board_seeds(tmp_path, "linear", [50.0, 52.0, 54.0, 56.0, 58.0])
    add_board_seeds(tmp_path, "cur", [60.0] * 5)
    for rate, test in ((0.001, 60.0), (0.01, 55.0)):
        add(tmp_path, **RATES, label=f"cur-optim.lr={rate}", seed=100, test=test, val=test)
    return tmp_path


def tables(runs):
    (results,) = board.boards(summary.collect(runs)[0], []).values()
    return board.tables(results)


def test_admission_and_ranking_of_a_board(runs):
    diverged(runs, 7, **BOARD, label="linear", seed=5, constant_baseline=19.0)
    admission, ranking = tables(runs)
    line = texts(admission)["recall"]
    assert (line["chance"], line["none"], line["conv"]) == ("20.00", "0.0 ± 0.0", "12.5 ± 0.0")
    assert (line["bag"], line["sdpa solved"], line["98 or more"]) == ("5.0", "5/5", "0/6")
    assert line["admitted"] == "yes"
    # The ranking is sorted by mean score.
    by_label = texts(ranking)
    assert list(by_label) == ["sdpa", "cur", "linear", "conv", "mean", "none"]
    assert by_label["sdpa"]["score"].startswith(f"{(91.25 + 92.5 + 93.75 + 95 + 98.75) / 5:.1f} (")
    # The interquartile mean of five seeds is the mean of the middle three.
    assert by_label["sdpa"]["IQM"].startswith(f"{(92.5 + 93.75 + 95) / 3:.1f} (")
    assert by_label["cur"]["score"] == by_label["cur"]["IQM"] == "50.0"
    assert (by_label["sdpa"]["solved"], by_label["linear"]["solved"]) == ("5/5", "0/6")
    # Six seeds of linear, the diverged one at the constant answer's 17.35, which is below the chance of 20:
    # -3.3, 37.5, 40, 42.5, 45, 47.5; IQM: the middle four.
    assert by_label["linear"]["IQM"].startswith("41.2 (") and by_label["linear"]["score"].startswith("34.9 (")
    # The interval of a mean on one task is Student's.
    ends = stats.ttest_1samp([91.25, 92.5, 93.75, 95, 98.75], 0).confidence_interval(0.95)
    assert by_label["sdpa"]["score"].endswith(f"({ends.low:.1f} to {ends.high:.1f})")
    # Of 252 permutations two separate the seeds; Holm's correction multiplies this p-value by four.
    assert by_label["sdpa"]["p (sdpa)"] == "-" and 0.02 < float(by_label["none"]["p (sdpa)"]) < 0.05
    assert by_label["conv"]["p (conv)"] == "-"


ADMISSIONS = [
    ("recall", {"mean": [40.0] * 5}, "no: mean at 25%"),
    # A failing control decides before the other controls have run.
    ("recall", {"mean": [40.0] * 5, "none": [], "conv": []}, "no: mean at 25%"),
    ("recall", {"sdpa": [91.0, 95.0, 95.0, 95.0, 95.0]}, "no: sdpa below 90% with 1 of 5 seeds"),
    # A third of the mechanisms may be at the ceiling.
    ("recall", dict.fromkeys(("linear", "luna"), [99.0] * 5), "yes"),
    ("recall", dict.fromkeys(("luna", "dba", "cur"), [98.0] * 5), "no: 43% of the mechanisms at the ceiling"),
    ("listops", {"conv": [50.0] * 5}, "yes"),
    ("listops", {"conv": [55.0] * 5}, "no: sdpa leads by 14.0 points"),
    # The bag of tokens has 24, more than every control.
    ("listops", {"conv": [20.0] * 5, "sdpa": [38.0] * 5}, "no: sdpa leads by 14.0 points"),
]


@pytest.mark.parametrize(("task", "changes", "reason"), ADMISSIONS)
def test_admission_reason(tmp_path, task, changes, reason):
    exact = {"recall": 95.0, "listops": 69.0}[task]
    scores = {label: [test] * 5 for label, test in (CONTROLS | {"sdpa": exact}).items()}
    for name, tests in (scores | changes).items():
        add_board_seeds(tmp_path, name, tests, task=task)
    add(tmp_path, **RATES | {"task": task}, label="mean-optim.lr=0.001")
    assert texts(tables(tmp_path)[0])[task]["admitted"] == reason


def test_lr_search_score_replaces_unfinished_seeds(tmp_path):
    for rate, val, test in ((0.001, 30.0, 31.0), (0.01, 40.0, 36.0)):
        add(tmp_path, **RATES, label=f"mean-optim.lr={rate}", seed=100, val=val, test=test)
    line = texts(tables(tmp_path)[0])["recall"]
    # Rate 0.01 has the best validation score; its normalised test score is (36 - 20) / 80.
    assert line["mean"] == "20.0 (search)" and line["admitted"] == "open: no result of none, conv, sdpa"
    # One seed does not replace it.
    add_board_seeds(tmp_path, "mean", [90.0])
    assert texts(tables(tmp_path)[0])["recall"]["mean"] == "20.0 (search)"
    # A failed seed counts too, at the constant answer: the mean of 70 / 80 and (17.35 - 20) / 80.
    diverged(tmp_path, 7, **BOARD, label="mean", seed=1)
    assert texts(tables(tmp_path)[0])["recall"]["mean"].startswith("42.1 ± ")


def test_lr_search_has_rate_table_and_no_speed_figure(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    export(out, summary.collect(runs)[0], [])
    assert [path.name for path in (out / "figures").glob("*-speed.pdf")] == ["board-speed.pdf"]
    assert [path.name for path in (out / "tables").glob("*rates*.csv")] == ["rates-board-rates.csv"]
    page = (out / "index.html").read_text()
    # Mechanisms keep the first palette colours; runs of the search come after them.
    assert "of 6 mechanisms on" in page and 'var(--c5)"></i><b>sdpa</b>' in page


def test_ranking_of_incomplete_and_collapsed_mechanisms(runs):
    add_board_seeds(runs, "rfa", [20.0, 20.0, 30.0], collapsed=True)
    # Mechanisms without runs on the second task have no mean.
    add_board_seeds(runs, "sdpa", [95.0] * 5, task="chain")
    by_label = texts(tables(runs)[1])
    assert by_label["sdpa"]["score"] != "-" and {by_label["cur"][name] for name in ("score", "IQM", "chain")} == {"-"}
    assert by_label["rfa"]["collapsed"] == "3/3"


@pytest.mark.usefixtures("without_figures")
def test_published_board_is_compared_with_custom_mechanism(runs, tmp_path_factory, monkeypatch, capsys):
    home, custom_runs = tmp_path_factory.mktemp("published"), tmp_path_factory.mktemp("mine")
    for name in ("board", "board-rates"):
        study = {path: run for path, run in scan(runs)[0].items() if run.study == name}
        save(home / name, [Published(record, {"optim.lr": 1.0}, []) for record in study.values()])
    add_seeds(custom_runs, "mine", [70.0, 71.0, 72.0, 73.0, 74.0], study="zoo")
    monkeypatch.setattr("lra.board.chapter.HOME", home)
    write_report("board=true", f"runs={custom_runs}")
    assert list(summary.collect(custom_runs, further=board.published())[0]) == ["zoo", "board", "board-rates"]
    out = capsys.readouterr().out
    assert "zoo" in out and "board: mechanisms" in out and "board: recall" not in out and "board-rates" not in out
    add_board_seeds(custom_runs, "mine", [70.0, 71.0, 72.0, 73.0, 74.0])
    # Any published study can be named.
    monkeypatch.setattr("lra.runs.published.HOME", home)
    for word in ("board=true", "compare=[board]"):
        write_report(word, f"runs={custom_runs}")
        out = capsys.readouterr().out
        assert re.search(r"mine +72.00 ± 1.58", out) and re.search(r"sdpa +95.40 ± 2.30", out)
    message = "'boards' is not a published study; choose from board, board-rates"
    assert_error(message, write_report, "compare=[boards]", f"runs={custom_runs}")
    monkeypatch.setattr("lra.board.chapter.HOME", home / "none")
    assert_error("board=true needs the runs of the published board", write_report, "board=true", f"runs={custom_runs}")


def test_plateau_ends_when_validation_gains_a_fifth(runs):
    """With chance at 20, a fifth of the way to 100 is 36; seeds that never reach it or have no curve are counted."""
    for seed, val_scores in enumerate([(20.0, 36.0, 30.0), (35.9, 35.9, 60.0), (20.0, 25.0, 40.0), (20.0, 25.0, 20.0)]):
        metrics(runs / "board" / "recall" / "sdpa" / f"seed-{seed}" / "record.json", val_scores)
    (runs / "board" / "recall" / "cur" / "seed-0" / "metrics.csv").write_text("damaged")
    assert [(k, line["recall, of 5,000"]) for k, line in texts(tables(runs)[2]).items()] == [("sdpa", "30 (3/5)")]


@pytest.fixture
def papers(monkeypatch):
    """A published source with two tasks and no text score for reformer."""
    paper = {"paper": "Paper (2020)", "table": "Table 1", "metric": "accuracy_percent", "std": "", "note": ""}
    row = lambda model, task, value: paper_values.PrintedValue(**paper, model=model, task=task, value=value, attn=model)
    rows = [row(model, "listops", str(value)) for model, value in PRINTED.items()]
    rows += [row(model, "text", "10.0") for model in PRINTED if model != "reformer"]
    rows += [row("sinkhorn", "listops", "FAIL")]
    monkeypatch.setattr(paper_values, "read", lambda: tuple(rows))


def study(runs, tests):
    for label, test in tests.items():
        add_seeds(runs, label, [test] * 2, study="board", floor=10.0)
    return BoardResults("board", of_study(runs, "board"))


@pytest.mark.parametrize(("order", "correlation"), [(ORDER, 1.0), (ORDER[::-1], -1.0)])
def test_rank_correlation_is_one_for_same_and_minus_one_for_reversed_order(papers, tmp_path, order, correlation):
    board = study(tmp_path, {label: 20.0 + 5 * rank for rank, label in enumerate(order)})
    lines = [cells for _, cells in agreement_table(board).rows()]
    for source, _, n, value, _ in lines:
        assert (source.text, n.value, value.value) == ("Paper T1", 10, pytest.approx(correlation))
    assert [tasks.text for _, tasks, *_ in lines] == ["all", "listops"]
    sdpa = ("sdpa", 69.0, pytest.approx(100 * (10.0 + 5 * order.index("sdpa")) / 90))
    picture = agreement.picture(board)
    assert all(sdpa in points for points in picture.panels.values())
    assert [len(axes.lines) for axes in agreement.draw(picture.panels).axes] == [10, 10]


def test_agreement_uses_tasks_printed_for_every_one_of_at_least_ten_mechanisms(papers, tmp_path):
    printed = {"sdpa" if model == "softmax" else model: value for model, value in PRINTED.items()}
    assert by_source([*ORDER, "sinkhorn"], ("listops", "text")) == {"Paper T1": printed}
    board = study(tmp_path, dict.fromkeys(ORDER[:9], 30.0))
    assert agreement_table(board) is None and agreement.picture(board) is None
