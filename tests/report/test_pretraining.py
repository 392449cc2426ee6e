"""Scratch, pretrained and compute-matched side by side: which run stands where, and what it cost."""

import pytest
from support.records import RECORD, add, cells, texts

from lra.report import results, summary
from lra.report.pretraining import pretraining
from lra.runs.record import Pretraining

PHASE = Pretraining(
    objective="masked", fingerprint="p", loss=1.5, best_step=100, steps=100, tokens=600_000, step_ms=20.0, status="done"
)


def rows(runs):
    return summary.collect(runs)[0]["paper-paper"]


def make(runs, label, tests, tokens, **changes):
    for seed, test in enumerate(tests):
        add(runs, label=label, seed=seed, test=test, tokens=tokens, steps=100, **changes)


@pytest.fixture
def runs(tmp_path):
    make(tmp_path, "sdpa", (40.0, 42.0), 1_000_000)
    make(tmp_path, "sdpa+masked", (50.0, 54.0), 1_000_000, pretrain=PHASE)
    make(tmp_path, "sdpa+masked-matched", (44.0, 46.0), 400_000, pretrain=PHASE)
    make(tmp_path, "mean", (20.0, 22.0), 1_000_000)
    return tmp_path


def test_rows_of_another_budget_are_not_compared_with_published_ones(tmp_path):
    make(tmp_path, "sdpa", (40.0,), 1_000_000, budget="quick", study="small")
    make(tmp_path, "sdpa+masked", (50.0,), 1_000_000, budget="quick", study="small", pretrain=PHASE)
    small = summary.collect(tmp_path)[0]["small"]
    assert pretraining("small", small).about.endswith(" Not comparable with the published values: budget quick.")


def test_each_run_stands_in_its_column(runs):
    table = pretraining("paper-paper", rows(runs))
    ((label, line),) = cells(table).items()
    assert label == "sdpa+masked" and len(table.rows()) == 1
    assert [line[name].value for name in ("scratch", "pretrained", "matched")] == [41.0, 52.0, 45.0]
    assert table.about.endswith("of other sizes.")
    # s² of (40, 42), (50, 54) and (44, 46): 2, 8 and 2; the gain's error is the root of the sum of s² / 2
    assert (line["gain"].value, line["gain"].std) == (11.0, pytest.approx(5**0.5))
    assert (line["gain matched"].value, line["gain matched"].std) == (4.0, pytest.approx(2**0.5))
    assert line["published"].text == "Self-pretraining: 36.37, 59.75"
    assert line["cost"].text == (
        "scratch 1 M tokens, 1 s; pretrained 0.6 + 1 M tokens, 3 s; matched 0.6 + 0.4 M tokens, 3 s"
    )


def test_a_run_with_label_keys_is_compared_with_the_one_from_scratch_that_has_them(tmp_path):
    make(tmp_path, "sdpa", (40.0,), 1_000_000)
    make(tmp_path, "sdpa-model.dim=128", (60.0,), 1_000_000)
    for keys in ("-model.dim=128", "-pretrain.steps=50-model.dim=128", "-model.dim=128-pretrain.lr=1e-3"):
        make(tmp_path, f"sdpa+masked{keys}", (61.0,), 1_000_000, pretrain=PHASE)
        make(tmp_path, f"sdpa+masked-matched{keys}", (58.0,), 400_000, pretrain=PHASE)
    lines = list(cells(pretraining("paper-paper", rows(tmp_path))).values())
    assert len(lines) == 3 and lines[0]["mechanism"].text == "sdpa+masked-model.dim=128"
    for line in lines:
        assert [line[name].value for name in ("scratch", "gain", "gain matched")] == [60.0, 1.0, -2.0]
        assert line["published"].text == "Self-pretraining: 36.37, 59.75"


def test_a_run_of_another_cost_is_not_matched(tmp_path):
    make(tmp_path, "sdpa", (40.0, 42.0), 1_000_000)
    make(tmp_path, "sdpa+masked-matched", (44.0, 46.0), 500_000, pretrain=PHASE)
    (line,) = cells(pretraining("paper-paper", rows(tmp_path))).values()
    assert line["matched"].value is None and line["pretrained"].value == 45.0


def test_records_from_before_have_no_cost_and_no_table(tmp_path):
    add(tmp_path)
    (row,) = rows(tmp_path)
    assert RECORD.tokens is None and (row.cost, row.tokens, row.objective) == ("", None, "")
    assert pretraining("paper-paper", [row]) is None


def test_every_table_says_the_cost(runs):
    table = results.results("paper-paper", rows(runs))
    assert "sdpa+masked on listops 0.6 + 1 M tokens, 3 s" in table.about
    (details,) = results.details("paper-paper", rows(runs))
    assert "pretrained (masked) 100 steps, 0.6 M tokens, 2 s" in texts(details)["sdpa+masked"]["details"]
    assert "pretrained" not in texts(details)["sdpa"]["details"]
