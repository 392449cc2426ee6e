"""The papers' tables next to our runs, and the arena table: gains, fresh-test scores and gaps to published values."""

import dataclasses
import statistics
from statistics import geometric_mean

import numpy as np
import pytest
from scipy import stats
from support.records import PHASE, RECORD, TESTS, add, texts
from support.records import cells as cells_by_label

from lra.config import CONF
from lra.evaluate import record as fresh_record
from lra.io import typed_json
from lra.report import arena, details, paper_tables
from lra.results import paper_values, summary

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
EXAMPLES = 4000


def tables_by_name(runs):
    return {table.name: table for table in paper_tables.tables(summary.collect(runs)[0])}


def our_cells(table):
    return {(label, study): cells for (study, label, _), cells in lines(table) if label}


def lines(table):
    return [(key, dict(zip(table.head, cells, strict=True))) for key, cells in table.rows()]


def test_published_values_name_mechanisms_and_links():
    all_values = paper_values.read()
    names = [name.partition("+") for row in all_values for name in row.attn.split()]
    assert {name for name, *_ in names} <= {path.stem for path in (CONF / "attn").glob("*.yaml")}
    assert {objective for *_, objective in names} == {"", "masked", "next"}
    printed = {(row.source, row.model, row.task, row.metric): row.text for row in all_values}
    assert printed["leaderboard", "Local Att", "pathfinder_x", "accuracy_percent"] == "FAIL"
    assert printed["PSF T3", "PSF-Attn", "pathfinder", "accuracy_percent"] == "80.49 ± 0.1"
    assert printed["SOFT T12", "SOFT", "image", "accuracy_percent"] == "46.91"
    links = {row.paper: row.link for row in all_values}
    assert len(set(links.values())) == len(links) and all(link.startswith("https://") for link in links.values())
    # The LRU paper trains sCIFAR in colour (LRU 89.0, S4D 91.5), which does not compare with the grey images here.
    lru = [row for row in all_values if row.name == "LRU"]
    assert len(lru) == 15 and not {row.task for row in lru} & {"image", "average"}


def test_paper_tables_show_every_published_value_in_printed_order(tmp_path):
    add(tmp_path, label="cur_abs", task="image")
    tables = tables_by_name(tmp_path)
    for paper in paper_tables.PAPERS:
        values = [v for source in paper.sources for v in paper_values.read() if [v.name, v.table] == source]
        assert {(v.name, v.table) for v in values} == set(map(tuple, paper.sources))
        printed = {}
        for v in values:
            column = paper_tables.RATIOS.get(v.metric, v.task)
            printed.setdefault((v.source, v.model), {"mechanism": v.model})[column] = v.text
        entries = []
        for (_, label, _), line in lines(tables[paper.name]):
            if not label:
                entries.append({name: cell.text for name, cell in line.items() if cell.text and name != "run"})
        assert entries == [*printed.values()]


def test_multi_paper_table_names_sources_with_our_runs_below(tmp_path):
    for label in ("s4d_lin", "s5", "mega"):
        add(tmp_path, label=label, task="text")
    table = tables_by_name(tmp_path)["state-space"]
    order = [(cells[0].text, cells[1].text) for _, cells in table.rows()]
    lru = ("S5 (the LRU paper's run)", "LRU T3")
    for line in (("S4D-Lin", "S4D"), ("S5", "Mamba-360"), ("MEGA", "MEGA T2"), lru):
        assert order[order.index(line) + 1][1] == "paper-paper"
    assert order.index(("S4", "MEGA T2")) + 1 == order.index(("MEGA", "MEGA T2"))
    # The S5 run stands below two published rows but counts once.
    assert len(our_cells(table)) == 3
    for label in ("softmax", "sdpa+masked"):
        add(tmp_path, label=label, task="text")
    order = [cells[0].text for _, cells in tables_by_name(tmp_path)["self-pretraining"].rows()]
    assert order[:4] == ["Transformer", "softmax", "Transformer, masked self-pretraining", "sdpa+masked"]


def test_printed_averages_are_means_of_printed_scores():
    """Over five or six tasks, with FAIL as chance (50); older tables have notes where their averages deviate."""
    recent_papers = {name for paper in paper_tables.PAPERS[-4:] for name, _ in paper.sources}
    printed = {}
    for row in paper_values.read():
        if row.name in recent_papers:
            printed.setdefault((row.source, row.model), {})[row.task] = row
    num_averages_only = 0
    for (source, _), line in printed.items():
        average = line.pop("average", None)
        if average and line:
            value = {task: 50.0 if row.value == "FAIL" else row.number for task, row in line.items()}
            means = [statistics.fmean(tasks) for tasks in (value.values(), [value[task] for task in FIVE])]
            assert min(abs(mean - average.number) for mean in means) < 0.06, (source, average)
        num_averages_only += average is not None and not line
    # S4 with and without self-pretraining prints an average without scores.
    assert num_averages_only == 2


