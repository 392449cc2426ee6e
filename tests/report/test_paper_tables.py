"""The papers' tables beside ours, the best of a column, and every form a table is written in."""

import csv
import dataclasses
import io
import math
import random
import re
import statistics
from statistics import geometric_mean
from urllib.parse import unquote, urlsplit

import pytest
from scipy import stats
from support import records
from support.records import RECORD, TESTS, add, diverged, metrics

from lra.report import artifacts, paper_tables, plots, published, results, summary
from lra.report.export import export
from lra.report.significance import difference, mark, p_value, score
from lra.report.table import Cell, Table, frame

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")


def made(runs):
    return {table.name: table for table in paper_tables.tables(summary.collect(runs)[0])}


def ours(table):
    return {(label, study): cells for (study, label, _), cells in lines(table) if label}


def lines(table):
    return [(key, dict(zip(table.head, cells, strict=True))) for key, cells in table.rows()]


@pytest.mark.parametrize("seed", range(5))
def test_p_values_are_those_of_scipy(seed):
    rng = random.Random(seed)
    a = {k: rng.gauss(37, 1) for k in range(5)}
    b = {k: rng.gauss(37.5, 2) for k in range(4)}
    test = stats.ttest_ind(list(a.values()), list(b.values()), equal_var=False)
    assert p_value(a, b) == pytest.approx(test.pvalue, rel=1e-9)
    assert p_value(a, b) == pytest.approx(p_value(b, a), rel=1e-12)


def test_p_values_at_the_edges():
    assert p_value({0: 1.0}, {0: 2.0, 1: 3.0}) is None
    assert p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1.0
    assert p_value({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}) == 0.0
    assert p_value({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}) == 1.0


def marks(*columns):
    return [cell.mark for cell in mark([score(s) for s in columns], columns)]


def test_bold_is_told_apart_from_every_other():
    high, low, close = ({k: level + (-1) ** k for k in range(4)} for level in (50, 30, 49.5))
    assert marks(low, high, {}) == ["", "best", ""]
    assert marks(low, high, close) == ["", "tied", "tied"]
    assert marks(low, high, {0: 31.0}) == ["", "", ""]  # no test of one seed
    assert marks({0: 50.0}, low) == marks(high, {}) == ["", ""]
    assert marks(high, high) == ["tied", "tied"]


def test_marks_are_corrected_for_the_number_of_comparisons():
    high, near = {k: 50.0 + (-1) ** k for k in range(4)}, {k: 48.0 + (-1) ** k for k in range(4)}
    p = stats.ttest_ind(list(high.values()), list(near.values()), equal_var=False).pvalue
    assert p < 0.05 < 2 * p
    assert marks(high, near) == ["best", ""]
    assert marks(high, near, near) == ["tied", "tied", "tied"]


def test_published_tables_are_whole_and_in_the_order_of_print(tmp_path):
    add(tmp_path, label="cur_abs", task="image")
    for paper in paper_tables.PAPERS:
        table = made(tmp_path)[paper.name]
        values = [v for source in paper.sources for v in published.read() if [v.name, v.table] == source]
        assert {(v.name, v.table) for v in values} == set(map(tuple, paper.sources))
        printed = [cells for (_, label, _), cells in table.rows() if not label]
        assert [cells[0].text for cells in printed] == [
            model for _, model in dict.fromkeys((v.source, v.model) for v in values)
        ]
        assert sum(cell.text != "" for cells in printed for cell in cells[2:]) == len(values) > 0
        assert sorted(cell.text for cells in printed for cell in cells[2:] if cell.text) == sorted(
            v.text for v in values
        )
    shapes = {
        name: (sum(not label for (_, label, _), _ in table.rows()), len(table.head) - 2)
        for name, table in made(tmp_path).items()
    }
    assert shapes["curformer-table-1"] == (14, 6) and shapes["curformer-table-4"] == (5, 6)
    assert shapes["psf-table-2"] == (4, 1) and shapes["psf-table-3"] == (21, 4) and shapes["leaderboard"] == (13, 7)
    assert shapes["state-space"] == (34, 7) and shapes["self-pretraining"] == (7, 7)
    assert shapes["flare-table-6"] == (21, 6) and shapes["later-baselines"] == (7, 6)


