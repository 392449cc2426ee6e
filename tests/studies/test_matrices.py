"""Studies of matrices: Chord factorisation and iterative inverses, compared with dense and closed forms."""

import itertools
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import config

from lra.attention.base import Sizes
from lra.attention.nystrom import Nystrom
from lra.attention.soft import Soft
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.evaluate.restore import restore_experiment
from lra.ops.pinv import newton
from lra.reference.psf import sparse_factor
from lra.runs.reader import finished
from lra.studies.factorise import chord
from lra.studies.factorise.__main__ import Result, factorise, summary
from lra.studies.factorise.matrices import KINDS
from lra.studies.inverses import matrices, measure
from lra.studies.inverses.__main__ import inverses
from lra.studies.inverses.matrices import InversesOptions
from lra.train.__main__ import train


@pytest.mark.parametrize("n", [5, 10, 13, 16, 30, 63, 64, 65, 130])
@pytest.mark.parametrize("init", ["code", "paper"])
def test_chord_product_loss_and_gradient_match_dense_matrices(n, init):
    """Includes sizes whose last strip of columns is narrower. Rounding errors grow with the number of terms."""
    noise, x = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    w = (chord.init_factors(n, seed=n, init=init) + 0.1 * noise[None, :, :1]).requires_grad_()
    expected = torch.linalg.multi_dot([sparse_factor(factor) for factor in w])
    torch.testing.assert_close(chord.product(w.detach()), expected.detach(), rtol=1e-12, atol=1e-14)
    loss = (x - expected).square().sum() / 2
    loss.backward()
    eps, arguments = np.finfo(np.float64).eps, (w.detach().numpy(), x.numpy())
    for result in (chord.loss_and_gradient(*arguments), chord.compiled(*arguments, np.array(chord.offsets(n)))):
        assert result[0] == pytest.approx(loss.item(), rel=n * n * eps)
        np.testing.assert_allclose(result[1], w.grad, rtol=0, atol=n * eps * w.grad.abs().max().item())
    numba_w, torch_w = (chord.fit(x.numpy(), iterations=3, impl=impl)[0] for impl in ("compiled", "torch"))
    np.testing.assert_allclose(numba_w, torch_w, rtol=1e-9, atol=1e-9)


def test_chord_initial_values_parameter_counts_and_ranks():
    assert (chord.init_factors(64, seed=1, init="paper") >= 1 / 7).all()
    noise = chord.init_factors(64, seed=1) - 1 / 7
    assert (noise > 0).all() and noise.sum(-1).max() < 0.01
    assert (chord.num_factors(256), len(chord.offsets(256)), chord.offsets(256)[-1]) == (8, 9, 128)
    assert chord.num_parameters(256) == 18432 and chord.ranks(256) == {"paper": 32, "equal": 35}


