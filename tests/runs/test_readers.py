"""Tests of the readers of records, tables and checkpoints: an invalid file raises its path and reason."""

import base64
import json
import pickle
import random
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import assert_error, error_message
from server import write_folder
from support.records import RECORD, add, metrics, unseal

from lra.report import page
from lra.report.__main__ import report
from lra.runs import checkpoint, reader, record
from lra.studies.factorise.__main__ import load_arrays
from lra.studies.probes import record as probes
from lra.studies.probes.report import matrices, write_matrix

METRICS_CSV = "step,train_loss,val,lr\n3,2.5,10.0,0.001\n6,2.25,12.5,0.0\n"
ROWS = {"word": ("12.5", "twelve"), "few": (",0.0\n", "\n"), "no step": ("step", "stop"), "infinity": ("3,2", "inf,2")}
IMPOSSIBLE_VALUES = [("test", float("nan")), ("val", float("inf")), ("test", 101.0), ("test", None)]
IMPOSSIBLE_VALUES += [("status", "well"), ("seed", -1), ("step_ms", -2.0), ("study", "../../x"), ("metric", "accurate")]


@pytest.fixture
def path(tmp_path):
    record.save(RECORD, tmp_path)
    return tmp_path / "record.json"


def with_value(value):
    return lambda path, key: path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


CHANGES = {
    "null": with_value(None),
    "a word": with_value("3.5"),
    "not there": unseal,
    "cut off": lambda path, _: path.write_bytes(path.read_bytes()[:-20]),
    "nested": lambda path, _: path.write_text("[" * 99_999),
}


@pytest.mark.parametrize("change", CHANGES)
def test_invalid_record_raises_single_line_reason(path, change):
    record.load(path)
    unseal(path)
    CHANGES[change](path, "constant_baseline")
    message = error_message(record.load, path)
    assert message.startswith(str(path)) and "delete it" in message and len(message) < 400


@pytest.mark.parametrize("key, value", IMPOSSIBLE_VALUES)
def test_record_rejects_impossible_values(path, key, value):
    unseal(path)
    with_value(value)(path, key)
    reason = "done without a score" if value is None else key
    assert re.search(rf"record.json is not a record of .* \(.*{reason}", error_message(record.load, path))


def test_changed_number_in_record_is_detected(path):
    text = path.read_text()
    at = text.rindex("0", 0, text.index('"sha256"'))
    path.write_text(text[:at] + "1" + text[at + 1 :])
    assert "its contents do not match its sha256" in error_message(record.load, path)


def test_report_shows_intact_runs_and_lists_skipped_files(tmp_path, call):
    for seed, change in enumerate(["null", "not there", "cut off"]):
        CHANGES[change](add(tmp_path, seed=seed), "test")
    unfinished, intact, other = (add(tmp_path, seed=seed, test=41.5) for seed in (4, 5, 6))
    for path in (unfinished, intact, other):
        metrics(path, [10.0, 12.5])
        (path.parent / "config.yaml").write_text("optim.lr: 0.0123\n")
    unfinished.rename(unfinished.with_name("fresh_test.json"))
    write_folder(intact.parent / "maps", {"a.png": page.PNG + b"pixels"})
    damaged = tmp_path.joinpath(probes.FOLDER, *intact.parts[-5:-2], "seed-5", probes.NAME)
    write_folder(damaged.parent, {damaged.name: b"{"})
    stop, _, stderr = call(report, f"runs={tmp_path}")
    assert stop is None and len({line for line in stderr.splitlines() if line.startswith("skipped: ")}) == 5, stderr
    assert f"skipped: {damaged} is not a record of probes" in stderr
    assert f"{unfinished.parent} has no record.json: the run is not finished" in stderr
    for seed in range(3):
        assert f"seed-{seed}/record.json is not a record of a run (" in stderr
    assert "| 41.50 ± 0.00 | 2 |" in (tmp_path / "report" / "report.md").read_text()
    html = (tmp_path / "report" / "index.html").read_text().partition('<section id="runs">')[2]
    assert base64.b64encode(page.PNG + b"pixels").decode() in html and "<dt>optim.lr</dt><dd>0.0123</dd>" in html
    # Curves of the validation score and the loss.
    assert [html.count(f'data-label="{seed}"') for seed in (4, 5, 6)] == [0, 2, 2]


@pytest.mark.parametrize("form", [None, 1, 3])
def test_record_of_another_form_names_remedy(path, form):
    tree = {key: value for key, value in json.loads(path.read_text()).items() if key != "form"}
    path.write_text(json.dumps(tree if form is None else tree | {"form": form}))
    assert_error(rf"format {form} instead of 2: .* before 0.2 .*; delete it to run that seed", record.load, path)


@pytest.mark.parametrize("rows", ROWS)
def test_damaged_metrics_csv_is_reported_and_not_plotted(tmp_path, rows):
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS_CSV)
    assert checkpoint.read_metrics(tmp_path)[1] == {"step": 6, "train_loss": 2.25, "val": 12.5, "lr": 0.0}
    assert page.read_artifacts(tmp_path)[0].curves["val"] == {3: 10.0, 6: 12.5}
    path.write_text(METRICS_CSV.replace(*ROWS[rows]))
    run_artifacts, (line,) = page.read_artifacts(tmp_path)
    assert run_artifacts.curves == {}
    assert line.startswith(f"{path} is not a table of evaluations (") and "\n" not in line


