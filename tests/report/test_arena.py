"""The Arena's table: which runs it shows, gains, fresh scores, comparisons and the gap to a published value."""

import dataclasses
import statistics

import numpy as np
import pytest
from scipy import stats
from support.records import RECORD, add, add_seeds

from lra.disk import typed_json
from lra.evaluate import record as fresh_record
from lra.report import arena, arena_compare
from lra.results import summary

EXAMPLES = 4000


def studies(runs):
    return summary.collect(runs)[0]


def fresh(folder, share, seed, rng, easiness=0.0):
    """Write a fresh-test result with this share of correct answers beside a record."""
    correct = rng.random(EXAMPLES) < share + easiness
    result = fresh_record.FreshTest(
        **{key: getattr(RECORD, key) for key in ("study", "task", "fingerprint", "metric", "git")},
        label=folder.parent.name,
        seed=seed,
        weights="w",
        data="the same",
        data_seed=1,
        examples=EXAMPLES,
        seen=0,
        fresh_test=100 * float(correct.mean()),
        standard_error=1.0,
        precision="bf16",
        device="cpu",
        outcomes=fresh_record.pack(correct),
    )
    typed_json.save(result, folder / fresh_record.NAME)


@pytest.fixture
def runs(tmp_path):
    """Two selections of CUR and the control with three seeds, a mechanism with one, and runs that do not count."""
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
    return tmp_path


def lines(table):
    """The cells of each line by column, by the text of the first column."""
    return {cells[0].text: dict(zip(table.head, cells, strict=True)) for _, cells in table.rows()}


def test_the_table_has_runs_at_the_papers_budget_sorted_by_score(runs):
    (table,) = (table for table in arena.tables(studies(runs)) if table.name == "arena-listops")
    cells = lines(table)
    assert list(cells) == ["cur_abs", "cur_step", "nystrom", "mean"]
    assert cells["cur_abs"]["test"].text == "41.00 ± 1.00" and cells["nystrom"]["n"].text == "1 (+1)"
    assert cells["cur_abs"]["published"].text == "39.62 ± 0.62" and cells["cur_abs"]["source"].text == "CURformer T4"
    assert cells["mean"]["gain over mean"].text == cells["mean"]["published"].text == "-"
    assert cells["nystrom"]["gain over mean"].text == "+12.0" and cells["nystrom"]["fresh test"].text == "-"
    assert f"{EXAMPLES:,} examples" in table.about and "Hardware: NVIDIA H200." in table.about


def test_the_interval_of_a_gain_is_welchs(runs):
    gain = lines(arena.tables(studies(runs))[0])["cur_abs"]["gain over mean"]
    sides = [40.0, 41.0, 42.0], [17.0, 18.0, 19.0]
    interval = stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    assert gain.value == pytest.approx(statistics.mean(sides[0]) - statistics.mean(sides[1]))
    assert (gain.low, gain.high) == pytest.approx((interval.low, interval.high))


def test_selections_are_compared_on_the_same_examples(runs):
    tables = {table.name: table for table in arena.tables(studies(runs))}
    ((_, cells),) = tables["arena-listops-selections"].rows()
    assert (
        cells[0].text == "cur_abs - cur_step" and cells[1].value == pytest.approx(7, abs=2) and cells[4].text == "yes"
    )
    # Results on other examples are not compared with these.
    path = runs / "paper-paper/listops/cur_step"
    for folder in path.iterdir():
        result = fresh_record.load(folder / fresh_record.NAME)
        typed_json.save(dataclasses.replace(result, data="others"), folder / fresh_record.NAME)
    assert "arena-listops-selections" not in {table.name for table in arena.tables(studies(runs))}


def test_a_fresh_score_counts_its_seeds_and_belongs_to_its_run(runs):
    path = runs / "paper-paper/listops/cur_abs/seed-2" / fresh_record.NAME
    result = fresh_record.load(path)
    typed_json.save(dataclasses.replace(result, fingerprint="another"), path)
    cell = lines(arena.tables(studies(runs))[0])["cur_abs"]["fresh test"]
    assert cell.text.endswith("(n = 2)") and cell.n == 2


def test_bf16_is_compared_with_fp32_and_the_larger_study_is_shown(runs):
    for seed in range(4):
        path = add(runs, study="z16", label="cur_abs", seed=seed, test=38.0 + seed)
        (path.parent / "config.yaml").write_text("trainer.precision: bf16\n")
    tables = {table.name: table for table in arena.tables(studies(runs))}
    assert lines(tables["arena-listops"])["cur_abs"]["n"].text == "4"
    ((_, cells),) = tables["arena-precision"].rows()
    assert [cell.text for cell in cells[:6]] == ["cur_abs", "ListOps", "41.00 ± 1.00", "3", "39.50 ± 1.29", "4"]


def test_a_published_value_is_judged_against_both_trainings(runs):
    """39.62 lies within the error of a mean of 41, and far from one of 30."""
    chapter = arena.section(studies(runs))
    assert "is compatible with the base training" in chapter and "has no finished run here" in chapter
    add_seeds(runs, "cur_abs", (30.0, 30.5), study="curformer_listops-paper-paper", steps=20_000)
    chapter = arena.section(studies(runs))
    assert "not compatible at the 5 % level with the longer training (30.25, 2 seeds)" in chapter
    assert "`cur_abs (20,000 steps)`" in chapter and "has no finished run here" not in chapter
    gap, score, examples = arena_compare.gap_of((studies(runs)["paper-paper"][0], {}))
    assert (score, examples) == (41.0, 2000) and 3 < gap.threshold < 4


def test_without_such_runs_there_is_no_chapter(tmp_path):
    add(tmp_path, budget="quick")
    assert arena.section(studies(tmp_path)) == arena.readme(studies(tmp_path)) == ""