def test_chord_fit_recovers_product_of_chord_factors():
    noise = torch.randn(4, 16, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    x = chord.product(chord.init_factors(16, seed=3) + 0.2 * noise).numpy()
    factors, losses, _ = chord.fit(x, iterations=1500)
    error = np.linalg.norm(x - chord.product(torch.from_numpy(factors)).numpy())
    assert error < 1e-3 * np.linalg.norm(x) and 0 < len(losses) <= 1500
    assert losses[-1] == pytest.approx(error, rel=1e-6) and (np.diff(losses) <= 0).all()


def test_truncated_svd_error_is_norm_of_discarded_singular_values():
    x = np.random.default_rng(0).normal(size=(20, 20))
    tail = np.linalg.svd(x, compute_uv=False)[5:]
    assert np.linalg.norm(x - chord.truncated_svd(x, 5)) == pytest.approx(np.sqrt((tail**2).sum()))


def test_factorise_command_caches_results_and_writes_summary(tmp_path, monkeypatch, call):
    command = ("kinds=[network]", "iterations=3", f"runs={tmp_path}")
    _, out, err = call(factorise, *command)
    assert err.count("network ") == 6 and "karate_club" in out
    out_dir = tmp_path / "factorise"
    table = (out_dir / "factorise.md").read_text()
    assert table.count("| network |") == 7 and "of 6 |" in table and (out_dir / "network.png").stat().st_size > 10_000
    assert call(factorise, *command)[2] == "" and (out_dir / "factorise.md").read_text() == table
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert "kinds=network needs networkx: pip install" in call(factorise, "kinds=[network]", f"runs={tmp_path}")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_study_matrices_are_square_and_finite(kind):
    if kind in ("image", "gradient", "covariance"):
        pytest.importorskip("skimage", reason="pip install -e '.[factorise]'")
    if kind in ("dense_graph", "covariance"):
        pytest.importorskip("sklearn", reason="pip install -e '.[factorise]'")
    names = []
    for name, x in KINDS[kind]():
        assert x.ndim == 2 and x.shape[0] == x.shape[1] and np.isfinite(x).all() and np.ptp(x) > 0
        assert kind in ("image", "gradient") or np.allclose(x, x.T)
        names.append(name)
    assert len(set(names)) == len(names) > 2


def result(kind, sparse, paper, equal, iterations=2):
    """A result with given errors of its approximations, whose error during the fit falls from 9 by 1 per iteration."""
    error_curve = np.arange(9.0, 9.0 - iterations, -1.0)
    result = Result(kind=kind, name="x", matrix=np.ones((8, 8)), factors=None, error_curve=error_curve)
    vars(result).update(errors={"SF": sparse, "paper": paper, "equal": equal})
    return result


def test_factorise_summary_counts_wins_per_kind_and_rank():
    results = [result("mesh", 1.0, 2.0, 0.5), result("mesh", 3.0, 2.0, 1.0), result("mesh", 1.0, 4.0, 2.0)]
    results.append(result("image", 1.0, 1.0, 2.0))
    assert summary(results) == [
        ["mesh", "3", "2 of 3", "0.5 (0.25 to 1.5)", "1 of 3", "2 (0.5 to 3)"],
        ["image", "1", "0 of 1", "1 (1 to 1)", "1 of 1", "0.5 (0.5 to 0.5)"],
    ]
    assert summary([]) == []


@pytest.mark.parametrize("iterations, half_way", [(0, ""), (1, "9"), (2, "9"), (3, "8"), (4, "8"), (10, "5")])
def test_error_half_way_is_after_half_of_iterations(iterations, half_way):
    assert result("mesh", 1.0, 1.0, 1.0, iterations).cells()[-2:] == (str(iterations), half_way)


SIZES = Sizes(heads=2, head_dim=8, value_dim=8, length=24)
ARGUMENTS = dict(zip("qkv", torch.randn(3, 1, 2, 24, 8, generator=torch.Generator().manual_seed(0)), strict=True))


def layer(inner, symmetric=True):
    about = {"place": "here", "mechanism": "soft", "weights": "random", "at": 1, "steps": None, "norms": {"map": [3.0]}}
    return measure.InvertedLayer(symmetric=symmetric, inverted=inner, **about)


def test_residuals_are_relative_penrose_conditions():
    a, x = torch.diag(torch.tensor([2.0, 2.0])), torch.diag(torch.tensor([0.25, 0.25]))
    assert measure.residuals(a, x) == pytest.approx({"AXA": 0.5, "XAX": 0.5})
    a = torch.randn(6, 3).double() @ torch.randn(3, 6).double()
    assert max(measure.residuals(a, torch.linalg.pinv(a)).values()) < 1e-12
    assert min(measure.residuals(a, torch.linalg.pinv(a) + torch.eye(6)).values()) > 1e-3


def test_newton_errors_on_identity_match_closed_form():
    """With X = I + 0.01 I and alpha = 1.8, k Newton steps give (1 - (1 - 1.8 1.01²)^(2^k)) / 1.01 I."""
    errors = measure.errors([layer([torch.eye(4), torch.eye(4)])], [0, 1, 3, 9], torch.float64)
    actual = [e for e in errors.itertuples() if "ridge" in e.iteration]
    for e in actual:
        # For A = I, both residuals are |factor - 1|.
        factor = (1 - (1 - 1.8 * 1.01**2) ** (2**e.steps)) / 1.01
        assert e.median == pytest.approx(abs(factor - 1), rel=1e-6) and e.n == 2
    assert len(actual) == 8 and {e.measure for e in actual} == {"AXA", "XAX"}


def test_inverse_iterations_converge_up_to_their_ridge():
    kernel = matrices.record_inversion(Soft(SIZES, count=6), ARGUMENTS)[0][0]
    rows = torch.softmax(torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1)), -1)
    for inner, symmetric, names in ((kernel, True, measure.SYMMETRIC), (rows, False, measure.OTHER)):
        actual = list(measure.errors([layer(list(inner), symmetric)], [0, 60], torch.float64).itertuples())
        final_errors = {e.iteration: e.high for e in actual if e.steps == 60 and e.measure == "AXA"}
        assert set(final_errors) == set(names)
        assert all(error < 1e-8 for name, error in final_errors.items() if "ridge" not in name)
        assert all(1e-4 < error < 0.1 for name, error in final_errors.items() if "ridge" in name)


