"""Candidates for a drop-in: their limits, independent numpy, and the command on tiny sources."""

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from conftest import config
from scipy.special import softmax

from lra.config.compose import compose
from lra.ops.cluster_attention import form_clusters
from lra.ops.pinv import cubic, exact
from lra.studies.dropin import candidates, variants
from lra.studies.dropin.__main__ import Errors, distance, dropin, error_text, ratio
from lra.studies.dropin.candidates import CANDIDATES, CHOICES, farthest_points, selection, step
from lra.studies.dropin.qkv_sources import DropinOptions, sources
from lra.studies.dropin.variants import KeptFactors, heavy_keys, missing_mass, product, row_sums, smoothed, weights
from lra.studies.qkv import generated
from lra.train.__main__ import train

N, H, L, D, E = 2, 3, 24, 5, 4
np_softmax = partial(softmax, axis=-1)
INEXACT = ("nystrom", "nystrom_kmeans", "performer", "mean")  # with everything kept too


def qkv():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(N, H, L, size, dtype=torch.float64, generator=g) for size in (D, D, E)]


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_is_finite_and_exact_where_it_keeps_everything(name):
    torch.manual_seed(0)
    q, k, v = qkv()
    function = CANDIDATES[name].function
    out = function(q, k, v, 6)
    assert out.shape == v.shape and out.isfinite().all()
    assert (distance(function, (q, k, v), candidates.softmax(q, k, v), L) < 1e-9) == (name not in INEXACT)


INVERTING = [partial(combine, inverse=exact) for combine in (product, missing_mass, row_sums)]
OTHERS = [variants.least_squares, partial(smoothed, corrected=False), smoothed, partial(heavy_keys, share=0.5)]


@pytest.mark.parametrize("combine", [*INVERTING, *OTHERS])
def test_selected_rows_are_exact_before_they_are_copied(combine):
    """Rows and columns in another order than the tokens; an inverse of a 24 x 24 softmax loses some digits."""
    q, k, v = qkv()
    rows, cols = (torch.rand(N, H, L, generator=torch.manual_seed(i)).argsort(-1) for i in range(2))
    out = combine(KeptFactors(q, k, v, rows, cols))
    assert (out - candidates.softmax(q, k, v)).abs().max() < 1e-7


def test_constant_values_stay():
    """Rows of the map sum to one for every number of selected rows."""
    q, k, v = qkv()
    x, rough = KeptFactors(q, k, torch.full_like(v, 3.0), *farthest_points(q, k, v, 5)), partial(cubic, steps=2)
    found = [missing_mass(x, rough), row_sums(x, rough), smoothed(x), heavy_keys(x, 0.6)]
    for out in (*found, candidates.clustered_improved(x.q, x.k, x.v, 5)):
        torch.testing.assert_close(out, x.v)


def test_least_squares_is_the_minimum():
    """With identity values the output is C M R, and the normal equations hold: no other M is nearer to the map."""
    q, k, _ = qkv()
    eye = torch.eye(L, dtype=torch.float64).expand(N, H, L, L)
    x, a = KeptFactors(q, k, eye, *step(q, k, eye, 5)), weights(q, k)
    left = a - variants.least_squares(x)
    assert (x.C.mT @ left @ x.R.mT).abs().max() < 1e-10
    others = [product(x, inverse) for inverse in (exact, lambda u: cubic(u, steps=4))]
    assert all((left.norm(dim=(-2, -1)) < (a - other).norm(dim=(-2, -1))).all() for other in others)


def test_smoothed_is_cur_plus():
    cur_plus = selection(farthest_points, smoothed)
    torch.testing.assert_close(cur_plus(*qkv(), 6), CANDIDATES["cur_plus"].function(*qkv(), 6))


def test_heavy_keys_are_a_map_of_which_some_entries_are_exact():
    q, k, v = qkv()
    x = KeptFactors(q, k, v, *farthest_points(q, k, v, 6))
    got = heavy_keys(x, 0.5)
    keys, _, sizes = form_clusters(k, v, x.k_cols, None, None)
    for n, h in np.ndindex(N, H):
        a, b, c, m = (y[n, h].numpy() for y in (q, k, v, keys))
        rows, cols = x.rows[n, h].numpy(), x.cols[n, h].numpy()
        cell = ((b[:, None] - b[cols][None]) ** 2).sum(-1).argmin(1)
        assert (np.bincount(cell, minlength=6) == sizes[n, h].numpy()).all()
        apart = ((a[:, None] - a[rows][None]) ** 2).sum(-1)
        scores, rough = a @ b.T / D**0.5, (a @ m.T / D**0.5)[:, cell]
        heavy = np.argsort(-scores[rows], 1)[:, :3][apart.argmin(1)]
        some = np.zeros((L, L), bool)
        np.put_along_axis(some, heavy, True, 1)
        out = np_softmax(np.where(some, scores, rough)) @ c
        smooth = variants.kernel(q, x.q_rows)[n, h].numpy()
        expected = out + smooth @ ((np_softmax(scores) @ c)[rows] - out[rows])
        np.testing.assert_allclose(got[n, h].numpy(), expected, rtol=1e-9, atol=1e-11)


def test_improved_clustered_attention_is_the_papers():
    q, k, v = qkv()
    improved, plain = (f(q, k, v, 4) for f in (candidates.clustered_improved, candidates.clustered))
    marks = candidates.centres(q, 4)
    for n, h in np.ndindex(N, H):
        a, b, c, m = (y[n, h].numpy() for y in (q, k, v, marks))
        map = np_softmax(m @ b.T / D**0.5)
        for i in range(L):
            j = ((a[i] - m) ** 2).sum(1).argmin()
            np.testing.assert_allclose(plain[n, h, i], map[j] @ c, rtol=1e-9, atol=1e-12)
            row, top = map[j].copy(), np.argsort(-map[j])[:4]
            row[top] = map[j][top].sum() * np_softmax(a[i] @ b[top].T / D**0.5)
            np.testing.assert_allclose(improved[n, h, i], row @ c, rtol=1e-9, atol=1e-12)