def test_our_runs_follow_matching_published_row(tmp_path):
    for seed, test in enumerate(TESTS):
        for task in FIVE:
            add(tmp_path, seed=seed, test=test, task=task)
            add(tmp_path, seed=seed, test=test + 2 + 0.1 * seed, task=task, label="nystrom", study="mine")
            add(tmp_path, seed=seed, test=99.0, task=task, label="nystrom", study="short", budget="quick")
    grid = tables_by_name(tmp_path)["curformer-table-1"]
    order = [(cells[0].text, study) for (study, _, _), cells in grid.rows()]
    assert order[order.index(("CURformer", "")) + 1] == ("cur_abs", "paper-paper")
    assert order[order.index(("Nystromformer", "")) + 1] == ("nystrom", "mine") and len(our_cells(grid)) == 2
    cells = our_cells(grid)["cur_abs", "paper-paper"]
    assert cells["listops"].text == "38.01 ± 1.50" and cells["average"].n == 4
    assert cells["average"].value == pytest.approx(sum(TESTS) / 4)
    assert "left out as not comparable: short (budget quick)" in grid.about
    assert not any(cell.mark for (_, label, _), line in grid.rows() if not label for cell in line)
    for task in FIVE:
        add(tmp_path, task=task, label="bigbird")
    arena_cells = our_cells(tables_by_name(tmp_path)["leaderboard"])["bigbird", "paper-paper"]
    assert arena_cells["average"].value == RECORD.test and arena_cells["pathfinder_x"].text == ""


def test_paper_table_shows_only_runs_with_its_metric(tmp_path):
    """A run scored with another metric has no row at all, not even an empty one."""
    add(tmp_path, task="genome", label="psf", test=88.0, metric="balanced_accuracy", study="theirs")
    add(tmp_path, task="genome", label="psf", test=95.0, metric="roc_auc")
    add(tmp_path, task="text", label="psf", test=70.0)
    tables = tables_by_name(tmp_path)
    entries = lambda table, task: {key: cells[task].value for key, cells in our_cells(tables[table]).items()}
    assert entries("psf-table-2", "genome") == {("psf", "theirs"): 88.0}
    assert entries("psf-table-3", "text") == {("psf", "paper-paper"): 70.0}


def test_custom_mechanisms_are_last_and_listed(tmp_path):
    for label in ("mine", "cur_abs", "cur_abs-count=32", "linear-optim.lr=0.01"):
        add(tmp_path, label=label, study="mine")
    # Not comparable, so in no table.
    add(tmp_path, label="mine", study="short", budget="quick")
    add(tmp_path, label="mine", study="mine", task="text", protocol="clean")
    add(tmp_path, label="mine", study="mine", task="adding", metric="within_tolerance")
    tables = tables_by_name(tmp_path)
    table_rows = [[cell.text for cell in cells] for _, cells in tables["own-mechanisms"].rows()]
    assert table_rows == [["cur_abs-count=32", "mine", "listops"], ["mine", "mine", "listops, adding"]]
    grid = tables["curformer-table-1"]
    order = [cells[0].text for _, cells in grid.rows()]
    assert order[-2:] == ["cur_abs-count=32", "mine"] and order[order.index("CURformer") + 1] == "cur_abs"
    assert our_cells(grid)["mine", "mine"]["listops"].value == RECORD.test and "Ours: n = 1;" in grid.about
    assert "own-mechanisms" not in {table.name for table in paper_tables.tables({})}


def test_speed_and_memory_are_relative_to_softmax_on_same_device(tmp_path):
    for task, slow, fast in (("listops", 30.0, 10.0), ("image", 40.0, 5.0)):
        add(tmp_path, task=task, label="softmax", step_ms=slow, peak_bytes=800)
        add(tmp_path, task=task, step_ms=fast, peak_bytes=100)
    add(tmp_path, task="text", label="softmax", step_ms=100.0, device="x86_64 CPU, 2 threads")
    add(tmp_path, task="text", step_ms=1.0)
    add(tmp_path, task="text", label="linear", step_ms=10.0, device="x86_64 CPU, 2 threads")
    grid = tables_by_name(tmp_path)["curformer-table-2"]
    cells = our_cells(grid)["cur_abs", "paper-paper"]
    assert cells["speed-up"].value == pytest.approx(geometric_mean([3, 8]))
    assert cells["memory"].value == pytest.approx(1 / 8)
    linear = our_cells(grid)["linear", "paper-paper"]
    assert linear["speed-up"].value == pytest.approx(10) and linear["memory"].text == ""


