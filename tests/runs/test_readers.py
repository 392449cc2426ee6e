"""Records and tables from disk: what is no such thing is one line with its name, and stops nothing else."""

import base64
import json
import os
import random
from pathlib import Path

import pytest
from conftest import run
from support.bench import made, row
from support.records import RECORD, add, unseal

from lra.report import artifacts
from lra.report.__main__ import report
from lra.runs import bench_record as bench
from lra.runs import evaluations, folder, record, typed_json
from lra.runs.open import scan
from lra.studies.dropin import table
from lra.studies.probes import record as probes
from lra.studies.transfer import record as transfers
from lra.studies.transfer.compare import Layer

NO_NAMES = ["../../x", "/etc/x", "a\\b", "..", "", "${oc.env:HOME}", "x" * 151, "\x1b[2J"]
PLACES = ("study", "task", "label")
FOLDERS = {  # keys of a record that name a folder
    "record.json": (*PLACES, "protocol", "budget"),
    "probes.json": PLACES,
    "transfer.json": (*PLACES, "protocol", "budget", "source"),
    "errors.json": ("source",),
}
KINDS = [*FOLDERS, "bench.json", "cost.json"]
LAYER = Layer(path="a", mean_abs=0.1, relative=0.2, stack_mean_abs=0.1, stack_relative=0.2, spectrum=[1.0])
TRANSFER = {
    **{key: getattr(RECORD, key) for key in ("study", "task", "protocol", "budget", "label", "seed", "fingerprint")},
    **{key: getattr(RECORD, key) for key in ("git", "metric", "constant_baseline", "n_val", "n_test")},
    **{key: getattr(RECORD, key) for key in ("device", "status")},
    **dict.fromkeys(("exact_val", "exact_test", "direct_val", "direct_test"), 30.0),
    **{"source": "sdpa", "attn": {"count": 8}, "steps": 0, "tuned_val": None, "tuned_test": None, "layers": [LAYER]},
    **{"examples": 4, "spectrum_examples": 0},
}  # fmt: skip
PROBES = {key: getattr(RECORD, key) for key in (*PLACES, "seed", "fingerprint", "git", "metric")}
PROBES |= {"examples": 4, "score": 30.0, "by": None, "reaches": [1], "scores": [30.0], "beyond": None}
PROBES |= {"derived": 0, "rows": 8}


def written(kind: str, home: Path) -> tuple[Path, object, str]:
    """A record of each kind, its reader and a number in it."""
    if kind == "record.json":
        record.save(RECORD, home)
        return home / kind, record.load, "constant_baseline"
    if kind == "probes.json":
        typed_json.save(probes.Probes(**PROBES), home / kind)
        return home / kind, probes.load, "score"
    if kind == "transfer.json":
        typed_json.save(transfers.TransferRecord(**TRANSFER), home / kind)
        return home / kind, transfers.load, "direct_test"
    if kind == "bench.json":
        return bench.save(made([row("sdpa", 128, 3.0)]), home), bench.load, "seconds"
    if kind == "errors.json":
        typed_json.save(table.Errors("a", "", 2, 0, None, {"cur_step": {"4": (0.1, float("nan"))}}), home / kind)
        return home / kind, table.load_errors, "n"
    typed_json.save(table.Cost("", (1.0, 2.0), {"mean": {"4": (1.0, 2.0)}}), home / kind)
    return home / kind, lambda path: typed_json.parse(table.Cost, path, *table.KIND), "exact"


def with_value(value):
    def change(path, key):
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


CHANGES = {
    "null": with_value(None),
    "nested": with_value({"a": [1]}),
    "a word": with_value("3.5"),
    "true": with_value(True),
    "not there": lambda path, key: path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key})
    ),
    "a list": lambda path, _: path.write_text("[1, 2]"),
    "deep": lambda path, _: path.write_text("[" * 100_000),
    "empty": lambda path, _: path.write_bytes(b""),
    "cut off": lambda path, _: path.write_bytes(path.read_bytes()[:-20]),
    "bytes": lambda path, _: path.write_bytes(random.Random(0).randbytes(300)),
    "a number of a million digits": lambda path, key: path.write_text(f'{{"{key}": {"9" * 10**6}}}'),
    "a folder": lambda path, _: (path.unlink(), path.mkdir()),
    "a FIFO": lambda path, _: (path.unlink(), os.mkfifo(path)),
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


@pytest.mark.parametrize("key,value", [("test", float("nan")), ("val", float("inf")), ("test", 101.0), ("test", None),
                                       ("status", "well"), ("seed", -1), ("step_ms", -2.0)])  # fmt: skip
def test_values_that_no_run_has(tmp_path, key, value):
    path, load, _ = written("record.json", tmp_path)
    unseal(path)
    with_value(value)(path, key)
    with pytest.raises(ValueError, match=r"record.json is not a record of a run \("):
        load(path)


def test_one_bad_record_is_skipped_and_the_others_are_shown(tmp_path, monkeypatch, capfd):
    for seed, change in enumerate(["null", "nested", "deep", "a folder", "a FIFO"]):
        path = add(tmp_path, seed=seed)
        CHANGES[change](path, "test")
    with_value(float("nan"))(add(tmp_path, seed=5), "test")
    add(tmp_path, seed=6, test=41.5)
    stop, told = run(report, f"runs={tmp_path}", patch=monkeypatch, capfd=capfd)
    assert stop is None and told.count("skipped: ") == 6
    for seed in range(6):
        assert f"seed-{seed}/record.json is not a record of a run (" in told
    assert "| 41.50 | 1 |" in (tmp_path / "report" / "report.md").read_text()