def test_lloyd_steps_bring_keys_nearer_to_their_means():
    x = qkv()[0]
    within = lambda centres: torch.cdist(x, centres).amin(-1).square().sum().item()
    first = x[:, :, :4]
    once = variants.means(x, first)
    assert within(variants.means(x, once)) <= within(once) < within(first)
    alone = torch.cat([first, torch.full_like(first[:, :, :1], 99.0)], 2)  # nothing is near to the last
    torch.testing.assert_close(variants.means(x, alone)[:, :, 4], alone[:, :, 4])


def test_landmarks():
    torch.manual_seed(0)
    q, k, v = qkv()
    for choose in (*(rule for rule, _ in CHOICES.values()), farthest_points):
        for index in choose(q, k, v, 7):
            assert index.shape == (N, H, 7) and (index.sort(-1).values.diff(dim=-1) > 0).all()
    a = k[1, 2].numpy()
    gram = a.T @ a
    scores = np.diag(a @ np.linalg.inv(gram + 1e-3 * np.diag(gram).mean() * np.eye(D)) @ a.T)
    assert set(variants.leverage(k, 7)[1, 2].tolist()) == set(np.argsort(-scores)[:7])
    rows, cols = variants.received(q, k, v, 7)
    mass = np_softmax(q[1, 2].numpy()[rows[1, 2].numpy()] @ a.T / D**0.5).sum(0)
    assert set(cols[1, 2].tolist()) == set(np.argsort(-mass)[:7])
    far_away = torch.cat([k, k[:, :, :1] + 1e4], 2)
    assert (variants.kmeans_pp(far_away, 2) == L).any(-1).all()  # it is drawn second, unless it was first


TINY = ("n=2", "heads=1", "head_dim=4", "length=20", "counts=[4,6]", "cost=0")


def test_the_command_adds_to_one_table(tmp_path, call):
    command = partial(call, dropin, f"runs={tmp_path}", *TINY)
    _, out, _ = command("sources=gaussian", "candidates=[cur_plus,mean]")
    home = tmp_path / "dropin"
    made = json.loads((home / "gaussian-20/errors.json").read_text())
    assert set(made["values"]) == {"cur_step", "cur_plus", "mean"} and made["n"] == 2 and "cur_plus" in out
    layers = [layer for (layer,) in generated("gaussian", compose(DropinOptions, TINY)).examples]
    own = [distance(candidates.mean, layer, candidates.softmax(*layer), 4) for layer in layers]
    assert made["values"]["mean"]["4"] == pytest.approx([np.mean(own), np.std(own, ddof=1)], rel=1e-6)
    command("sources=[gaussian,clustered]", "candidates=[clustered]", "cost=30")
    values = json.loads((home / "gaussian-20/errors.json").read_text())["values"]
    assert set(values) == {"cur_step", "cur_plus", "mean", "clustered"} and values["mean"] == made["values"]["mean"]
    table = (home / "dropin.md").read_text()
    assert "clustered-20 c=4 | clustered-20 c=6 | gaussian-20 c=4" in table and "30 tokens, 1 heads of 4" in table
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    ratios = [float(line[1]) for line in lines]
    assert len(lines) == 4 and ratios == sorted(ratios)
    assert [r for line, r in zip(lines, ratios, strict=True) if line[0] == "| cur_step"] == [1]


def test_ratio_and_cells_of_the_table():
    made = lambda name, **values: Errors(name, "", 2, 0, None, {k: {"4": (v, 0.1)} for k, v in values.items()})
    two = [made("a", cur_step=0.4, x=0.2, y=float("nan")), made("b", cur_step=0.5, x=1.0)]
    assert ratio("x", two) == pytest.approx(1.0) and ratio("cur_step", two) == 1 and ratio("y", two) == float("inf")
    assert [error_text(*value) for value in ((0.1234, 0.5), (1234.5, 10.0))] == ["0.123 ± 0.500", "1234 ± 10"]


def test_a_model_without_transformers_is_an_error(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lra.integrations.", "lra.studies.encoder"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = [*TINY, f"runs={tmp_path}", "sources=[]", "model=x", "examples=y"]
    with pytest.raises(ValueError, match="model=x: transformers is not installed, or too old: pip install"):
        dropin.__wrapped__(compose(DropinOptions, words))


def test_queries_keys_and_values_of_a_run(data_root, tmp_path):
    def taken(name, n=3):
        words = ["sources=[]", f"run={tmp_path}/s/listops/{name}", f"n={n}", "counts=[4]"]
        return list(sources(compose(DropinOptions, words)))

    for name in ("sdpa", "cur_abs"):
        train.__wrapped__(config(name, f"runs={tmp_path}", "study=s", "seeds=[0]"))
    (source,) = taken("sdpa")
    assert source.name == "s-sdpa-seed-0" and len(source.examples) == 3 and len(source.examples[0]) == 2
    lengths = [layers[0][0].shape[2] for layers in source.examples]
    assert min(lengths) > 4 and len(set(lengths)) > 1
    for layers, length in zip(source.examples, lengths, strict=True):
        assert all(x.shape[:3] == (1, 2, length) and x.isfinite().all() for layer in layers for x in layer)
    with pytest.raises(ValueError, match=r"n=65: .* has 64 validation examples of more than 4 tokens"):
        taken("sdpa", n=65)
    with pytest.raises(ValueError, match="has attn=cur_abs; name a run of sdpa or softmax"):
        taken("cur_abs")
