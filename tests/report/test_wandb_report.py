"""The published comparison: its numbers against the records and the papers, read back from the offline run."""

import importlib.util
import json
import re
import statistics

import pytest
import wandb_files
from PIL import Image
from support.records import TESTS, add, add_seeds, diverged

from lra.board import chapter as board
from lra.config.compose import compose
from lra.report import paper_tables, wandb
from lra.report.__main__ import ReportOptions, report
from lra.results import summary

there = importlib.util.find_spec("wandb_workspaces")  # which needs wandb
needs_wandb = pytest.mark.skipif(there is None, reason="pip install '.[wandb]'")


@pytest.fixture
def runs(tmp_path):
    """Five seeds of a mechanism with a diverged one, a second one on two tasks, a control, another study, a board."""
    folder = tmp_path / "runs"
    for seed, test in enumerate(TESTS):
        add(folder, seed=seed, test=test, step_ms=10.0 + seed, peak_bytes=(seed + 1) << 20)
    diverged(folder, 9, seed=4)
    add(folder, label="cur_step", test=35.5)
    add(folder, label="cur_step", task="text", test=60.25)
    add(folder, label="local", task="pathfinder_x", test=50.0, study="other", device="x86_64 CPU, 2 threads")
    add(folder, label="mean", test=18.0)
    of_task = {"task": "recall", "floor": 20.0, "bag": 24.0}
    for label, test in {"none": 20.0, "mean": 22.0, "conv": 30.0, "sdpa": 95.0}.items():
        add_seeds(folder, label, [test] * 2, study="board", **of_task)
    add(folder, study="board-rates", label="sdpa-optim.lr=0.001", seed=100, **of_task)
    return folder


def tables(runs):
    studies = summary.collect(runs)[0]
    return wandb.tables(studies, board.chapters(studies, [], runs / "report" / "board"))


def lines(runs, key):
    frame = wandb.numbers(tables(runs)[key])
    return {line["mechanism"]: line for line in frame.to_dict("records")}


def test_a_column_holds_numbers_or_texts(runs):
    found = tables(runs)
    for key, table in found.items():
        assert re.fullmatch(r"[A-Za-z_]\w*", key)
        for name, column in wandb.numbers(table).items():
            assert {type(value) for value in column} - {type(None)} in ({str}, {float}, {int}, {int, float}), name
    assert "FAIL" in {cell.text for cell in found["leaderboard"].cells["pathfinder_x"]}  # as printed: no number


def test_numbers_are_those_of_the_records(runs):
    found = lines(runs, "study_paper_paper")["cur_abs"]
    assert found["listops"] == pytest.approx(statistics.fmean(TESTS)) and found["listops n"] == 4
    assert found["listops std"] == pytest.approx(statistics.stdev(TESTS)) and found["text"] is None
    gain = lines(runs, "over_mean_paper_paper")
    assert gain["cur_abs"]["listops"] == pytest.approx(statistics.fmean(TESTS) - 18) and "mean" not in gain
    step = lines(runs, "curformer_table_4")["cur_step"]
    assert (step["run"], step["text"], step["text n"], step["text std"]) == ("paper-paper", 60.25, 1, None)
    assert {table.name for table in paper_tables.tables({})} - {table.name for table in tables(runs).values()}


@needs_wandb
def test_report_publishes_offline(service, runs, capfd):
    (runs / "report" / "efficiency").mkdir(parents=True)
    Image.new("RGB", (8, 4), "red").save(runs / "report" / "efficiency" / "costs.png")
    report.__wrapped__(compose(ReportOptions, [f"runs={runs}", "logger=wandb", "logger.wandb.mode=offline"]))
    out, err = capfd.readouterr()
    drawn = list((runs / "report" / "figures").glob("*.png"))
    expected = tables(runs)
    sent = f"W&B: {len(expected)} tables and {len(drawn) + 2} pictures in {runs / 'report' / 'wandb'}\n"
    assert err == sent + "W&B: the dashboard needs a login and a connection, skipped\n" and "W&B" not in out

    found = wandb_files.read(runs / "report")
    assert found.messages["run"].job_type == "report" and found.messages["exit"].exit_code == 0
    (row,) = found.history
    (files,) = (runs / "report" / "wandb").glob("offline-run-*/files")
    for path in [*drawn, runs / "report" / "efficiency" / "costs.png"]:
        assert (files / row[f"figures/{path.stem}"]["path"]).read_bytes() == path.read_bytes()
    assert {"board_board", "admission_board", "paper_paper_listops"} < expected.keys()
    for key, table in expected.items():
        sent = json.loads((files / row[key]["path"]).read_text())
        assert sent["columns"] == list(wandb.numbers(table))
        assert sent["data"] == wandb.numbers(table).to_numpy(dtype=object).tolist()


@needs_wandb
def test_dashboard_shows_every_table_picture_and_curve(runs):
    studies = summary.collect(runs)[0]
    made = wandb.dashboard("lra", "", "report of it's", studies, tables(runs), ["figures/curves"])
    made._to_model()  # W&B's own form of it, which refuses what does not fit
    grids = [block for block in made.blocks if type(block).__name__ == "PanelGrid"]
    panels = [panel for grid in grids for panel in grid.panels]
    assert [p.table_name for p in panels if hasattr(p, "table_name")] == list(tables(runs))
    assert [p.media_keys for p in panels if hasattr(p, "media_keys")] == [["figures/curves"]]
    curves = [grid.runsets[0].filters for grid in grids if len(grid.panels) == 2]
    wanted = [(study, row.task) for study, rows in studies.items() for row in rows]
    assert len(curves) == len(set(wanted))
    for study, task in wanted:
        assert any(f"[{study!r}]" in text and f"[{task!r}]" in text for text in curves)
    assert "https://doi.org/10.1007/s10994-025-06768-3" in made.blocks[-1].text