def studies(arena_runs):
    return summary.collect(arena_runs)[0]


def arena_tables(arena_runs):
    return {table.name: table for table in arena.tables(studies(arena_runs))}


def fresh(folder, share, seed, rng, easiness=0.0):
    """Write a fresh-test record with a given fraction of correct answers into a run directory."""
    correct = rng.random(EXAMPLES) < share + easiness
    run = {key: getattr(RECORD, key) for key in ("study", "task", "fingerprint", "metric", "git")}
    run |= {"label": folder.parent.name, "seed": seed, "weights": "w", "precision": "bf16", "device": "cpu"}
    data = {"data": "the same", "data_seed": 1, "examples": EXAMPLES, "seen": 0}
    score = {"fresh_test": 100 * float(correct.mean()), "standard_error": 1.0, "outcomes": fresh_record.pack(correct)}
    typed_json.save(fresh_record.FreshTest(**run, **data, **score), folder / fresh_record.NAME)


def edit_fresh(folder, **changes):
    result = fresh_record.load(folder / fresh_record.NAME)
    typed_json.save(dataclasses.replace(result, **changes), folder / fresh_record.NAME)


@pytest.fixture
def arena_runs(tmp_path):
    """Two CUR selections and the control with three seeds, one mechanism with one seed, and runs to be excluded."""
    rng = np.random.default_rng(0)
    easiness = rng.choice([-0.1, 0.1], EXAMPLES)
    for label, share in (("cur_abs", 0.40), ("cur_step", 0.33), ("mean", 0.17)):
        for seed in range(3):
            path = add(tmp_path, label=label, seed=seed, test=100 * share + seed, step_ms=10.0)
            if label != "mean":
                fresh(path.parent, share + 0.003 * seed, seed, rng, easiness)
    add(tmp_path, label="nystrom", seed=0, test=30.0)
    add(tmp_path, label="nystrom", seed=1, status="diverged", test=None, val=None, best_step=None)
    add(tmp_path, label="sdpa", budget="quick", study="quick")
    add(tmp_path, label="sdpa", task="chain", study="board")
    add(tmp_path, label="sdpa+masked", pretrain=PHASE)
    return tmp_path


def test_arena_table_has_paper_budget_runs_sorted_by_score(arena_runs):
    table = arena_tables(arena_runs)["arena-listops"]
    cells = cells_by_label(table)
    assert list(cells) == ["cur_abs", "cur_step", "nystrom", "mean"]
    lines = texts(table)
    expected = {"test": "41.00 ± 1.00", "published": "39.62 ± 0.62", "source": "CURformer T4"}
    assert expected.items() <= lines["cur_abs"].items()
    assert lines["mean"]["gain over mean"] == lines["mean"]["published"] == "-"
    assert {"n": "1 (+1)", "gain over mean": "+12.0", "fresh test": "-"}.items() <= lines["nystrom"].items()
    assert f"{EXAMPLES:,} examples" in table.about and "Times were measured on NVIDIA H200, fp32." in table.about
    # The study's table of the same runs has the same column.
    detailed = cells_by_label(details.details(studies(arena_runs)["paper-paper"])[0])
    assert detailed["cur_abs"]["fresh test"] == cells["cur_abs"]["fresh test"]
    # The interval of a gain is Welch's.
    gain, sides = cells["cur_abs"]["gain over mean"], ([40.0, 41.0, 42.0], [17.0, 18.0, 19.0])
    interval = stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    assert gain.value == pytest.approx(statistics.mean(sides[0]) - statistics.mean(sides[1]))
    assert (gain.low, gain.high) == pytest.approx((interval.low, interval.high))
    # nystrom has no fresh test.
    assert arena.pictures(studies(arena_runs)) == []


def test_gain_is_that_of_the_fresh_tests_if_control_has_them(tmp_path):
    rng = np.random.default_rng(0)
    for label, share in (("cur_abs", 0.4), ("mean", 0.2)):
        for seed in range(3):
            fresh(add(tmp_path, label=label, seed=seed, test=50.0).parent, share, seed, rng)
    gain = cells_by_label(arena_tables(tmp_path)["arena-listops"])["cur_abs"]["gain over mean"]
    assert gain.value == pytest.approx(20, abs=2) and gain.low < 20 < gain.high
    # The picture has a point for each seed.
    (picture,) = arena.pictures(studies(tmp_path))
    (points,) = picture.panels.values()
    assert {p.label: len(p.scores) for p in points} == {"cur_abs": 3, "mean": 3} and "fresh examples" in picture.caption
    assert statistics.mean(points[0].scores) - statistics.mean(points[1].scores) == pytest.approx(gain.value)
    # Not with a line without a control that is scored on other examples.
    folder = add(tmp_path, study="other", label="sdpa", test=50.0).parent
    fresh(folder, 0.3, 0, rng)
    edit_fresh(folder, data="others")
    assert arena.pictures(studies(tmp_path)) == []
    edit_fresh(tmp_path / "paper-paper/listops/mean/seed-0", data="others")
    assert texts(arena_tables(tmp_path)["arena-listops"])["cur_abs"]["gain over mean"] == "+0.0"