def test_lines_of_several_papers_name_their_source_and_have_ours_below(tmp_path):
    for label in ("s4d_lin", "s5", "mega"):
        add(tmp_path, label=label, task="text")
    table = made(tmp_path)["state-space"]
    order = [(cells[0].text, cells[1].text) for _, cells in table.rows()]
    for line in (
        ("S4D-Lin", "Mamba-360"),
        ("S5", "Mamba-360"),
        ("MEGA", "MEGA T2"),
        ("S5 (the LRU paper's run)", "LRU T3"),
    ):
        assert order[order.index(line) + 1][1] == "paper-paper"
    assert order.index(("S4", "MEGA T2")) + 1 == order.index(("MEGA", "MEGA T2"))
    assert len(ours(table)) == 3  # S5 stands below two lines
    for label in ("softmax", "sdpa+masked"):
        add(tmp_path, label=label, task="text")
    order = [cells[0].text for _, cells in made(tmp_path)["self-pretraining"].rows()]
    assert order[:4] == ["Transformer", "softmax", "Transformer, masked self-pretraining", "sdpa+masked"]


def test_no_number_of_colour_images_stands_beside_grey_ones():
    """The LRU paper's sCIFAR is in colour, with 89.0 for the LRU and 91.5 for S4D."""
    rows = [row for row in published.read() if row.name == "LRU"]
    assert len(rows) == 15 and not {row.task for row in rows} & {"image", "average"}


def test_averages_as_printed_are_of_their_lines():
    """Over five or six tasks, a failed one as chance; those of the older tables have notes where they are not."""
    later = {name for paper in paper_tables.PAPERS[-4:] for name, _ in paper.sources}
    lines = {}
    for row in published.read():
        if row.name in later:
            lines.setdefault((row.source, row.model), {})[row.task] = row
    checked = 0
    for (source, _), line in lines.items():
        printed = line.pop("average", None)
        if printed and line:
            value = {task: 50.0 if row.value == "FAIL" else row.number for task, row in line.items()}
            five = [value[task] for task in FIVE]
            close = [abs(statistics.fmean(tasks) - printed.number) < 0.06 for tasks in (value.values(), five)]
            assert any(close), (source, printed)
            checked += 1
    # S4 with and without self-pretraining has an average alone
    assert checked == sum(row.task == "average" and row.name in later for row in published.read()) - 2


def test_ours_stand_below_the_line_they_belong_to(tmp_path):
    for seed, test in enumerate(TESTS):
        for task in FIVE:
            add(tmp_path, seed=seed, test=test, task=task)
            add(tmp_path, seed=seed, test=test + 2 + 0.1 * seed, task=task, label="nystrom", study="mine")
            add(tmp_path, seed=seed, test=99.0, task=task, label="nystrom", study="short", budget="quick")
    grid = made(tmp_path)["curformer-table-1"]
    order = [(cells[0].text, study) for (study, _, _), cells in grid.rows()]
    assert order[order.index(("CURformer", "")) + 1] == ("cur_abs", "paper-paper")
    assert order[order.index(("Nystromformer", "")) + 1] == ("nystrom", "mine")
    assert len(ours(grid)) == 2
    cells = ours(grid)["cur_abs", "paper-paper"]
    assert cells["listops"].text == "38.01 ± 1.50" and cells["average"].n == 4
    assert cells["average"].value == pytest.approx(sum(TESTS) / 4)
    assert "Runs of short that do not compare with them are left out (budget quick)." in grid.about
    assert not any(cell.mark for (_, label, _), line in grid.rows() if not label for cell in line)


