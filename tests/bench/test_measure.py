"""Measurements: memory by hand, order of the rounds, stand-ins for public implementations, the check of a GPU."""

import math
import os
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from support.bench import made, row
from support.records import add

from lra.bench import gpu_check, peers, recurrences
from lra.bench.gpu_check import CheckPart
from lra.bench.measure import measure, peak_bytes
from lra.bench.peer_pairs import PeerPair
from lra.results import bench_record
from lra.runs import record

MB = 2**20


def allocate_twice():
    a = torch.empty(MB, dtype=torch.uint8)
    b = a + 1
    del a
    c = b + 1  # never more than two alive
    return c.view(-1)[:5]


BYTES = torch.zeros(MB, dtype=torch.uint8)
FLOATS = torch.zeros(MB // 4, requires_grad=True)


@pytest.mark.parametrize(
    ("step", "least", "most"),
    [
        pytest.param(allocate_twice, 2 * MB, 2 * MB, id="what is alive at once"),
        # exp keeps its output; the sum's gradient is expanded, not copied; one gradient of x.
        pytest.param(lambda: FLOATS.exp().sum().backward(), 2 * MB, 3 * MB + 64, id="backward pass"),
        pytest.param(lambda: BYTES.view(2, -1).add_(1).t(), 0, 0, id="views and in-place results"),
    ],
)
def test_peak_memory_is_what_a_step_holds_at_once(step, least, most):
    assert least <= peak_bytes(step) <= most


def test_rounds_are_interleaved_and_what_fails_is_a_row():
    calls = []

    def full():
        raise torch.OutOfMemoryError

    def late():
        calls.append("once")
        if calls.count("once") > 2:
            raise RuntimeError("no kernel\nfor this")

    def refused():
        raise ValueError("attn.count is too large")

    steps = {"a": lambda: calls.append("a"), "full": full, "full_cpu": lambda: torch.empty(2**60), "refused": refused}
    got = measure(steps | {"late": late, "b": lambda: calls.append("b")}, repeats=3, warmup=0)
    assert [c for c in calls if c != "once"] == ["a", "b"] + ["a", "b"] * 3
    assert calls[:6] == ["a", "once", "b", "a", "once", "b"]  # the memory pass, then the first round
    assert got["full"].status == got["full_cpu"].status == "out of memory" and got["full"].ms is None
    assert got["late"].status == "failed: no kernel" and got["late"].samples == ()
    assert got["refused"].status == "attn.count is too large"
    assert got["a"].status == "ok" and len(got["a"].samples) == 3
    assert min(got["a"].samples) <= got["a"].ms <= max(got["a"].samples)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a step says so."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def sleeper(clock, seconds):
    def step():
        clock[0] += seconds

    return step


def test_cpu_time_is_without_waiting(clock):
    """A step that sleeps computes nothing meanwhile."""
    step = {"sleep": sleeper(clock, 0.05)}
    wall, cpu = (measure(step, repeats=1, clock=kind)["sleep"].ms for kind in ("wall", "cpu"))
    assert wall == pytest.approx(50) and cpu < 50


def test_a_sample_is_as_many_calls_as_fill_it(clock):
    got = measure({"nap": sleeper(clock, 0.002)}, repeats=2, warmup=1, sample_ms=9)["nap"]
    assert got.calls == 5 and got.samples == pytest.approx([2, 2])
    assert clock[0] == pytest.approx(0.002 * (3 + 2 * 5))  # warm-up, memory pass, one to see how long it is


def test_nothing_is_begun_after_the_deadline(clock):
    steps = {"slow": sleeper(clock, 1), "next": sleeper(clock, 1)}
    got = measure(steps, repeats=100, warmup=0, deadline=0.5)
    assert len(got["slow"].samples) == 1 and got["next"].status.startswith("left out") and clock == [2.0]
    assert measure(steps, repeats=3, deadline=0.5)["slow"].status.startswith("left out") and clock == [2.0]


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
    log = capfd.readouterr().err
    assert "gpu-check: quick, exit status 0" in log and "gpu-check: slow, stopped after 4 s" in log
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


def test_without_a_gpu_nothing_is_run(call, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(gpu_check.main, "minutes=25")[2] == "gpu-check: torch sees no GPU, nothing was run\n"


def row_of_peer(build, remark=""):
    return peers.row(peers.PeerComparison(name="doubling", peer="package", build=build, remark=remark), 64, 2, 3)


@pytest.mark.parametrize(
    ("factor", "remark", "verdict"),
    [(1.0, "", "yes, 0e+00"), (1.001, "", "no, 1e-03"), (3.0, "other weights", "no, other weights")],
)
def test_a_row_has_ratios_and_whether_the_function_is_the_same(factor, remark, verdict):
    def build(n, batch, dtype):
        x = torch.arange(1.0, n * batch + 1).to(dtype).requires_grad_()
        return PeerPair(mechanism=lambda: 2 * x, reference=lambda: 2 * factor * x, inputs=[x], modules=[])

    name, peer, ours, theirs, time, memory, same = row_of_peer(build, remark)
    assert (name, peer, same) == ("`doubling`", "package", verdict)
    assert float(time) > 0 and float(memory) > 0 and ours.endswith("%)") and theirs.endswith("%)")


def test_a_peer_that_is_not_installed_or_fails_leaves_its_reason():
    def missing(n, batch, dtype):
        import no_such_package

        return no_such_package

    def build(n, batch, dtype):
        def forward():
            if n == 64:
                raise RuntimeError("no room")
            return torch.ones(3)

        return PeerPair(mechanism=forward, reference=forward, inputs=[], modules=[])

    assert row_of_peer(missing) == ["`doubling`", "package", "-", "-", "-", "-", "not installed"]
    assert "no room" in row_of_peer(build)[-1]


@pytest.mark.parametrize("word", ["n=0", "repeats=x", "m=3", "n"])
def test_wrong_overrides_are_named(word):
    assert peers.arguments(["n=16", "repeats=2"]) == {"n": 16, "batch": 8, "repeats": 2}
    with pytest.raises(ValueError, match=f"unknown override {word}"):
        peers.arguments([word])


def test_errors_and_times_of_the_recurrences():
    """Strong decays overflow in the factored form alone; every operator has a time in both directions."""
    torch.manual_seed(0)
    head, *rows = recurrences.decay_errors(128)
    assert [row[0] for row in rows] == list(recurrences.DECAYS) and {len(row) for row in rows} == {len(head)}
    errors = [[float(cell) for cell in row[1:]] for row in rows]
    assert [math.isnan(row[-1]) for row in errors] == [False, False, True, True]
    # A cumulative sum G of logarithms is rounded to 2^-24 |G|; 64 steps of logsigmoid(50 x) reach about 1,300.
    assert all(error < 64 * 20 * 2**-24 for row in errors for error in row[:4])
    for table in (recurrences.delta_rule_errors(128), recurrences.scan_errors(128)):
        assert all(0 < float(cell) < 1e-4 for row in list(table)[1:] for cell in row[1:])
    (_, *times) = recurrences.times(64, 1, 2)
    assert times[0][-1] == "1.00" and len(times) == 7 and all(float(cell) > 0 for row in times for cell in row[3:])
    with pytest.raises(ValueError, match=r"use python -m lra\.bench\.recurrences n=4096"):
        peers.arguments(["m=3"], "lra.bench.recurrences")


@pytest.mark.peers
@pytest.mark.parametrize("compared", peers.COMPARISONS, ids=lambda compared: f"{compared.name}-{compared.peer}")
def test_functions_are_the_same_unless_a_remark_says_why(compared):
    try:
        relative = peers.difference(compared)
    except ImportError:
        pytest.skip(f"{compared.peer} is not installed: make bench-peers")
    assert (relative < peers.SAME) == (not compared.remark)