def test_fresh_tests_count_for_the_same_fingerprint_and_examples(arena_runs):
    ((_, cells),) = arena_tables(arena_runs)["arena-listops-selections"].rows()
    assert (cells[0].text, cells[4].text) == ("cur_abs - cur_step", "yes")
    assert cells[1].value == pytest.approx(7, abs=2)
    # Exact attention is compared too, a longer training and another learning rate are not.
    rng = np.random.default_rng(1)
    others = (("curformer_listops-paper-paper", "cur_abs"), ("paper-paper", "cur_step-optim.lr=0.01"))
    for study, label in (("paper-paper", "sdpa"), *others):
        for seed in range(2):
            path = add(arena_runs, study=study, label=label, seed=seed, test=20.0, steps=20_000)
            fresh(path.parent, 0.2, seed, rng)
    pairs = arena_tables(arena_runs)["arena-listops-selections"]
    assert [cells[0].text for _, cells in pairs.rows()] == ["cur_abs - cur_step", "cur_abs - sdpa", "cur_step - sdpa"]
    # A result of another fingerprint is ignored; only results on the data of most mechanisms are compared.
    folder = arena_runs / "paper-paper/listops"
    edit_fresh(folder / "cur_abs/seed-2", fingerprint="another")
    for seed_dir in (folder / "cur_step").iterdir():
        edit_fresh(seed_dir, data="others")
    tables = arena_tables(arena_runs)
    cell = cells_by_label(tables["arena-listops"])["cur_abs"]["fresh test"]
    assert cell.text.endswith("(n = 2)") and cell.n == 2
    pairs = tables["arena-listops-selections"]
    assert [cells[0].text for _, cells in pairs.rows()] == ["cur_abs - sdpa"]
    assert pairs.about.endswith("Scored on other examples and left out: cur_step.")
    # Of a mechanism, the results on the most examples count.
    few = {"examples": 8, "fresh_test": 100.0, "outcomes": fresh_record.pack(np.ones(8, bool))}
    edit_fresh(folder / "cur_step/seed-0", data="few", **few)
    assert cells_by_label(arena_tables(arena_runs)["arena-listops"])["cur_step"]["fresh test"].n == 2


def test_other_precisions_are_compared_and_larger_encoders_are_separate(arena_runs):
    for seed in range(4):
        for label in ("cur_abs", "mean"):
            path = add(arena_runs, study="z16", label=label, seed=seed, test=38.0 + seed)
            (path.parent / "config.yaml").write_text("trainer.precision: bf16\n")
        # As many seeds on other data, which do not compare with bf16.
        add(arena_runs, study="a-other", label="cur_abs", seed=seed, test=1.0, data="sha256 0123456789ab")
    # A later study with fewer seeds does not replace an earlier one.
    path = add(arena_runs, study="z17", label="cur_abs", seed=0, test=1.0)
    (path.parent / "config.yaml").write_text("trainer.precision: bf16\n")
    path = add(arena_runs, study="mamba-paper", label="cur_abs", seed=0, test=50.0)
    (path.parent / "config.yaml").write_text("model.layers: 6\nmodel.dim: 128\n")
    tables = arena_tables(arena_runs)
    # The study with more seeds is shown; a larger encoder has its own line, without a published value.
    lines = texts(tables["arena-listops"])
    assert lines["cur_abs"]["n"] == "4"
    larger = lines["cur_abs (6 layers, d 128)"]
    assert (larger["test"], larger["published"]) == ("50.00", "-")
    (_, cells), (_, control_cells) = tables["arena-precision"].rows()
    # The difference of the control, 39.5 - 18, has Welch's interval as well.
    interval = stats.ttest_ind([38.0, 39, 40, 41], [17.0, 18, 19], equal_var=False).confidence_interval(0.95)
    assert (control_cells[6].low, control_cells[6].high) == pytest.approx((interval.low, interval.high))
    assert [cell.text for cell in cells[:6]] == ["cur_abs", "ListOps", "41.00 ± 1.00", "3", "39.50 ± 1.29", "4"]


def test_arena_chapter_needs_paper_budget_runs(tmp_path):
    add(tmp_path, budget="quick")
    assert arena.section(studies(tmp_path)) == arena.readme(studies(tmp_path)) == ""