def test_a_table_shows_the_metric_that_it_prints(tmp_path):
    """A score of another metric is no line of it, not even an empty one."""
    add(tmp_path, task="genome", label="psf", test=88.0, metric="balanced_accuracy", study="theirs")
    add(tmp_path, task="genome", label="psf", test=95.0, metric="roc_auc")
    add(tmp_path, task="text", label="psf", test=70.0)
    assert {key: cells["genome"].value for key, cells in ours(made(tmp_path)["psf-table-2"]).items()} == {
        ("psf", "theirs"): 88.0
    }
    assert {key: cells["text"].value for key, cells in ours(made(tmp_path)["psf-table-3"]).items()} == {
        ("psf", "paper-paper"): 70.0
    }


def test_mechanisms_that_no_paper_names_stand_last_and_are_listed(tmp_path):
    for label in ("mine", "cur_abs", "cur_abs-count=32", "linear-optim.lr=0.01"):
        add(tmp_path, label=label, study="mine")
    add(tmp_path, label="mine", study="short", budget="quick")
    add(tmp_path, label="mine", study="mine", task="adding", metric="within_tolerance")
    tables = made(tmp_path)
    own = [[cell.text for cell in cells] for _, cells in tables["own-mechanisms"].rows()]
    assert own == [
        ["cur_abs-count=32", "mine", "listops"],
        ["mine", "mine", "listops, adding"],
        ["mine", "short", "listops"],
    ]
    grid = tables["curformer-table-1"]
    order = [cells[0].text for _, cells in grid.rows()]
    assert order[-2:] == ["cur_abs-count=32", "mine"] and order[order.index("CURformer") + 1] == "cur_abs"
    assert ours(grid)["mine", "mine"]["listops"].value == RECORD.test and "over seeds (n = 1)" in grid.about
    assert "own-mechanisms" not in {table.name for table in paper_tables.tables({})}


def test_an_average_needs_every_task_of_the_table(tmp_path):
    for task in FIVE[:4]:
        add(tmp_path, task=task)
        add(tmp_path, task=task, label="soft")
    assert ours(made(tmp_path)["curformer-table-1"])["cur_abs", "paper-paper"]["average"].text == ""
    four = ours(made(tmp_path)["soft-table-12"])["soft", "paper-paper"]["average"]
    assert four.value == pytest.approx(37.0) and four.n == 1


def test_speed_and_memory_are_against_softmax_on_the_same_device(tmp_path):
    for task, slow, fast in (("listops", 30.0, 10.0), ("image", 40.0, 5.0)):
        add(tmp_path, task=task, label="softmax", step_ms=slow, peak_bytes=800)
        add(tmp_path, task=task, step_ms=fast, peak_bytes=100)
    add(tmp_path, task="text", label="softmax", step_ms=100.0, device="x86_64 CPU, 2 threads")
    add(tmp_path, task="text", step_ms=1.0)
    add(tmp_path, task="text", label="linear", step_ms=10.0, device="x86_64 CPU, 2 threads")
    grid = made(tmp_path)["curformer-table-2"]
    cells = ours(grid)["cur_abs", "paper-paper"]
    assert cells["speed-up"].value == pytest.approx(geometric_mean([3, 8]))
    assert cells["memory"].value == pytest.approx(1 / 8)
    linear = ours(grid)["linear", "paper-paper"]
    assert linear["speed-up"].value == pytest.approx(10) and linear["memory"].text == ""


def test_board_has_a_mean_only_over_all_tasks(tmp_path):
    for seed in range(3):
        for task in ("listops", "text"):
            add(tmp_path, seed=seed, test=30.0 + seed, task=task)
        add(tmp_path, seed=seed, test=40.0, label="softmax")
    diverged(tmp_path, 5, label="softmax", task="text")
    board = results.results("paper-paper", summary.collect(tmp_path)[0]["paper-paper"])
    assert board.head == ["mechanism", "listops", "text", "mean"]
    lines = {label: cells for (_, label, _), cells in board.rows()}
    assert lines["cur_abs"][3].text == "31.00 ± 1.00" and lines["cur_abs"][3].n == 3
    assert lines["softmax"][2].text == "" and "1 seed without a result" in lines["softmax"][2].note
    assert lines["softmax"][3].text == ""
    assert lines["softmax"][1].mark == "best" and lines["cur_abs"][1].mark == ""


