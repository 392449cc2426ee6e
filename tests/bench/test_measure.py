"""Tests of the measurement loop, the GPU check, the comparison with peer packages and the recurrence benchmark."""

import math
import os
import sys
import tarfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.records import MB, add, made, row

from lra.bench import gpu_check, peers, recurrences
from lra.bench.gpu_check import CheckPart
from lra.bench.measure import measure, peak_bytes
from lra.bench.peer_pairs import PeerPair
from lra.results import bench_record
from lra.runs import record


def test_peak_bytes_counts_only_live_storages():
    def allocate_twice():
        a = torch.empty(MB, dtype=torch.uint8)
        b = a + 1
        del a
        c = b + 1
        return c.view(-1)[:5]

    assert peak_bytes(allocate_twice) == 2 * MB
    # exp saves its output for the backward pass; the gradient of sum is an expanded view; the gradient of x is new.
    x = torch.zeros(MB // 4, requires_grad=True)
    assert 2 * MB <= peak_bytes(lambda: x.exp().sum().backward()) <= 3 * MB + 64
    # Views and in-place results allocate nothing.
    storage = torch.zeros(MB, dtype=torch.uint8)
    assert peak_bytes(lambda: storage.view(2, -1).add_(1).t()) == 0


def test_measure_interleaves_rounds_and_records_failures_as_status():
    calls, oom = [], Mock(side_effect=torch.OutOfMemoryError)
    reject = Mock(side_effect=ValueError("attn.count is too large"))

    def fail_in_second_round():
        calls.append("once")
        if calls.count("once") > 2:
            raise RuntimeError("no kernel\nfor this")

    steps = {"a": lambda: calls.append("a"), "full": oom, "full_cpu": lambda: torch.empty(2**60), "refused": reject}
    result = measure(steps | {"late": fail_in_second_round, "b": lambda: calls.append("b")}, repeats=3, warmup=0)
    assert [c for c in calls if c != "once"] == ["a", "b"] + ["a", "b"] * 3
    # The memory pass, then the first round.
    assert calls[:6] == ["a", "once", "b", "a", "once", "b"]
    assert result["full"].status == result["full_cpu"].status == "out of memory" and result["full"].ms is None
    assert result["late"].status == "failed: no kernel" and result["late"].samples == ()
    assert result["refused"].status == "attn.count is too large"
    assert result["a"].status == "ok" and len(result["a"].samples) == 3
    assert min(result["a"].samples) <= result["a"].ms <= max(result["a"].samples)


@pytest.fixture
def clock(monkeypatch):
    """Replace the wall clock by seconds that only advance when a step adds to them."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def make_sleep_step(clock, seconds):
    def step():
        clock[0] += seconds

    return step


def test_cpu_clock_excludes_sleep(clock):
    step = {"sleep": make_sleep_step(clock, 0.05)}
    wall, cpu = (measure(step, repeats=1, clock=kind)["sleep"].ms for kind in ("wall", "cpu"))
    assert wall == pytest.approx(50) and cpu < 25


def test_sample_repeats_calls_until_its_minimum_duration(clock):
    result = measure({"nap": make_sleep_step(clock, 0.002)}, repeats=2, warmup=1, sample_ms=9)["nap"]
    assert result.calls == 5 and result.samples == pytest.approx([2, 2])
    # Three calls before the rounds: warm-up, memory pass, estimate of the duration.
    assert clock[0] == pytest.approx(0.002 * (3 + 2 * 5))


def test_no_step_starts_after_deadline(clock):
    steps = {"slow": make_sleep_step(clock, 1), "next": make_sleep_step(clock, 1)}
    result = measure(steps, repeats=100, warmup=0, deadline=0.5)
    assert len(result["slow"].samples) == 1 and result["next"].status.startswith("left out") and clock == [2.0]
    assert measure(steps, repeats=3, deadline=0.5)["slow"].status.startswith("left out") and clock == [2.0]


def check(minutes, home, *parts):
    return gpu_check.check(minutes, home, list(parts), dict(os.environ), "some-cpu")


TESTS = """
def test_one(record_property): record_property('measured', 'err 1e-3')
def test_other(): assert 0
"""


def test_gpu_check_packs_report_benchmarks_and_unfinished_checkpoints(tmp_path):
    home = tmp_path / "runs" / gpu_check.STUDY
    bench_record.save(made([row("naive", 64, 1.0)]), home)
    done_dir, live_dir = add(home).parent, home / "begun"
    live_dir.mkdir()
    for file in (done_dir / "last.ckpt", done_dir / "best.ckpt", live_dir / "last.ckpt"):
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
    files = {file.relative_to(home) for file in (live_dir / "last.ckpt", done_dir / record.NAME, home / "some-cpu.md")}
    assert files <= names and {"bench.json", "tests.log", "tests.done"} <= {name.name for name in names}
    assert [name for name in names if name.suffix == ".ckpt"] == [Path("begun/last.ckpt")]


def test_gpu_check_saves_results_of_stopped_part_and_resumes_elsewhere(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_check, "OVERHEAD", 0)
    local_home = tmp_path / gpu_check.STUDY
    script = "import time, pathlib; print('begun', flush=True); pathlib.Path({!r}).write_text({!r}); time.sleep({})"
    command = lambda name, text, seconds: [sys.executable, "-c", script.format(str(local_home / name), text, seconds)]
    slow_part = lambda seconds: CheckPart("slow", command("b.json", "half", seconds), 0.2)
    path = check(0.3, local_home, CheckPart("quick", command("a.json", "{seconds}", 0), 0.5), slow_part(100))
    log = capfd.readouterr().err
    assert "gpu-check: quick, exit status 0" in log and "gpu-check: slow, stopped after 4 s" in log
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    moved_home = tmp_path / "elsewhere" / gpu_check.STUDY
    assert (moved_home / "a.json").read_text() == "9" and (moved_home / "b.json").read_text() == "half"
    assert sorted(path.name for path in (moved_home / "parts").iterdir()) == ["quick.done", "quick.log", "slow.log"]
    assert (moved_home / "parts" / "slow.log").read_text().startswith("begun\n")
    check(0.3, moved_home, CheckPart("quick", ["no such program"], 0.5), slow_part(0))
    assert capfd.readouterr().err == "gpu-check: slow, exit status 0\n"
    # On another GPU with nothing left to do, there is still a page with its name.
    gpu_check.check(0.3, moved_home, [], {}, "other-gpu")
    assert "exit status: {'quick': 0, 'slow': 0}" in (moved_home / "other-gpu.md").read_text()
    assert "test_triton_gpu.py" in {path.name for path in gpu_check.gpu_test_files()}


STOPS = {
    "lra: gpu-check was stopped; the same command resumes": KeyboardInterrupt(),
    "lra: a.tar cannot be written: disk full; the same command resumes": OSError(28, "disk full", "a.tar"),
}


@pytest.mark.parametrize("message", STOPS)
def test_gpu_check_needs_gpu_and_names_command_that_resumes(call, monkeypatch, tmp_path, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(gpu_check.main, "minutes=25")[2] == "gpu-check: torch sees no GPU, nothing was run\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(gpu_check.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(gpu_check, "check", Mock(side_effect=STOPS[message]))
    assert call(gpu_check.main, "minutes=25")[0] == message


def comparison_row(build, remark=""):
    return peers.row(peers.PeerComparison(name="doubling", peer="package", build=build, remark=remark), 64, 2, 3)


@pytest.mark.parametrize(
    "factor, remark, verdict", [(1.0, "", "yes, 0e+00"), (1.001, "", "no, 1e-03"), (3.0, "weights", "no, weights")]
)
def test_peer_row_has_ratios_and_same_function_verdict(factor, remark, verdict):
    def build(n, batch, dtype):
        x = torch.arange(1.0, n * batch + 1).to(dtype).requires_grad_()
        return PeerPair(mechanism=lambda: 2 * x, reference=lambda: 2 * factor * x, inputs=[x], modules=[])

    name, peer, mechanism_ms, peer_ms, time, memory, same_function = comparison_row(build, remark)
    assert (name, peer, same_function) == ("`doubling`", "package", verdict)
    assert float(time) > 0 and float(memory) > 0 and mechanism_ms.endswith("%)") and peer_ms.endswith("%)")


def test_peer_row_reports_missing_package_or_failure():
    def build(n, batch, dtype):
        forward = Mock(side_effect=RuntimeError("no room")) if n == 64 else lambda: torch.ones(3)
        return PeerPair(mechanism=forward, reference=forward, inputs=[], modules=[])

    for error, reason in ((ImportError(), "not installed"), (ValueError("too short"), "too short")):
        assert comparison_row(Mock(side_effect=error)) == ["`doubling`", "package", "-", "-", "-", "-", reason]
    assert "no room" in comparison_row(build)[-1]


def test_unknown_peer_override_is_rejected():
    assert peers.parse_overrides(["n=16", "repeats=2"]) == {"n": 16, "batch": 8, "repeats": 2}
    with pytest.raises(ValueError, match=r"unknown override n=0; use python -m lra\.bench\.recurrences n=4096"):
        peers.parse_overrides(["n=0"], "lra.bench.recurrences")


def test_recurrence_errors_are_rounding_and_times_are_complete():
    """Strong decays overflow in the factored form only, the last column; each operator has a time per direction."""
    torch.manual_seed(0)
    head, *rows = recurrences.decay_errors(128)
    assert [row[0] for row in rows] == list(recurrences.DECAYS) and {len(row) for row in rows} == {len(head)}
    errors = [[float(cell) for cell in row[1:]] for row in rows]
    assert [math.isnan(row[-1]) for row in errors] == [False, False, True, True]
    # A cumulative sum G of log decays is rounded to 2^-24 |G|; over 64 steps of logsigmoid(50 x), |G| is about 1,300.
    assert all(error < 64 * 20 * 2**-24 for row in errors for error in row[:4])
    for table in (recurrences.delta_rule_errors(128), recurrences.scan_errors(128)):
        assert all(0 < float(cell) < 1e-4 for row in list(table)[1:] for cell in row[1:])
    (_, *times) = recurrences.times(64, 1, 2)
    assert times[0][-1] == "1.00" and len(times) == 7 and all(float(cell) > 0 for row in times for cell in row[3:])


@pytest.mark.peers
@pytest.mark.parametrize("compared", peers.COMPARISONS, ids=lambda compared: f"{compared.name}-{compared.peer}")
def test_mechanism_matches_peer_unless_remark_explains_difference(compared):
    try:
        relative = peers.difference(compared)
    except ImportError:
        pytest.skip(f"{compared.peer} is not installed: make bench-peers")
    assert (relative < peers.SAME) == (not compared.remark)
