"""Memory by hand, order of the rounds, out of memory as a status."""

import time

import pytest
import torch

from lra.bench.measure import measure, peak_bytes

MB = 2**20


def test_peak_is_what_is_alive_at_once():
    def step():
        a = torch.empty(MB, dtype=torch.uint8)
        b = a + 1
        del a
        c = b + 1  # never more than two alive
        return c.view(-1)[:5]

    assert peak_bytes(step) == 2 * MB


def test_peak_counts_what_the_backward_pass_keeps():
    x = torch.zeros(MB // 4, requires_grad=True)
    # exp keeps its output; the sum's gradient is expanded, not copied; one gradient of x
    assert 2 * MB <= peak_bytes(lambda: x.exp().sum().backward()) <= 3 * MB + 64


def test_views_and_in_place_results_are_not_counted_again():
    x = torch.zeros(MB, dtype=torch.uint8)
    assert peak_bytes(lambda: x.view(2, -1).add_(1).t()) == 0


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
