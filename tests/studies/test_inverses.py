"""Iterative inverses: errors and norms against closed forms, matrices against their definition, sets of weights."""

import csv
import math

import pytest
import torch
from conftest import config
from conftest import run as entry

from lra.attention.base import Sizes
from lra.attention.nystrom import Nystrom
from lra.attention.soft import Soft
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.evaluate.restore import configuration
from lra.ops.pinv import newton
from lra.runs.reader import finished
from lra.studies.figures import panels, save
from lra.studies.inverses import matrices, measure
from lra.studies.inverses.__main__ import inverses
from lra.studies.inverses.matrices import InversesOptions
from lra.train.__main__ import train

SIZES = Sizes(heads=2, head_dim=8, value_dim=8, length=24)


def call():
    q, k, v = torch.randn(3, 1, 2, 24, 8, generator=torch.Generator().manual_seed(0))
    return {"q": q, "k": k, "v": v}


def layer(inner, symmetric=True):
    about = {"place": "here", "mechanism": "soft", "weights": "random", "at": 1, "steps": None, "norms": {"map": [3.0]}}
    return measure.InvertedLayer(symmetric=symmetric, inner=inner, **about)


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_residuals_are_those_of_penrose():
    a, x = torch.diag(torch.tensor([2.0, 2.0])), torch.diag(torch.tensor([0.25, 0.25]))
    assert measure.residuals(a, x) == pytest.approx({"AXA": 0.5, "XAX": 0.5})
    a = torch.randn(6, 3).double() @ torch.randn(3, 6).double()
    assert max(measure.residuals(a, torch.linalg.pinv(a)).values()) < 1e-12
    assert min(measure.residuals(a, torch.linalg.pinv(a) + torch.eye(6)).values()) > 1e-3


def test_newton_s_error_on_the_identity_squares_with_every_step():
    """With X = 1.01 I and alpha = 1.8 the inverse after k steps is (1 - (1 - 1.8 1.01²)^(2^k)) / 1.01 I."""
    inner = [torch.eye(4), torch.eye(4)]
    errors = measure.errors([layer(inner)], [0, 1, 3, 9], torch.float64)
    found = [e for e in errors.itertuples() if "ridge" in e.iteration]
    for e in found:
        factor = (1 - (1 - 1.8 * 1.01**2) ** (2**e.steps)) / 1.01
        assert e.median == pytest.approx(abs(factor - 1), rel=1e-6) and e.n == 2  # both equations, since A = I
    assert len(found) == 8 and {e.measure for e in found} == {"AXA", "XAX"}


def test_iterations_fit_the_matrices_and_reach_what_the_precision_allows():
    kernel = matrices.inverted(Soft(SIZES, count=6), call())[0][0]
    rows = torch.softmax(torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1)), -1)
    for inner, symmetric, names in ((kernel, True, measure.SYMMETRIC), (rows, False, measure.OTHER)):
        found = list(measure.errors([layer(list(inner), symmetric)], [0, 60], torch.float64).itertuples())
        last = {e.iteration: e.high for e in found if e.steps == 60 and e.measure == "AXA"}
        assert set(last) == set(names)
        assert all(error < 1e-8 for name, error in last.items() if "ridge" not in name)
        assert all(1e-4 < error < 0.1 for name, error in last.items() if "ridge" in name)


def test_what_soft_inverts_and_multiplies_is_its_definition():
    attention, arguments = Soft(SIZES, count=6), call()
    q = arguments["q"] / 8**0.25
    marks = q.unflatten(2, (6, 4)).mean(3)
    a = torch.exp(-torch.cdist(marks, marks).square() / 2)
    p = torch.exp(-torch.cdist(marks, q).square() / 2)
    d = torch.diag_embed(a.sum(-1).rsqrt())
    inverse = {"SOFT": newton(a, steps=20, ridge=0.01), "SOFT++": newton(a, steps=20, init="softpp")}
    inverse["SOFT++"] = d @ inverse["SOFT++"] @ d
    made = matrices.layer(attention, [arguments], place="x", mechanism="soft", weights="random", at=6)
    torch.testing.assert_close(torch.stack(made.inner), a[0])
    for name, x in inverse.items():
        for what, matrix in (("inverse in use", x), ("map", p.mT @ x @ p)):
            want = torch.linalg.svdvals(matrix)[0, :, 0].tolist()
            assert made.norms[f"{name} {what}"] == pytest.approx(want, rel=1e-3), (name, what)
    singular = torch.linalg.svdvals(a.double())[0]
    assert made.norms["exact inverse of A"] == pytest.approx((1 / singular[:, -1]).tolist(), rel=1e-4)
    assert made.norms["A, the inverted matrix"] == pytest.approx(singular[:, 0].tolist(), rel=1e-5)
    assert made.steps == 20 and made.symmetric and not attention.normalise


