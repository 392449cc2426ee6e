"""Runs of one mechanism side by side: at several learning rates, and from scratch, pretrained and compute-matched."""

from dataclasses import replace

import pytest
from support import records
from support.records import add, add_seeds, cells, diverged, of_study, texts

from lra.report import details, results
from lra.report.export import tables
from lra.report.lr_search import lr_table
from lra.report.pretraining import pretraining

PHASE = replace(records.PHASE, steps=100, tokens=600_000, step_ms=20.0)


def at_rates(runs):
    return cells(lr_table(of_study(runs)))


@pytest.fixture
def searched(tmp_path):
    """The best dev score does not have the best test score."""
    add_seeds(tmp_path, "linear", (48.0, 50.0), val=50.0)
    add_seeds(tmp_path, "linear-optim.lr=0.01", (59.0, 61.0), val=40.0)
    add_seeds(tmp_path, "linear-optim.lr=3e-05", (51.0, 53.0), val=55.0)
    add_seeds(tmp_path, "mean", (19.0, 21.0), val=20.0)
    return tmp_path


def test_the_best_dev_score_decides(searched):
    (line,) = at_rates(searched).values()
    assert (line["budget's rate"].value, line["best rate"].value, line["rate"].text) == (49.0, 52.0, "3e-05")
    assert line["best rate"].n == 2 and line["best rate"].std == pytest.approx(2**0.5)
    assert line["val at each rate"].text == "budget's 50.00, 3e-05 55.00, 0.01 40.00"
    add(searched, label="linear", seed=2, val=50.0, test=49.0)  # numbers of seeds are shown if they differ
    (line,) = at_rates(searched).values()
    assert line["val at each rate"].text == "budget's 50.00 (n = 3), 3e-05 55.00 (n = 2), 0.01 40.00 (n = 2)"


def test_the_budgets_rate_may_be_the_best_and_a_rate_may_diverge(tmp_path):
    add_seeds(tmp_path, "linear-count=8", (48.0, 50.0), val=50.0)
    diverged(tmp_path, 7, label="linear-count=8-optim.lr=0.1")
    (line,) = at_rates(tmp_path).values()
    assert (line["mechanism"].text, line["rate"].text) == ("linear-count=8", "budget's")
    assert line["best rate"].value == 49.0 and line["val at each rate"].text == "budget's 50.00, 0.1 -"


def test_other_tables_show_the_budgets_rate_or_all_if_there_is_none(searched):
    found = {table.title: table for table in tables(of_study(searched))[0]}
    assert "Best learning rate" in found and "Pretraining on the task's own inputs" not in found
    for title in ("paper-paper", "Gain over mean"):
        assert not any("optim.lr" in label for label in cells(found[title]))
    add_seeds(searched, "psf-optim.lr=0.1", (29.0, 31.0))
    assert list(cells(results.results(of_study(searched)))) == ["linear", "mean", "psf-optim.lr=0.1"]
    assert lr_table([row for row in of_study(searched) if row.label.startswith("psf")]) is None


@pytest.fixture
def pretrained(tmp_path):
    add_seeds(tmp_path, "sdpa", (40.0, 42.0), tokens=1_000_000, steps=100)
    add_seeds(tmp_path, "sdpa+masked", (50.0, 54.0), tokens=1_000_000, steps=100, pretrain=PHASE)
    add_seeds(tmp_path, "sdpa+masked-matched", (44.0, 46.0), tokens=400_000, steps=100, pretrain=PHASE)
    add_seeds(tmp_path, "mean", (20.0, 22.0), tokens=1_000_000, steps=100)
    return tmp_path


def test_each_run_stands_in_its_column(pretrained):
    table = pretraining(of_study(pretrained))
    ((label, line),) = cells(table).items()
    assert label == "sdpa+masked" and table.about.endswith("(other model sizes).")
    assert [line[name].value for name in ("scratch", "pretrained", "matched")] == [41.0, 52.0, 45.0]
    # s² of (40, 42), (50, 54) and (44, 46): 2, 8 and 2; the gain's error is the root of the sum of s² / 2
    assert (line["gain"].value, line["gain"].std) == (11.0, pytest.approx(5**0.5))
    assert (line["gain matched"].value, line["gain matched"].std) == (4.0, pytest.approx(2**0.5))
    assert line["published"].text == "Self-pretraining: 36.37, 59.75"
    told = "scratch 1 M tokens, 1 s; pretrained 0.6 + 1 M tokens, 3 s; matched 0.6 + 0.4 M tokens, 3 s"
    assert line["cost"].text == told


def test_a_run_with_label_keys_is_compared_with_the_one_from_scratch_that_has_them(tmp_path):
    add_seeds(tmp_path, "sdpa", (40.0,), tokens=1_000_000)
    add_seeds(tmp_path, "sdpa-model.dim=128", (60.0,), tokens=1_000_000)
    for keys in ("-model.dim=128", "-pretrain.steps=50-model.dim=128", "-model.dim=128-pretrain.lr=1e-3"):
        add_seeds(tmp_path, f"sdpa+masked{keys}", (61.0,), tokens=1_000_000, pretrain=PHASE)
        add_seeds(tmp_path, f"sdpa+masked-matched{keys}", (58.0,), tokens=400_000, pretrain=PHASE)
    lines = list(cells(pretraining(of_study(tmp_path))).values())
    assert len(lines) == 3 and lines[0]["mechanism"].text == "sdpa+masked-model.dim=128"
    for line in lines:
        assert [line[name].value for name in ("scratch", "gain", "gain matched")] == [60.0, 1.0, -2.0]
        assert line["published"].text == "Self-pretraining: 36.37, 59.75"


def test_a_run_of_another_cost_is_not_matched_and_one_of_another_budget_not_published(tmp_path):
    add_seeds(tmp_path, "sdpa", (40.0, 42.0), tokens=1_000_000)
    add_seeds(tmp_path, "sdpa+masked-matched", (44.0, 46.0), tokens=500_000, budget="quick", pretrain=PHASE)
    table = pretraining(of_study(tmp_path))
    (line,) = cells(table).values()
    assert line["matched"].value is None and line["pretrained"].value == 45.0
    assert table.about.endswith("(other model sizes; not comparable: budget quick).")


def test_every_table_says_the_cost(pretrained):
    table = results.results(of_study(pretrained))
    assert "sdpa+masked on listops 0.6 + 1 M tokens, 3 s" in table.about
    (of_task,) = details.details(of_study(pretrained))
    assert "pretrained (masked) 100 steps, 0.6 M tokens, 2 s" in texts(of_task)["sdpa+masked"]["details"]
    assert "pretrained" not in texts(of_task)["sdpa"]["details"]
