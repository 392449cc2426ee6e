"""Chord factors without parameters: products and gradients against dense matrices, errors against NumPy's SVD."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from conftest import printed

from lra.reference.psf import sparse_factor
from lra.studies.factorise import chord
from lra.studies.factorise.__main__ import Result, factorise, summary
from lra.studies.factorise.matrices import KINDS


@pytest.mark.parametrize("n", [10, 13, 16, 30])
@pytest.mark.parametrize("init", ["code", "paper"])
def test_product_and_gradient_are_those_of_dense_matrices(n, init):
    w = chord.start(n, seed=n, init=init).requires_grad_()
    x = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.linalg.multi_dot([sparse_factor(factor) for factor in w])
    torch.testing.assert_close(chord.product(w.detach()), expected.detach(), rtol=1e-12, atol=1e-14)
    loss = (x - expected).square().sum() / 2
    loss.backward()
    found, gradient = chord.loss_and_gradient(w.detach().numpy(), x.numpy())
    assert found == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, w.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [5, 16, 63, 64, 65, 130])
def test_compiled_loops_are_the_same_function(n):
    """Also where the last strip of columns is narrower than the others; errors of both grow with the terms added."""
    w = chord.start(n, seed=n) + 0.1 * torch.randn(1, n, 1, dtype=torch.float64, generator=torch.manual_seed(n))
    x = torch.randn(n, n, dtype=torch.float64)
    expected, gradient = chord.loss_and_gradient(w.numpy(), x.numpy())
    loss, found = chord.compiled(w.numpy(), x.numpy(), np.array(chord.offsets(n)))
    eps = np.finfo(np.float64).eps
    assert loss == pytest.approx(expected, rel=n * n * eps)
    np.testing.assert_allclose(found, gradient, rtol=0, atol=n * eps * np.abs(gradient).max())
    one, two = (chord.fit(x.numpy(), iterations=3, impl=impl)[0] for impl in ("compiled", "torch"))
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_start_values_numbers_and_ranks():
    assert (chord.start(64, seed=1, init="paper") >= 1 / 7).all()
    noise = chord.start(64, seed=1) - 1 / 7
    assert (noise > 0).all() and noise.sum(-1).max() < 0.01
    assert (chord.factors(256), len(chord.offsets(256)), chord.offsets(256)[-1]) == (8, 9, 128)
    assert chord.numbers(256) == 18432 and chord.ranks(256) == {"paper": 32, "equal": 35}


def test_a_product_of_chord_factors_is_found_again():
    true = chord.start(16, seed=3) + 0.2 * torch.randn(4, 16, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    x = chord.product(true).numpy()
    factors, fell, _ = chord.fit(x, iterations=1500)
    error = np.linalg.norm(x - chord.product(torch.from_numpy(factors)).numpy())
    assert error < 1e-3 * np.linalg.norm(x) and 0 < len(fell) <= 1500
    assert fell[-1] == pytest.approx(error, rel=1e-6) and (np.diff(fell) <= 0).all()


def test_truncated_svd_is_the_best_of_its_rank():
    x = np.random.default_rng(0).normal(size=(20, 20))
    tail = np.linalg.svd(x, compute_uv=False)[5:]
    assert np.linalg.norm(x - chord.truncated(x, 5)) == pytest.approx(np.sqrt((tail**2).sum()))


def test_the_command(tmp_path, monkeypatch, capfd):
    command = partial(printed, factorise, f"runs={tmp_path}", patch=monkeypatch, capfd=capfd)
    few = ("kinds=[network]", "iterations=3")
    _, out, err = command(*few)
    assert err.count("network ") == 6 and "karate_club" in out
    home = tmp_path / "factorise"
    table = (home / "factorise.md").read_text()
    assert table.count("| network |") == 7 and "of 6 |" in table and (home / "network.png").stat().st_size > 10_000
    assert command(*few)[2] == "" and (home / "factorise.md").read_text() == table
    assert "kinds must be one of all, image, gradient" in command("kinds=[photo]")[0]
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert "kinds=network needs networkx: pip install" in command("kinds=[network]")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_square_and_finite(kind):
    if kind in ("image", "gradient", "covariance"):
        pytest.importorskip("skimage", reason="pip install '.[factorise]'")
    if kind in ("dense_graph", "covariance"):
        pytest.importorskip("sklearn", reason="pip install '.[factorise]'")
    names = []
    for name, x in KINDS[kind]():
        assert x.ndim == 2 and x.shape[0] == x.shape[1] and np.isfinite(x).all() and np.ptp(x) > 0
        assert kind in ("image", "gradient") or np.allclose(x, x.T)
        names.append(name)
    assert len(set(names)) == len(names) > 2


def test_the_summary_counts_by_kind_and_rank():
    def made(kind, sparse, paper, equal):
        result = Result(kind=kind, name="x", matrix=np.ones((8, 8)), factors=None, fell=np.array([4.0, 3.0]))
        vars(result).update(errors={"SF": sparse, "paper": paper, "equal": equal})
        return result

    results = [made("mesh", 1.0, 2.0, 0.5), made("mesh", 3.0, 2.0, 1.0), made("mesh", 1.0, 4.0, 2.0)]
    results.append(made("image", 1.0, 1.0, 2.0))
    assert summary(results) == [
        ["mesh", "3", "2 of 3", "0.5 (0.25 to 1.5)", "1 of 3", "2 (0.5 to 3)"],
        ["image", "1", "0 of 1", "1 (1 to 1)", "1 of 1", "0.5 (0.5 to 0.5)"],
    ]
    assert summary([]) == [] and results[0].cells()[-2:] == ("2", "3")
