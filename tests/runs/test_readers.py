"""Records and tables from disk: what is no such thing is one line with its name, and stops nothing else."""

import base64
import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import run
from support.bench import made, row
from support.records import RECORD, add, instead, metrics, unseal

from lra.io import typed_json
from lra.report import artifacts
from lra.report.__main__ import report
from lra.results import bench_record as bench
from lra.runs import checkpoint, record, run_dir
from lra.studies.dropin import __main__ as dropin
from lra.studies.probes import record as probes
from lra.studies.transfer import record as transfers
from lra.studies.transfer.compare import Layer

GOOD = "step,train_loss,val,lr\n3,2.5,10.0,0.001\n6,2.25,12.5,0.0\n"
NO_NAMES = ["../../x", "/etc/x", "a\\b", "..", "", "${oc.env:HOME}", "x" * 151, "\x1b[2J"]
PLACES = ("study", "task", "label")
FOLDERS = {  # keys of a record that name a folder
    "record.json": (*PLACES, "protocol", "budget"),
    "probes.json": PLACES,
    "transfer.json": (*PLACES, "protocol", "budget", "source"),
    "errors.json": ("source",),
}
LAYER = Layer(path="a", mean_abs=0.1, relative=0.2, stack_mean_abs=0.1, stack_relative=0.2, spectrum=[1.0])
SCORES = ("exact_val", "exact_test", "direct_val", "direct_test", "tuned_val", "tuned_test")
PROBES = {"by": None, "beyond": None, "examples": 4, "derived": 0, "rows": 8}
TRANSFER = dict.fromkeys(SCORES, 30.0) | {"layers": [LAYER], "attn": {"count": 8}, "source": "sdpa"}
TRANSFER |= {"steps": 0, "examples": 4, "spectrum_examples": 0}


def filled(kind, **values):
    """A record with some values, the others those of a record of a run."""
    shared = [field.name for field in dataclasses.fields(kind) if hasattr(RECORD, field.name)]
    return kind(**{name: getattr(RECORD, name) for name in shared} | values)


KINDS = {  # a record, its reader and a number in it
    "record.json": (RECORD, record.load, "constant_baseline"),
    "probes.json": (filled(probes.Probes, **PROBES, score=30.0, scores=[30.0], reaches=[1]), probes.load, "score"),
    "transfer.json": (filled(transfers.TransferRecord, **TRANSFER), transfers.load, "direct_test"),
    "bench.json": (made([row("sdpa", 128, 3.0)]), bench.load, "seconds"),
    "errors.json": (dropin.Errors("a", "", 2, 0, None, {"mean": {"4": (0.1, float("nan"))}}), dropin.load, "n"),
    "cost.json": (
        dropin.Cost("", (1.0, 2.0), {"mean": {"4": (1.0, 2.0)}}),
        lambda path: dropin.load(path, dropin.Cost),
        "exact",
    ),
}


def written(kind: str, home: Path) -> tuple[Path, Callable, str]:
    known, load, key = KINDS[kind]
    typed_json.save(known, home / kind)
    return home / kind, load, key


def with_value(value):
    def change(path, key):
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


CHANGES = {
    "null": with_value(None),
    "a word": with_value("3.5"),
    "true": with_value(True),
    "not there": lambda path, key: path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key})
    ),
    "a list": lambda path, _: path.write_text("[1, 2]"),
    "deep": lambda path, _: path.write_text("[" * 100_000),
    "cut off": lambda path, _: path.write_bytes(path.read_bytes()[:-20]),
    "bytes": lambda path, _: path.write_bytes(random.Random(0).randbytes(300)),
    "a number of a million digits": lambda path, key: path.write_text(f'{{"{key}": {"9" * 10**6}}}'),
    "a folder": lambda path, _: instead(path, Path.mkdir),
    "a FIFO": lambda path, _: instead(path, os.mkfifo),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_record_is_told_in_a_line(tmp_path, kind, change):
    path, load, key = written(kind, tmp_path)
    load(path)
    unseal(path)
    CHANGES[change](path, key)
    with pytest.raises(ValueError, match=r"delete it") as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_names_a_folder_is_a_name_and_a_metric_is_known(tmp_path, kind):
    path, load, _ = written(kind, tmp_path)
    unseal(path)
    whole = path.read_text()
    wrong = [(key, value) for key in FOLDERS[kind] for value in NO_NAMES]
    for key, value in [*wrong, *[("metric", "__class__")] * ('"metric"' in whole)]:
        path.write_text(whole)
        with_value(value)(path, key)
        with pytest.raises(ValueError, match=rf"{kind} is not .*{key}"):
            load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_in_a_record_is_seen(tmp_path, kind):
    path, load, _ = written(kind, tmp_path)
    text = path.read_text()
    at = text.rindex("0", 0, text.index('"sha256"'))
    path.write_text(text[:at] + "1" + text[at + 1 :])
    with pytest.raises(ValueError, match=r"its sha256 is not the one in it"):
        load(path)


NO_VALUES = [("test", float("nan")), ("val", float("inf")), ("test", 101.0), ("test", None), ("status", "well")]


@pytest.mark.parametrize("key, value", [*NO_VALUES, ("seed", -1), ("step_ms", -2.0)])
def test_values_that_no_run_has(tmp_path, key, value):
    path, load, _ = written("record.json", tmp_path)
    unseal(path)
    with_value(value)(path, key)
    with pytest.raises(ValueError, match=r"record.json is not a record of a run \("):
        load(path)