def test_a_run_that_is_not_finished_is_told(tmp_path):
    add(tmp_path, seed=0)
    path = add(tmp_path, seed=1)
    path.with_name("config.yaml").write_text("a: 1\n")
    path.unlink()
    found, told = scan(tmp_path)
    assert [folder.name for folder in found] == ["seed-0"]
    assert told == [f"{path.parent} has no record.json: the run is not finished"]


@pytest.mark.parametrize("form", [None, 1, 3, True, "2"])
def test_another_form_is_one_line_that_says_what_to_do(tmp_path, form):
    path, load, _ = written("record.json", tmp_path)
    tree = {key: value for key, value in json.loads(path.read_text()).items() if key != "form"}
    path.write_text(json.dumps(tree if form is None else tree | {"form": form}))
    with pytest.raises(
        ValueError, match=rf"form {form} instead of 2: .* below 0.2 .*; delete it to run that seed again, or"
    ):
        load(path)


GOOD = "step,train_loss,val,lr\n3,2.5,10.0,0.001\n6,2.25,12.5,0.0\n"
ROWS = {
    "nan": GOOD.replace("12.5", "nan"),
    "inf": GOOD.replace("12.5", "inf"),
    "a word": GOOD.replace("12.5", "twelve"),
    "a cell too few": GOOD.replace(",0.0\n", "\n"),
    "a cell too many": GOOD.replace(",0.0\n", ",0.0,1\n"),
    "no step": GOOD.replace("step", "stop"),
    "steps that fall": GOOD.replace("\n6", "\n2"),
    "a step twice": GOOD.replace("\n6", "\n3"),
    "half a step": GOOD.replace("\n6", "\n6.5"),
    "a quote": GOOD.replace("12.5", '"12.5'),
    "bytes": "\0\1\2",
}


@pytest.mark.parametrize("rows", ROWS)
def test_what_is_no_table_of_evaluations_is_told_and_not_drawn(tmp_path, rows):
    path = tmp_path / "metrics.csv"
    path.write_text(GOOD)
    assert evaluations.read(tmp_path)[1] == {"step": 6, "train_loss": 2.25, "val": 12.5, "lr": 0.0}
    assert artifacts.read(tmp_path)[0].curves["val"] == {3: 10.0, 6: 12.5}
    path.write_text(ROWS[rows])
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


def test_a_picture_is_a_file_of_the_run_itself(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(artifacts.PNG + b"secret")
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}" / "maps").mkdir(parents=True)
    first, second = (tmp_path / f"seed-{seed}" / "maps" for seed in (0, 1))
    (first / "a.png").write_bytes(artifacts.PNG + b"a")
    (first / "b.png").symlink_to(secret)
    (first / "c.png").symlink_to(first / "a.png")
    (first / "d.png").write_bytes(b"no picture")
    (first / "e.png").mkdir()
    os.mkfifo(first / "f.png")
    found, told = artifacts.read(tmp_path / "seed-0")
    assert found.pictures == {"a": artifacts.PNG + b"a"}
    assert [line.partition(" is not shown: ")[2] for line in told] == [
        "it is a link to another file",
        "it is a link to another file",
        "it is no PNG",
        "it is a folder",
        "it is not a regular file",
    ]
    second.rmdir()
    second.symlink_to(first, target_is_directory=True)
    found, told = artifacts.read(tmp_path / "seed-1")
    assert not found.pictures and all("it is a link to another file" in line for line in told)
    (tmp_path / "linked").symlink_to(tmp_path / "seed-0", target_is_directory=True)  # a whole run may be elsewhere
    assert artifacts.read(tmp_path / "linked")[0].pictures == {"a": artifacts.PNG + b"a"}


def test_the_page_has_curves_configuration_and_maps_of_each_run(tmp_path, monkeypatch, capfd):
    for seed in (0, 1):
        home = add(tmp_path / "runs", seed=seed).parent
        (home / "metrics.csv").write_text("step,train_loss,val,lr\n3,2.0,30.0,1e-3\n6,1.5,37.5,0.0\n")
    (home / "config.yaml").write_text("optim.lr: 0.0123\n")
    (home / "maps").mkdir()
    (home / "maps" / "a.png").write_bytes(artifacts.PNG + b"pixels")
    stop, _ = run(report, f"runs={tmp_path / 'runs'}", patch=monkeypatch, capfd=capfd)
    page = (tmp_path / "runs" / "report" / "index.html").read_text()
    shown = page[page.index('<section id="runs">') :]
    assert stop is None and base64.b64encode(artifacts.PNG + b"pixels").decode() in shown
    assert "<dt>optim.lr</dt><dd>0.0123</dd>" in shown
    assert [shown.count(f'data-label="{seed}"') for seed in (0, 1)] == [2, 2]  # dev score and loss


def test_only_what_mends_itself_is_said_to_go_on(tmp_path):
    with (
        pytest.raises(ValueError, match=r"cannot be written: No space.*the same command goes on"),
        folder.writing(tmp_path),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(FileNotFoundError), folder.writing(tmp_path):
        (tmp_path / "best.ckpt").read_bytes()
