"""Memory by hand, order of the rounds, out of memory as a status."""

import torch

from lra.measure import measure, peak_bytes

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


def test_rounds_are_interleaved_and_out_of_memory_is_a_row():
    calls = []

    def full():
        raise torch.OutOfMemoryError

    got = measure({"a": lambda: calls.append("a"), "full": full, "b": lambda: calls.append("b")}, repeats=3, warmup=0)
    assert calls == ["a", "b"] + ["a", "b"] * 3
    assert got["full"].status == "out of memory" and got["full"].ms is None
    assert got["a"].status == "ok" and got["a"].n == 3 and got["a"].ms_min <= got["a"].ms <= got["a"].ms_max