def test_a_mechanism_is_the_same_after_it_was_measured():
    attention, arguments = Nystrom(SIZES, landmarks=6, kernel=3), call()
    before, pinv = attention(**arguments), attention.pinv
    a, x, whole = matrices.inverted(matrices.variants(attention)[""], arguments)
    torch.testing.assert_close(whole @ arguments["v"], before)
    torch.testing.assert_close(pinv(a), x)
    assert attention.pinv is pinv and torch.equal(attention(**arguments), before)


def test_padding_is_cut_off():
    inputs, mask = torch.arange(12).reshape(1, 2, 6), torch.zeros(1, 2, 6, dtype=torch.bool)
    mask[0, 0, :4], mask[0, 1, :2] = True, True
    cut = matrices.without_padding(Batch(inputs, mask, None))
    assert cut.inputs.tolist() == [[[0, 1, 2, 3], [6, 7, 8, 9]]] and cut.mask.tolist() == mask[..., :4].tolist()
    assert matrices.without_padding(Batch(inputs[:, :1], mask[:, :1], None)).mask is None


def test_a_median_is_between_two_and_counts_what_is_not_finite():
    rows = [{"at": "a", "value": value} for value in (1.0, 2.0, 3.0, 100.0)]
    rows += [{"at": "b", "value": value} for value in (1.0, math.nan, 2.0)]
    assert measure.summary(rows).to_numpy().tolist() == [["a", 2.5, 1.0, 100.0, 4], ["b", 2.0, 1.0, math.inf, 3]]


def test_random_tokens_end_in_pictures_and_tables(tmp_path):
    words = ["n=2", "steps=[0,2]", "counts=[4,6]", "kinds=gaussian", "heads=1", "head_dim=8", "length=24"]
    inverses.__wrapped__(compose(InversesOptions, [*words, "threads=1", f"runs={tmp_path}"]))
    home = tmp_path / "inverses/random"
    norms = table(home / "norms.csv")
    assert {row["mechanism"] for row in norms} == {"soft", "nystrom", "cur_abs"}
    assert {row["n"] for row in norms} == {"2"} and {row["at"] for row in norms} == {"4", "6"}
    assert len(table(home / "convergence.csv")) == 2 * 2 * 2 * (len(measure.SYMMETRIC) + 2 * len(measure.OTHER))
    assert all((home / f"{name}.png").stat().st_size > 10_000 for name in ("convergence", "norms"))


def test_a_run_is_measured_at_its_initial_best_and_last_weights(data_root, tmp_path, monkeypatch, capfd):
    """The rate is so small that all of them are the initial ones, which the study draws again."""
    runs = tmp_path / "runs"
    train.__wrapped__(config("soft", f"runs={runs}", "seeds=[3]", "optim.lr=1e-12", "optim.eval_every=3"))
    (run,) = finished(runs / "paper-smoke/listops/soft")
    assert run.record.best_step == 3 and run.record.steps == 6
    found = list(matrices.of_run(run, compose(InversesOptions, ["n=2"])))
    assert [(made.place, made.weights, made.at) for made in found] == [
        (place, *weights) for weights in (("initial", 0), ("best", 3), ("last", 6)) for place in ("layer 0", "layer 1")
    ]
    for made in found[2:]:
        same = found[int(made.place == "layer 1")]
        torch.testing.assert_close(made.inner, same.inner, rtol=1e-4, atol=1e-4)
    words = ["n=1", "steps=[0,1]", "threads=1", f"runs={runs}"]
    stop, said = entry(inverses, *words, f"run={run.path}", patch=monkeypatch, capfd=capfd)
    assert stop is None and "weights: initial at step 0, best at step 3, last at step 6" in said
    home = runs / "inverses/paper-smoke/listops/soft/seed-3"
    assert {row["weights"] for row in table(home / "convergence.csv")} == {"best"}
    (run.path / "last.ckpt").unlink()
    weights = [name for name, *_ in matrices.checkpoints(run, configuration(run, str(data_root)), None)]
    assert weights == ["initial", "best"]


def test_a_figure_has_its_panels_one_legend_and_texts_as_they_are(tmp_path):
    figure, grid = panels(4, width=3, height=2)
    assert figure.axes == grid and len(grid) == 4
    for axes in grid:
        axes.plot([1, 10], [1, 1000], label="$x$ and $y$")
        axes.set_yscale("log")
    path = save(figure, tmp_path / "a" / "count=0.5.png", "$1$", loc="outside lower center")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    ((text,),) = (legend.get_texts() for legend in figure.legends)
    assert not text.get_parse_math() and all(label.get_parse_math() for label in grid[0].get_yticklabels())
