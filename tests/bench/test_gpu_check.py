"""The check of a GPU, on a CPU: what a cut leaves, what goes on, and what the archive holds."""

import os
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from conftest import config

from lra.bench import gpu_check, run
from lra.bench.__main__ import bench
from lra.bench.gpu_check import CheckPart
from lra.bench.options import BenchOptions
from lra.config.compose import compose
from lra.runs import record
from lra.train.__main__ import train

SMALL = ["n=64", "batch=1", "heads=1", "head_dim=16", "repeats=1", "warmup=0", "device=cpu", "modes=inference"]


def check(minutes, home, *parts):
    return gpu_check.check(minutes, home, list(parts), dict(os.environ), "some-cpu")


def test_tests_a_benchmark_and_a_training_to_the_packed_end(data_root, tmp_path, monkeypatch):
    """The benchmark and the training were made before; their parts copy them."""
    home, made = tmp_path / "runs" / gpu_check.STUDY, tmp_path / "made"
    monkeypatch.setattr(run, "rates", lambda device, dtypes: (1e9, dict.fromkeys(dtypes, 1e9)))
    words = ["what=attention", "mechanisms=[naive]", *SMALL]
    bench.__wrapped__(compose(BenchOptions, [*words, f"runs={made / gpu_check.STUDY}"]))
    train.__wrapped__(config("sdpa", "seeds=[0]", "study=gpu-check", f"runs={made}"))
    (tmp_path / "test_two.py").write_text(
        "def test_one(record_property):\n    record_property('measured', 'err 1e-3')\ndef test_other(): assert 0\n"
    )
    report = f"--junitxml={home / 'parts' / gpu_check.REPORT}"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", report]
    tests.append(str(tmp_path / "test_two.py"))
    copy = ["cp", "-r", *map(str, made.iterdir()), str(home.parent)]
    path = check(
        20, home, CheckPart("tests", tests, 0.4), CheckPart("figure4", copy, 0.4), CheckPart("trainings", copy, 1)
    )
    text = (home / "some-cpu.md").read_text()
    assert "exit status: {'figure4': 0, 'tests': 1, 'trainings': 0}." in text and "Tests: 2 tests, 1 failures" in text
    assert "* err 1e-3" in text and "Failed: test_two.test_other." in text and "naive" in text
    with tarfile.open(path) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"bench.json", record.NAME, "tests.log", "trainings.done", "some-cpu.md"} <= names
    assert not {"last.ckpt", "best.ckpt"} & names


def test_a_part_that_is_cut_leaves_its_results_and_is_run_again_elsewhere(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_check, "START", 0)
    here = tmp_path / gpu_check.STUDY
    write = "import time, pathlib; print('begun', flush=True); pathlib.Path({!r}).write_text({!r}); time.sleep({})"
    python = lambda name, text, seconds: [sys.executable, "-c", write.format(str(here / name), text, seconds)]
    slow = lambda seconds: CheckPart("slow", python("b.json", "half", seconds), 0.2)
    path = check(0.3, here, CheckPart("quick", python("a.json", "{seconds}", 0), 0.5), slow(100))
    told = capfd.readouterr().err
    assert "gpu-check: quick, exit status 0" in told and "gpu-check: slow, stopped after 4 s" in told
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    there = tmp_path / "elsewhere" / gpu_check.STUDY
    assert (there / "a.json").read_text() == "9" and (there / "b.json").read_text() == "half"
    assert sorted(path.name for path in (there / "parts").iterdir()) == ["quick.done", "quick.log", "slow.log"]
    assert (there / "parts" / "slow.log").read_text().startswith("begun\n")
    check(0.3, there, CheckPart("quick", ["no such program"], 0.5), slow(0))
    assert capfd.readouterr().err == "gpu-check: slow, exit status 0\n"


def test_the_archive_carries_the_checkpoints_of_unfinished_runs(tmp_path):
    home = tmp_path / gpu_check.STUDY
    for name, files in {"ended": ["last.ckpt", record.NAME], "begun": ["last.ckpt"]}.items():
        (home / name).mkdir(parents=True)
        for file in files:
            (home / name / file).write_text(name)
    with tarfile.open(gpu_check.pack(home)) as archive:
        assert sorted(archive.getnames()) == ["gpu-check/begun/last.ckpt", f"gpu-check/ended/{record.NAME}"]


def test_the_parts_are_the_commands_of_the_suite(tmp_path):
    names = [part.name for part in gpu_check.parts(tmp_path)]
    assert names == ["tests", "figure4", "table2", "step", "profile", "trainings"]
    assert "test_triton_gpu.py" in {path.name for path in gpu_check.gpu_test_files()}


@pytest.mark.parametrize("words", [["25"], ["minutes=25m"], ["minutes=1", "x=2"]])
def test_minutes_are_a_number(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_check", *words])
    with pytest.raises(SystemExit, match=r"^lra: python -m lra.bench.gpu_check minutes=25, or another number of min"):
        gpu_check.main()


def test_without_a_gpu_nothing_is_run(capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "minutes=25"])
    gpu_check.main()
    assert capfd.readouterr().err == "gpu-check: torch sees no GPU, nothing was run\n"
