"""The check of a GPU, on a CPU: what a cut leaves, what goes on, and what the archive holds."""

import os
import sys
import tarfile
from pathlib import Path

import torch
from support.bench import made, row
from support.records import add

from lra.bench import gpu_check
from lra.bench.gpu_check import CheckPart
from lra.runs import bench_record, record


def check(minutes, home, *parts):
    return gpu_check.check(minutes, home, list(parts), dict(os.environ), "some-cpu")


TESTS = """
def test_one(record_property): record_property('measured', 'err 1e-3')
def test_other(): assert 0
"""


def test_tests_benchmarks_and_checkpoints_of_unfinished_runs_are_packed(tmp_path):
    home = tmp_path / "runs" / gpu_check.STUDY
    bench_record.save(made([row("naive", 64, 1.0)]), home)
    ended, begun = add(home).parent, home / "begun"
    begun.mkdir()
    for file in (ended / "last.ckpt", ended / "best.ckpt", begun / "last.ckpt"):
        file.touch()
    (tmp_path / "test_two.py").write_text(TESTS)
    report = f"--junitxml={home / 'parts' / gpu_check.REPORT}"
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", report, str(tmp_path)]
    path = check(20, home, CheckPart("tests", tests, 0.4))
    text = (home / "some-cpu.md").read_text()
    assert "exit status: {'tests': 1}." in text and "Tests: 2 tests, 1 failures" in text
    assert "* err 1e-3" in text and "Failed: test_two.test_other." in text and "naive" in text
    with tarfile.open(path) as archive:
        names = {Path(name).relative_to(home.name) for name in archive.getnames()}
    files = {file.relative_to(home) for file in (begun / "last.ckpt", ended / record.NAME, home / "some-cpu.md")}
    assert files <= names and {"bench.json", "tests.log", "tests.done"} <= {name.name for name in names}
    assert [name for name in names if name.suffix == ".ckpt"] == [Path("begun/last.ckpt")]


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


def test_the_tests_of_a_gpu_are_found():
    assert "test_triton_gpu.py" in {path.name for path in gpu_check.gpu_test_files()}


def test_without_a_gpu_nothing_is_run(capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "minutes=25"])
    gpu_check.main()
    assert capfd.readouterr().err == "gpu-check: torch sees no GPU, nothing was run\n"
