"""The best of several learning rates is chosen by dev, and stands beside the result at the budget's rate."""

import pytest
from support.records import add, cells, diverged

from lra.report import results, summary
from lra.report.export import overall
from lra.report.rates import rates


def make(runs, label, dev, test, **changes):
    for seed, shift in enumerate((-1.0, 1.0)):
        add(runs, label=label, seed=seed, val=dev + shift, test=test + shift, **changes)


def rows(runs):
    return summary.collect(runs)[0]["paper-paper"]


def lines(runs):
    return cells(rates("paper-paper", rows(runs)))


@pytest.fixture
def runs(tmp_path):
    make(tmp_path, "linear", 50.0, 49.0)
    make(tmp_path, "linear-optim.lr=0.01", 40.0, 60.0)
    make(tmp_path, "linear-optim.lr=3e-05", 55.0, 52.0)
    make(tmp_path, "mean", 20.0, 20.0)
    return tmp_path


def test_the_best_dev_score_decides(runs):
    (line,) = lines(runs).values()
    assert (line["budget's rate"].value, line["best rate"].value, line["rate"].text) == (49.0, 52.0, "3e-05")
    assert line["best rate"].n == 2 and line["best rate"].std == pytest.approx(2**0.5)
    assert line["dev at each rate"].text == "budget's 50.00, 3e-05 55.00, 0.01 40.00"


def test_the_budgets_rate_may_be_the_best_and_a_rate_may_diverge(tmp_path):
    make(tmp_path, "linear-count=8", 50.0, 49.0)
    diverged(tmp_path, 7, label="linear-count=8-optim.lr=0.1")
    (line,) = lines(tmp_path).values()
    assert (line["mechanism"].text, line["rate"].text) == ("linear-count=8", "budget's")
    assert line["best rate"].value == 49.0 and line["dev at each rate"].text == "budget's 50.00, 0.1 -"


def test_numbers_of_seeds_are_shown_if_they_differ(runs):
    add(runs, label="linear", seed=2, val=50.0, test=49.0)
    (line,) = lines(runs).values()
    text = "budget's 50.00 (n = 3), 3e-05 55.00 (n = 2), 0.01 40.00 (n = 2)"
    assert line["dev at each rate"].text == text


def test_other_tables_show_the_budgets_rate_or_all_if_there_is_none(runs):
    made = {table.title: table for table in overall("paper-paper", rows(runs))}
    for title in ("paper-paper", "Over mean"):
        assert not any("optim.lr" in label for (_, label, _), _ in made[title].rows())
    assert "Best learning rate" in made
    make(runs, "psf-optim.lr=0.1", 30.0, 30.0)
    labels = [label for (_, label, _), _ in results.results("paper-paper", rows(runs)).rows()]
    assert labels == ["linear", "mean", "psf-optim.lr=0.1"]


def test_one_rate_makes_no_table(tmp_path):
    make(tmp_path, "psf-optim.lr=0.1", 30.0, 30.0)
    assert rates("paper-paper", rows(tmp_path)) is None