def test_gains_over_the_control_and_a_task_that_tells_nothing_apart(tmp_path):
    mean, near, far = (40.0, 41.0, 42.0), (40.0, 41.5, 43.0), (44.0, 45.0, 46.0, 47.0)
    for label, tests in (("mean", mean), ("near", near), ("far", far)):
        for seed, test in enumerate(tests):
            add(tmp_path, label=label, seed=seed, test=test)
            add(tmp_path, label=label, seed=seed, test=test, task="text") if label != "far" else None
    add(tmp_path, label="once", test=41.5)
    diverged(tmp_path, 3, label="lost")
    add(tmp_path, label="near", task="image")  # no control
    table = results.over_control("paper-paper", summary.collect(tmp_path)[0]["paper-paper"])
    assert table.head == ["mechanism", "listops", "text"] and set(table.cells.index.get_level_values("label")) == {
        "near", "far", "once", "lost"
    }  # fmt: skip
    lines = {label: dict(zip(table.head, cells, strict=True)) for (_, label, _), cells in table.rows()}
    cell, error = lines["far"]["listops"], math.sqrt(1 / 3 + (5 / 3) / 4)  # variances 1 and 5/3
    assert (cell.value, cell.std) == (pytest.approx(4.5), pytest.approx(error)) and cell.mark == ""
    cell, error = lines["near"]["listops"], math.sqrt(1 / 3 + 2.25 / 3)
    assert cell.text == f"+0.50 ± {error:.2f}" and cell.mark == "tied"
    assert (lines["once"]["listops"].text, lines["once"]["listops"].mark) == ("+0.50", "")
    assert lines["lost"]["listops"].text == lines["far"]["text"].text == ""
    assert "text: this task at this budget does not tell mechanisms apart." in table.about
    assert "listops: this task" not in table.about
    assert "listops se" in table.csv().splitlines()[0]
    rows = [row for row in summary.collect(tmp_path)[0]["paper-paper"] if row.label != "mean"]
    assert results.over_control("paper-paper", rows) is None


@pytest.mark.parametrize("shift, mark", [(1.999, "tied"), (2.001, ""), (-2.001, ""), (-1.999, "tied")])
def test_two_standard_errors_tell_a_gain_apart(shift, mark):
    scores = {0: -1.0, 1: 1.0}  # variance 2, so that the error of the difference is sqrt(2)
    moved = {seed: score + shift * math.sqrt(2) for seed, score in scores.items()}
    assert difference(moved, scores).mark == mark
    assert difference({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}).mark == "tied"


HEAD = ("mechanism", "listops", "text")
ROWS = [
    ["cur_abs", Cell(text="38.01 ± 1.50", value=38.0125, std=1.5, n=4, mark="best"), Cell()],
    ["a|b & 50%", Cell(text="FAIL"), Cell(text="1.00", value=1.0, mark="tied")],
]


def table(head=HEAD, rows=ROWS):
    keys = [("s", "cur_abs", ""), ("", "", "")][-len(rows) :]
    return Table(name="g", title="A & B", about="", cells=frame(head, rows, keys), words=(head[0],))


def test_markdown():
    assert table().markdown().splitlines() == [
        "| mechanism | listops | text |",
        "| --- | ---: | ---: |",
        "| `cur_abs` | **38.01 ± 1.50** |  |",
        "| a\\|b & 50% | FAIL | 1.00 ≈ |",
    ]


def test_csv_holds_the_numbers():
    rows = list(csv.DictReader(io.StringIO(table().csv())))
    assert rows[0] == {
        "mechanism": "cur_abs", "listops": "38.0125", "listops std": "1.5", "listops n": "4", "text": ""
    }  # fmt: skip
    assert rows[1]["listops"] == "FAIL" and rows[1]["text"] == "1.0"


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@sum(a1)", "\t=1", "\r=1", "\n=1"])
def test_csv_holds_no_formula(text):
    hostile = table((text, "listops"), [[text, text]])
    told = "'" + text.replace("\r", "\n")
    rows = list(csv.reader(io.StringIO(hostile.csv(), newline="")))
    assert rows == [[told, "listops"], [told, told]]
    plain = table(("a", "b"), [["-", Cell(text="-1.5", value=-1.5)]])
    assert list(csv.reader(io.StringIO(plain.csv())))[1] == ["-", "-1.5"]