def test_missing_files_of_a_run_are_reported(tmp_path):
    assert page.read_artifacts(tmp_path) == (page.Artifacts({}, {}, {}), [])
    (tmp_path / "metrics.csv").write_text(METRICS_CSV)
    (tmp_path / "config.yaml").write_text("a: 1\n")
    record.save(RECORD, tmp_path)
    assert page.read_artifacts(tmp_path)[1] == []
    for name in ("metrics.csv", "config.yaml"):
        (tmp_path / name).unlink()
    lines = page.read_artifacts(tmp_path)[1]
    assert len(lines) == 2 and all("(it is missing)" in line for line in lines)


def test_file_that_is_no_picture_is_not_shown(tmp_path):
    write_folder(tmp_path / "maps", {"a.png": page.PNG + b"a", "b.png": b"no picture"})
    run_artifacts, (message,) = page.read_artifacts(tmp_path)
    assert run_artifacts.pictures == {"a": page.PNG + b"a"} and message.endswith("b.png is not shown: it is not a PNG")


def test_gain_is_over_the_control_at_the_same_learning_rate(tmp_path):
    for label, test in (("mean", 20.0), ("mean-optim.lr=0.01", 25.0), ("cur_abs-optim.lr=0.01", 30.0)):
        path = add(tmp_path, label=label, test=test)
    # A control of another budget does not count.
    add(tmp_path, label="mean-optim.lr=0.01", seed=1, test=90.0, budget="quick")
    summary = reader.SeedDirs(path.parents[1]).summary()
    assert summary.endswith("test 30.00 (n = 1), +5.00 over mean-optim.lr=0.01 (n = 1)")


def test_history_skips_run_with_rejected_configuration(tmp_path, capfd):
    good, bad = (add(tmp_path, label=label).parent for label in ("good", "bad"))
    (good / "config.yaml").write_text("attn.count: 3\n")
    (bad / "config.yaml").write_text("a: [")
    # A seed that is not finished is skipped without a message.
    write_folder(good.with_name("seed-1"), {"config.yaml": b"attn.count: 3\n"})
    assert {r.label: choices for r, choices in reader.history(tmp_path)} == {"good": {"attn.count": 3}}
    stderr = capfd.readouterr().err
    assert str(bad / "config.yaml") in stderr and len(stderr.splitlines()) == 1 and len(stderr) < 400


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04"])
def test_foreign_npz_is_rejected(content, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    assert "a.npz is not a result of this study (" in error_message(load_arrays, tmp_path / "a.npz", {})


@pytest.mark.parametrize("content", [b"", b"a,b\n1\n", b"scored with,score\nown,x\n"])
def test_damaged_swaps_csv_is_rejected_or_skipped(content, tmp_path, capfd):
    seed = write_folder(tmp_path / "probes" / "s" / "listops" / "sdpa" / "seed-0", {"swaps.csv": content})
    message = error_message(write_matrix, seed.parents[2], "swaps.csv", {"examples": "200", "kept": ""})
    assert "swaps.csv is not a line of scores" in message
    (seed.parents[2] / "swaps.csv").write_bytes(content)
    row = SimpleNamespace(runs={tmp_path / "s" / "listops" / "sdpa" / "seed-0": None})
    assert matrices("s", [row]) == [] and "swaps.csv is not a matrix of scores" in capfd.readouterr().err


@pytest.fixture
def weights(tmp_path):
    model = torch.nn.Linear(8, 8)
    torch.save(model.state_dict(), tmp_path / "best.ckpt")
    return model, tmp_path / "best.ckpt"


FOREIGN = {
    "it is missing": lambda path: path.unlink(),
    "it is damaged or not a checkpoint": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "it is damaged or not a checkpoint(?#half)": lambda path: path.write_bytes(path.read_bytes()[:900]),
    "it is damaged or not a checkpoint(?#pickle)": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "its part best/data/0 is damaged": lambda path: path.write_bytes(path.read_bytes().replace(b"\x3e", b"\x3f")),
    "does not hold the weights of this model": lambda path: torch.save({"weight": torch.zeros(2)}, path),
    "does not hold weights by their names": lambda path: torch.save({"weight": 1.0}, path),
    "by their names, without NaN": lambda path: torch.save({"weight": torch.full((8, 8), torch.nan)}, path),
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_invalid_checkpoint_raises_reason(weights, reason):
    model, path = weights
    torch.save({"weight": torch.full((8, 8), 0.17), "bias": torch.zeros(8)}, path)
    FOREIGN[reason](path)
    message = error_message(checkpoint.load_weights, model, path)
    assert re.search(reason, message) and str(path) in message and "delete its folder" in message
    # A buffer may be infinite, such as a causal mask.
    torch.save({"mask": torch.tensor([0.0, -torch.inf])}, path)
    assert checkpoint.read_weights(path)["mask"].isinf().any()


def test_best_weights_that_were_replaced_raise_reason(weights):
    _, path = weights
    for reason in ("it is not the file that this training wrote", "it is missing"):
        message = error_message(checkpoint.read_weights, path, "0" * 64)
        assert f"{path} cannot be used ({reason}); delete its folder" in message
        path.unlink(missing_ok=True)
