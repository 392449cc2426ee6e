"""The comparison with public implementations, with stand-ins for the peers."""

import pytest
import torch

from lra.bench import peers
from lra.bench.peer_pairs import PeerPair


def comparison(factor=1.0, remark=""):
    def build(n, batch, dtype):
        x = torch.arange(1.0, n * batch + 1).to(dtype).requires_grad_()
        return PeerPair(mechanism=lambda: 2 * x, reference=lambda: 2 * factor * x, inputs=[x], modules=[])

    return peers.PeerComparison(name="doubling", peer="package", build=build, remark=remark)


@pytest.mark.parametrize(
    ("factor", "remark", "verdict"),
    [(1.0, "", "yes, 0e+00"), (1.001, "", "no, 1e-03"), (3.0, "other weights", "no, other weights")],
)
def test_a_row_has_ratios_and_whether_the_function_is_the_same(factor, remark, verdict):
    name, peer, ours, theirs, time, memory, same = peers.row(comparison(factor, remark), 64, 2, 3)
    assert (name, peer, same) == ("`doubling`", "package", verdict)
    assert float(time) > 0 and float(memory) > 0 and ours.endswith("%)") and theirs.endswith("%)")


def test_a_peer_that_is_not_installed_is_skipped():
    def build(n, batch, dtype):
        import no_such_package

        return no_such_package

    absent = peers.PeerComparison(name="linear", peer="no-such-package", build=build)
    assert peers.row(absent, 64, 2, 3) == ["`linear`", "no-such-package", "-", "-", "-", "-", "not installed"]


def test_a_peer_that_fails_leaves_its_reason():
    def build(n, batch, dtype):
        def forward():
            if n == 64:
                raise RuntimeError("no room")
            return torch.ones(3)

        return PeerPair(mechanism=forward, reference=forward, inputs=[], modules=[])

    assert "no room" in peers.row(peers.PeerComparison(name="x", peer="y", build=build), 64, 2, 3)[-1]


@pytest.mark.parametrize("word", ["n=0", "repeats=x", "m=3", "n"])
def test_wrong_overrides_are_named(word):
    assert peers.arguments(["n=16", "repeats=2"]) == {"n": 16, "batch": 8, "repeats": 2}
    with pytest.raises(ValueError, match=f"unknown override {word}"):
        peers.arguments([word])


@pytest.mark.peers
@pytest.mark.parametrize("compared", peers.COMPARISONS, ids=lambda compared: f"{compared.name}-{compared.peer}")
def test_functions_are_the_same_unless_a_remark_says_why(compared):
    try:
        relative = peers.difference(compared)
    except ImportError:
        pytest.skip(f"{compared.peer} is not installed: make bench-peers")
    assert (relative < peers.SAME) == (not compared.remark)