def test_soft_layer_measurement_matches_definition():
    attention = Soft(SIZES, count=6)
    q = ARGUMENTS["q"] / 8**0.25
    landmarks = q.unflatten(2, (6, 4)).mean(3)
    a = torch.exp(-torch.cdist(landmarks, landmarks).square() / 2)
    p = torch.exp(-torch.cdist(landmarks, q).square() / 2)
    d = torch.diag_embed(a.sum(-1).rsqrt())
    inverse = {"SOFT": newton(a, steps=20, ridge=0.01), "SOFT++": newton(a, steps=20, init="softpp")}
    inverse["SOFT++"] = d @ inverse["SOFT++"] @ d
    entry = matrices.measure_layer(attention, [ARGUMENTS], place="x", mechanism="soft", weights="random", at=6)
    torch.testing.assert_close(torch.stack(entry.inverted), a[0])
    for name, x in inverse.items():
        for quantity, matrix in (("inverse in use", x), ("map", p.mT @ x @ p)):
            expected_norms = torch.linalg.svdvals(matrix)[0, :, 0].tolist()
            assert entry.norms[f"{name} {quantity}"] == pytest.approx(expected_norms, rel=1e-3), (name, quantity)
    singular = torch.linalg.svdvals(a.double())[0]
    assert entry.norms["exact inverse of A"] == pytest.approx((1 / singular[:, -1]).tolist(), rel=1e-4)
    assert entry.norms["A, the inverted matrix"] == pytest.approx(singular[:, 0].tolist(), rel=1e-5)
    assert entry.steps == 20 and entry.symmetric and not attention.normalise


def test_measuring_does_not_change_mechanism():
    attention = Nystrom(SIZES, landmarks=6, kernel=3)
    output, pinv = attention(**ARGUMENTS), attention.pinv
    a, x, full_map = matrices.record_inversion(matrices.variants(attention)[""], ARGUMENTS)
    torch.testing.assert_close(full_map @ ARGUMENTS["v"], output)
    torch.testing.assert_close(pinv(a), x)
    assert attention.pinv is pinv and torch.equal(attention(**ARGUMENTS), output)


def test_without_padding_truncates_to_longest_sequence():
    inputs, mask = torch.arange(12).reshape(1, 2, 6), torch.zeros(1, 2, 6, dtype=torch.bool)
    mask[0, 0, :4], mask[0, 1, :2] = True, True
    batch = matrices.without_padding(Batch(inputs, mask, None))
    assert batch.inputs.tolist() == [[[0, 1, 2, 3], [6, 7, 8, 9]]] and batch.mask.tolist() == mask[..., :4].tolist()
    assert matrices.without_padding(Batch(inputs[:, :1], mask[:, :1], None)).mask is None


def test_measure_summary_treats_nan_as_infinity():
    rows = [{"at": "a", "value": value} for value in (1.0, 2.0, 3.0, 100.0)]
    rows += [{"at": "b", "value": value} for value in (1.0, math.nan, 2.0)]
    assert measure.summary(rows).to_numpy().tolist() == [["a", 2.5, 1.0, 100.0, 4], ["b", 2.0, 1.0, math.inf, 3]]


def test_inverses_command_on_random_tokens_writes_figures_and_tables(tmp_path):
    overrides = ["n=2", "steps=[0,2]", "counts=[4,6]", "kinds=gaussian", "heads=1", "head_dim=8", "length=24"]
    inverses.__wrapped__(compose(InversesOptions, [*overrides, "threads=1", f"runs={tmp_path}"]))
    out_dir = tmp_path / "inverses/random"
    norms = pd.read_csv(out_dir / "norms.csv")
    assert set(norms.mechanism) == {"soft", "nystrom", "cur_abs"} and set(norms.n) == {2} and set(norms["at"]) == {4, 6}
    assert len(pd.read_csv(out_dir / "convergence.csv")) == 8 * (len(measure.SYMMETRIC) + 2 * len(measure.OTHER))
    assert all((out_dir / f"{name}.png").stat().st_size > 10_000 for name in ("convergence", "norms"))


def test_run_is_measured_at_initial_best_and_last_weights(data_root, tmp_path, call):
    """The learning rate is so small that all weights equal the initial ones, which the study draws again."""
    train.__wrapped__(config("soft", f"runs={tmp_path}", "seeds=[3]", "optim.lr=1e-12", "optim.eval_every=3"))
    (run,) = finished(tmp_path / "paper-smoke/listops/soft")
    assert run.record.best_step == 3 and run.record.steps == 6
    layers = list(matrices.run_layers(run, compose(InversesOptions, ["n=2"])))
    expected = itertools.product((("initial", 0), ("best", 3), ("last", 6)), ("layer 0", "layer 1"))
    assert [((layer.weights, layer.at), layer.place) for layer in layers] == list(expected)
    for layer in layers[2:]:
        torch.testing.assert_close(layer.inverted, layers[layer.place == "layer 1"].inverted, rtol=1e-4, atol=1e-4)
    stop, _, log = call(inverses, "n=1", "steps=[0,1]", "threads=1", f"runs={tmp_path}", f"run={run.path}")
    assert stop is None and "weights: initial at step 0, best at step 3, last at step 6" in log
    out_dir = tmp_path / "inverses/paper-smoke/listops/soft/seed-3"
    assert set(pd.read_csv(out_dir / "convergence.csv").weights) == {"best"}
    (run.path / "last.ckpt").unlink()
    weights = [name for name, *_ in matrices.checkpoints(run, restore_experiment(run, str(data_root)), None)]
    assert weights == ["initial", "best"]
