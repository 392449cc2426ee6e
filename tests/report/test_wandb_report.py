"""The published comparison: its numbers against the records and the papers, read back from the offline run."""

import dataclasses
import importlib.util
import json
import statistics
import sys

import pytest
import wandb_files
from PIL import Image
from support.records import RECORD, TESTS, add, diverged

from lra.config.compose import compose
from lra.report import published, summary, wandb
from lra.report.__main__ import ReportOptions, report

needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="pip install '.[wandb]'")
needs_workspaces = pytest.mark.skipif(
    importlib.util.find_spec("wandb_workspaces") is None, reason="pip install '.[wandb]'"
)


@pytest.fixture
def runs(tmp_path):
    """Five seeds of a mechanism with a diverged one, a second way to select on two tasks, one of a kind elsewhere."""
    folder = tmp_path / "runs"
    for seed, test in enumerate(TESTS):
        add(folder, seed=seed, test=test, step_ms=10.0 + seed, peak_bytes=(seed + 1) << 20)
    diverged(folder, 9, seed=4)
    add(folder, label="cur_step", test=35.5)
    add(folder, label="cur_step", task="text", test=60.25)
    add(folder, label="local", task="pathfinder_x", test=50.0, study="other", device="x86_64 CPU, 2 threads")
    return folder


def lines(runs, key):
    return wandb.tables(summary.collect(runs)[0], [])[key].to_dict("records")


def test_accuracy_stands_beside_the_papers(runs):
    found = lines(runs, "accuracy")
    ours = {(line["study"], line["task"], line["mechanism"]): line for line in found}
    assert len(ours) == len(found) == 4
    line = ours["paper-paper", "listops", "cur_abs"]
    assert line["test"] == pytest.approx(statistics.fmean(TESTS)) and line["n"] == 4 and line["lost"] == 1
    assert line["std"] == pytest.approx(statistics.stdev(TESTS))
    assert (line["CURformer T1"], line["CURformer T4"]) == (39.62, 39.62)
    assert line["links"] == "https://doi.org/10.1007/s10994-025-06768-3"
    assert line["remarks"] == "1 diverged at step 9" and line["budget"] == "paper"
    failed = ours["other", "pathfinder_x", "local"]
    assert failed["leaderboard"] is None and failed["CURformer T1"] is None  # printed as FAIL; not printed
    assert "https://github.com/google-research/long-range-arena" in failed["links"]


def test_selection_is_table_4(runs):
    found = lines(runs, "selection")
    printed = {(v.model, v.task): float(v.value) for v in published.read() if v.source == "CURformer T4"}
    for line in found:
        if line["run"] == "published":
            assert all(line[task] == printed[line["mechanism"], task] for task in ("listops", "text"))
    abs_, step = (line for line in found if line["run"] == "paper-paper")
    place = found.index(abs_) - 1
    assert (found[place]["run"], found[place]["mechanism"]) == ("published", "CURformer select=abs")
    assert (step["text"], step["text n"], step["text std"]) == (60.25, 1, None)
    assert (abs_["text"], abs_["text n"], abs_["listops n"]) == ("", None, 4)


def test_efficiency_is_over_finished_seeds_and_copies_count_once(runs):
    again = dataclasses.replace(RECORD, step_ms=1000.0)
    records = [
        again,
        *(dataclasses.replace(RECORD, seed=i, step_ms=t, peak_bytes=i << 20) for i, t in enumerate((5, 7))),
    ]
    records.append(dataclasses.replace(RECORD, seed=9, status="diverged", test=None, step_ms=9e9))
    records.append(dataclasses.replace(RECORD, device="x86_64 CPU, 2 threads", step_ms=None, peak_bytes=None))
    gpu, cpu = wandb.tables({RECORD.study: []}, records)["efficiency"].to_dict("records")
    assert (gpu["n"], gpu["ms a step"], gpu["peak MiB"], gpu["params"]) == (2, 6.0, 1.0, RECORD.params)
    assert (cpu["n"], cpu["ms a step"], cpu["peak MiB"], cpu["test"]) == (1, None, None, RECORD.test)


def test_every_paper_has_a_link():
    assert {row.link.partition("://")[0] for row in published.read()} == {"https"}
    assert len({row.link for row in published.read()}) == len({row.paper for row in published.read()})


@needs_wandb
@needs_workspaces
def test_report_publishes_offline(service, runs, capfd):
    (runs / "report" / "efficiency").mkdir(parents=True)
    Image.new("RGB", (8, 4), "red").save(runs / "report" / "efficiency" / "costs.png")
    report.__wrapped__(compose(ReportOptions, [f"runs={runs}", "logger=wandb", "logger.wandb.mode=offline"]))
    out, err = capfd.readouterr()
    drawn = list((runs / "report" / "figures").glob("*.png"))
    sent = f"W&B: 4 tables and {len(drawn) + 1} pictures in {runs / 'report' / 'wandb'}\n"
    assert err == sent + "W&B: the dashboard needs a login and a connection, skipped\n" and "W&B" not in out

    found = wandb_files.read(runs / "report")
    assert found.messages["run"].job_type == "report" and found.messages["exit"].exit_code == 0
    (row,) = found.history
    (files,) = (runs / "report" / "wandb").glob("offline-run-*/files")
    for path in [*drawn, runs / "report" / "efficiency" / "costs.png"]:
        assert (files / row[f"figures/{path.stem}"]["path"]).read_bytes() == path.read_bytes()
    studies = summary.collect(runs)[0]
    expected = wandb.tables(studies, [])
    assert {"accuracy", "selection", "published"} == expected.keys()
    for key in ("accuracy", "selection", "efficiency", "published"):
        assert row[key]["_type"] == "table-file"
        table = json.loads((files / row[key]["path"]).read_text())
        assert key not in expected or (table["columns"], table["data"]) == (
            list(expected[key]),
            expected[key].values.tolist(),
        )


@needs_workspaces
def test_dashboard_shows_every_table_picture_and_curve(runs):
    studies = summary.collect(runs)[0]
    made = wandb.dashboard("lra", "", "report of it's", studies, ["accuracy", "published"], ["figures/curves"])
    made._to_model()  # W&B's own form of it, which refuses what does not fit
    grids = [block for block in made.blocks if type(block).__name__ == "PanelGrid"]
    panels = [panel for grid in grids for panel in grid.panels]
    assert [p.table_name for p in panels if hasattr(p, "table_name")] == ["accuracy", "published"]
    assert [p.media_keys for p in panels if hasattr(p, "media_keys")] == [["figures/curves"]]
    curves = [grid.runsets[0].filters for grid in grids if len(grid.panels) == 2]
    assert [("paper-paper" in text, "other" in text) for text in curves] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    assert "https://doi.org/10.1007/s10994-025-06768-3" in made.blocks[-1].text


def test_missing_package_is_named(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = compose(ReportOptions, ["logger=wandb"]).logger["wandb"].options
    with pytest.raises(ValueError, match=r"pip install '\.\[wandb\]'"):
        wandb.publish(config, summary.collect(runs)[0], [], runs)