def test_links_to_the_files_of_a_run_are_relative_whatever_its_name(tmp_path):
    """As seen from the folder of the runs themselves a study is the first part of a link."""
    for study in ("javascript:alert(1)", "https:", "a b#c?d%41"):
        metrics(add(tmp_path, study=study), [1.0])
    export(tmp_path, summary.collect(tmp_path)[0], [])
    links = set(re.findall(r'href="([^#"][^"]*)"', (tmp_path / "index.html").read_text())) - {"data:,"}
    assert len(links) == 3 * 2 and not any(urlsplit(link).scheme for link in links)
    for link in links:
        assert (tmp_path / unquote(urlsplit(link).path)).exists()


def test_curves_are_means_over_finished_seeds_at_shared_steps(tmp_path):
    for seed, values in enumerate(([1.0, 2.0, 3.0], [3.0, 6.0])):
        metrics(add(tmp_path, seed=seed), values)
    metrics(diverged(tmp_path, 20, seed=2), [100.0])
    (row,) = summary.collect(tmp_path)[0]["paper-paper"]
    curve = plots.over_seeds(row, {folder: artifacts.read(folder)[0].curves for folder in row.runs})
    assert (curve.steps, curve.mean, curve.n) == ([10, 20], [2.0, 4.0], 2)
    assert curve.high == pytest.approx([2 + math.sqrt(2), 4 + 2 * math.sqrt(2)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return records.written(tmp_path_factory.mktemp("runs"))


def test_everything_is_written_and_read_back(written):
    runs, unread = written
    assert len(unread) == 1 and "other/listops/cur_abs/seed-0/metrics.csv is not a table of evaluations" in unread[0]
    out = runs / "report"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert {"index.html", "report.md", "tables/leaderboard.tex", "tables/study-other.csv"} <= names
    assert {f"figures/paper-paper-{name}" for name in ("curves.png", "speed.pdf", "seeds.svg")} <= names
    assert not [name for name in names if name.endswith(".part")]
    with open(out / "tables" / "study-paper-paper.csv", newline="") as file:
        rows = {row["mechanism"]: row for row in csv.DictReader(file)}
    assert float(rows["cur_abs"]["listops"]) == 39.0 and rows["cur_abs"]["listops n"] == "3"


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(written):
    runs, _ = written
    page = (runs / "report" / "index.html").read_text()
    assert "alert(1)<" not in page and "lost/record.json is no record" in page
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page) and "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    for link in set(re.findall(r'href="([^#"][^"]*)"', page)) - {"data:,"}:
        assert (runs / "report" / unquote(link)).exists(), link
    targets = set(re.findall(r'id="([^"]+)"', page))
    assert {"results", "curves", "trade", "papers", "runs"} <= targets


def test_the_same_runs_give_the_same_page(written):
    runs, _ = written
    export(runs / "again", summary.collect(runs)[0], records.LOST)
    for name in ("index.html", "report.md", "figures/paper-paper-curves.pdf"):
        assert (runs / "again" / name).read_bytes() == (runs / "report" / name).read_bytes()


def test_no_seed_finished_is_a_report_too(tmp_path):
    diverged(tmp_path, 3)
    studies, damaged = summary.collect(tmp_path)
    export(tmp_path / "report", studies, damaged)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "No metrics.csv beside the records" in page and "no seed done" in page


def test_records_know_their_device():
    assert dataclasses.replace(RECORD).device == "NVIDIA H200"
    assert summary.record.on_cpu("x86_64 CPU, 2 threads") and not summary.record.on_cpu("NVIDIA H200")