def test_the_report_shows_whole_runs_and_tells_of_the_others(tmp_path, monkeypatch, capfd):
    for seed, change in enumerate(["null", "deep", "a folder", "a FIFO"]):
        CHANGES[change](add(tmp_path, seed=seed), "test")
    unfinished, one, other = (add(tmp_path, seed=seed, test=41.5) for seed in (4, 5, 6))
    for path in (unfinished, one, other):
        metrics(path, [10.0, 12.5])
        (path.parent / "config.yaml").write_text("optim.lr: 0.0123\n")
    unfinished.unlink()
    (one.parent / "maps").mkdir()
    (one.parent / "maps" / "a.png").write_bytes(artifacts.PNG + b"pixels")
    damaged = tmp_path.joinpath(probes.FOLDER, *one.parts[-5:-2], "seed-5", probes.NAME)
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    stop, told = run(report, f"runs={tmp_path}", patch=monkeypatch, capfd=capfd)
    assert stop is None and len({line for line in told.splitlines() if line.startswith("skipped: ")}) == 6, told
    assert f"skipped: {damaged} is not a record of probes" in told
    assert f"{unfinished.parent} has no record.json: the run is not finished" in told
    for seed in range(4):
        assert f"seed-{seed}/record.json is not a record of a run (" in told
    assert "| 41.50 ± 0.00 | 2 |" in (tmp_path / "report" / "report.md").read_text()
    shown = (tmp_path / "report" / "index.html").read_text().partition('<section id="runs">')[2]
    assert base64.b64encode(artifacts.PNG + b"pixels").decode() in shown and "<dt>optim.lr</dt><dd>0.0123</dd>" in shown
    assert [shown.count(f'data-label="{seed}"') for seed in (4, 5, 6)] == [0, 2, 2]  # dev score and loss


@pytest.mark.parametrize("form", [None, 1, 3, True, "2"])
def test_another_form_is_one_line_that_says_what_to_do(tmp_path, form):
    path, load, _ = written("record.json", tmp_path)
    tree = {key: value for key, value in json.loads(path.read_text()).items() if key != "form"}
    path.write_text(json.dumps(tree if form is None else tree | {"form": form}))
    with pytest.raises(ValueError, match=rf"form {form} instead of 2: .* below 0.2 .*; delete it to run that seed"):
        load(path)


ROWS = {
    "nan": ("12.5", "nan"),
    "a word": ("12.5", "twelve"),
    "a cell too few": (",0.0\n", "\n"),
    "a cell too many": (",0.0\n", ",0.0,1\n"),
    "no step": ("step", "stop"),
    "a step twice": ("\n6", "\n3"),
    "half a step": ("\n6", "\n6.5"),
    "a quote": ("12.5", '"12.5'),
    "bytes": (GOOD, "\0\1\2"),
}


@pytest.mark.parametrize("rows", ROWS)
def test_what_is_no_table_of_evaluations_is_told_and_not_drawn(tmp_path, rows):
    path = tmp_path / "metrics.csv"
    path.write_text(GOOD)
    assert checkpoint.read_metrics(tmp_path)[1] == {"step": 6, "train_loss": 2.25, "val": 12.5, "lr": 0.0}
    assert artifacts.read(tmp_path)[0].curves["val"] == {3: 10.0, 6: 12.5}
    path.write_text(GOOD.replace(*ROWS[rows]))
    found, (told,) = artifacts.read(tmp_path)
    assert found.curves == {} and told.startswith(f"{path} is not a table of evaluations (") and "\n" not in told


def test_what_a_folder_had_and_has_no_more_is_told(tmp_path):
    assert artifacts.read(tmp_path) == (artifacts.Artifacts({}, {}, {}), [])
    (tmp_path / "metrics.csv").write_text(GOOD)
    (tmp_path / "config.yaml").write_text("a: 1\n")
    record.save(RECORD, tmp_path)
    assert artifacts.read(tmp_path)[1] == []
    for name in ("metrics.csv", "config.yaml"):
        (tmp_path / name).unlink()
    lines = artifacts.read(tmp_path)[1]
    assert len(lines) == 2 and all("(it is missing)" in line for line in lines)


LINK = "it is a link to another file"


def test_a_picture_is_a_file_of_the_run_itself(tmp_path):
    secret, first, second = tmp_path / "secret", *(tmp_path / f"seed-{seed}" / "maps" for seed in (0, 1))
    secret.write_bytes(artifacts.PNG + b"secret")
    first.mkdir(parents=True), second.parent.mkdir()
    (first / "a.png").write_bytes(artifacts.PNG + b"a")
    (first / "b.png").symlink_to(secret)
    (first / "c.png").symlink_to(first / "a.png")
    (first / "d.png").write_bytes(b"no picture")
    (first / "e.png").mkdir()
    os.mkfifo(first / "f.png")
    found, told = artifacts.read(tmp_path / "seed-0")
    assert found.pictures == {"a": artifacts.PNG + b"a"}
    reasons = [LINK, LINK, "it is no PNG", "it is a folder", "it is not a regular file"]
    assert [line.partition(" is not shown: ")[2] for line in told] == reasons
    second.symlink_to(first, target_is_directory=True)
    found, told = artifacts.read(tmp_path / "seed-1")
    assert not found.pictures and all(LINK in line for line in told)
    (tmp_path / "linked").symlink_to(tmp_path / "seed-0", target_is_directory=True)  # a whole run may be elsewhere
    assert artifacts.read(tmp_path / "linked")[0].pictures == {"a": artifacts.PNG + b"a"}


def test_only_what_mends_itself_is_said_to_go_on(tmp_path):
    with pytest.raises(FileNotFoundError), run_dir.explain_disk_errors(tmp_path):  # a full disk is told in tests/io
        (tmp_path / "best.ckpt").read_bytes()
