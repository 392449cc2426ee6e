"""Drop-in replacements of softmax attention: exact limits, comparisons with numpy, the command on tiny sources."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import assert_error, config
from scipy.special import softmax

from lra.config.compose import compose
from lra.data.datamodule import TaskData
from lra.data.split import Split
from lra.ops.cluster_attention import form_clusters
from lra.ops.pinv import cubic, exact
from lra.runs.reader import finished
from lra.studies.dropin import candidates, qkv_sources, variants
from lra.studies.dropin.__main__ import Errors, dropin, error_text, measure_cost, ratio, relative_error
from lra.studies.dropin.candidates import CANDIDATES, RULES, farthest_rule, select_and_combine, step_rule
from lra.studies.dropin.qkv_sources import DropinOptions, sources
from lra.studies.dropin.variants import CURFactors, heavy_keys, missing_mass, product, row_sums, smoothed, weights
from lra.studies.qkv import generate
from lra.train.__main__ import train

N, H, L, D, E = 2, 3, 24, 5, 4
GENERATOR = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(N, H, L, size, dtype=torch.float64, generator=GENERATOR) for size in (D, D, E))
np_softmax = partial(softmax, axis=-1)
# Not exact even if all queries and keys are selected.
INEXACT = ("nystrom", "nystrom_kmeans", "performer", "mean")
TINY = ("n=2", "heads=1", "head_dim=4", "length=20", "counts=[4,6]", "cost=0")


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_are_exact_if_they_select_all_tokens(name):
    torch.manual_seed(0)
    function = CANDIDATES[name].function
    out = function(Q, K, V, 6)
    assert out.shape == V.shape and out.isfinite().all()
    assert (relative_error(function, (Q, K, V), candidates.softmax(Q, K, V), L) < 1e-9) == (name not in INEXACT)


INVERTING = [partial(combine, inverse=exact) for combine in (product, missing_mass, row_sums)]
OTHERS = [variants.least_squares, partial(smoothed, corrected=False), smoothed, partial(heavy_keys, share=0.5)]


@pytest.mark.parametrize("combine", [*INVERTING, *OTHERS])
def test_combinations_are_exact_with_all_queries_and_keys(combine):
    """All tokens are selected, in random order. Inverting a 24 x 24 softmax matrix loses some digits."""
    rows, cols = (torch.rand(N, H, L, generator=torch.manual_seed(i)).argsort(-1) for i in range(2))
    assert (combine(CURFactors(Q, K, V, rows, cols)) - candidates.softmax(Q, K, V)).abs().max() < 1e-7


def test_constant_values_are_preserved():
    """Rows of the attention map sum to one for any number of selected queries."""
    x, rough = CURFactors(Q, K, torch.full_like(V, 3.0), *farthest_rule(Q, K, V, 5)), partial(cubic, steps=2)
    outputs = [missing_mass(x, rough), row_sums(x, rough), smoothed(x), heavy_keys(x, 0.6)]
    for out in (*outputs, candidates.clustered_improved(x.q, x.k, x.v, 5)):
        torch.testing.assert_close(out, x.v)


def test_least_squares_satisfies_normal_equations():
    """With identity values the output is C M R. The residual is orthogonal to C and R, so no other M is closer to A."""
    eye = torch.eye(L, dtype=torch.float64).expand(N, H, L, L)
    x, a = CURFactors(Q, K, eye, *step_rule(Q, K, eye, 5)), weights(Q, K)
    residual = a - variants.least_squares(x)
    assert (x.C.mT @ residual @ x.R.mT).abs().max() < 1e-10
    alternatives = [product(x, inverse) for inverse in (exact, lambda u: cubic(u, steps=4))]
    assert all((residual.norm(dim=(-2, -1)) < (a - other).norm(dim=(-2, -1))).all() for other in alternatives)


def test_smoothed_combination_equals_cur_plus():
    cur_plus = select_and_combine(farthest_rule, smoothed)
    torch.testing.assert_close(cur_plus(Q, K, V, 6), CANDIDATES["cur_plus"].function(Q, K, V, 6))


def test_heavy_keys_matches_numpy():
    x = CURFactors(Q, K, V, *farthest_rule(Q, K, V, 6))
    actual = heavy_keys(x, 0.5)
    keys, _, sizes = form_clusters(K, V, x.k_cols, None, None)
    for n, h in np.ndindex(N, H):
        a, b, c, m = (y[n, h].numpy() for y in (Q, K, V, keys))
        rows, cols = x.rows[n, h].numpy(), x.cols[n, h].numpy()
        cell = ((b[:, None] - b[cols][None]) ** 2).sum(-1).argmin(1)
        assert (np.bincount(cell, minlength=6) == sizes[n, h].numpy()).all()
        distances = ((a[:, None] - a[rows][None]) ** 2).sum(-1)
        scores, rough = a @ b.T / D**0.5, (a @ m.T / D**0.5)[:, cell]
        heavy = np.argsort(-scores[rows], 1)[:, :3][distances.argmin(1)]
        is_heavy = np.zeros((L, L), bool)
        np.put_along_axis(is_heavy, heavy, True, 1)
        out = np_softmax(np.where(is_heavy, scores, rough)) @ c
        expected = out + variants.smoother(Q, x.q_rows)[n, h].numpy() @ ((np_softmax(scores) @ c)[rows] - out[rows])
        np.testing.assert_allclose(actual[n, h].numpy(), expected, rtol=1e-9, atol=1e-11)


def test_clustered_attention_matches_numpy_version_of_paper():
    improved, plain = (f(Q, K, V, 4) for f in (candidates.clustered_improved, candidates.clustered))
    query_means = candidates.cluster_means(Q, 4)
    for n, h in np.ndindex(N, H):
        a, b, c, m = (y[n, h].numpy() for y in (Q, K, V, query_means))
        map = np_softmax(m @ b.T / D**0.5)
        for i in range(L):
            j = ((a[i] - m) ** 2).sum(1).argmin()
            np.testing.assert_allclose(plain[n, h, i], map[j] @ c, rtol=1e-9, atol=1e-12)
            row, top = map[j].copy(), np.argsort(-map[j])[:4]
            row[top] = map[j][top].sum() * np_softmax(a[i] @ b[top].T / D**0.5)
            np.testing.assert_allclose(improved[n, h, i], row @ c, rtol=1e-9, atol=1e-12)


def test_lloyd_steps_reduce_distance_to_means():
    within = lambda centres: torch.cdist(Q, centres).amin(-1).square().sum().item()
    first = Q[:, :, :4]
    updated = variants.lloyd_step(Q, first)
    assert within(variants.lloyd_step(Q, updated)) <= within(updated) < within(first)
    # No key is nearest to the last centre, which then stays as it is.
    with_far_centre = torch.cat([first, torch.full_like(first[:, :, :1], 99.0)], 2)
    torch.testing.assert_close(variants.lloyd_step(Q, with_far_centre)[:, :, 4], with_far_centre[:, :, 4])


def test_selection_rules_match_numpy():
    torch.manual_seed(0)
    for choose in (*(rule for rule, _ in RULES.values()), farthest_rule):
        for index in choose(Q, K, V, 7):
            assert index.shape == (N, H, 7) and (index.sort(-1).values.diff(dim=-1) > 0).all()
    a = K[1, 2].numpy()
    gram = a.T @ a
    scores = np.diag(a @ np.linalg.inv(gram + 1e-3 * np.diag(gram).mean() * np.eye(D)) @ a.T)
    assert set(variants.leverage(K, 7)[1, 2].tolist()) == set(np.argsort(-scores)[:7])
    rows, cols = variants.received(Q, K, V, 7)
    mass = np_softmax(Q[1, 2].numpy()[rows[1, 2].numpy()] @ a.T / D**0.5).sum(0)
    assert set(cols[1, 2].tolist()) == set(np.argsort(-mass)[:7])
    # An outlier is drawn first or second.
    assert (variants.kmeans_pp(torch.cat([K, K[:, :, :1] + 1e4], 2), 2) == L).any(-1).all()


def test_dropin_command_adds_results_to_one_table(tmp_path, monkeypatch, call):
    command = partial(call, dropin, f"runs={tmp_path}", *TINY)
    read_errors = lambda: json.loads((tmp_path / "dropin/gaussian-20/errors.json").read_text())
    _, out, _ = command("sources=gaussian", "candidates=[cur_plus,mean]")
    errors = read_errors()
    assert set(errors["values"]) == {"cur_step", "cur_plus", "mean"} and errors["n"] == 2 and "cur_plus" in out
    layers = [layer for (layer,) in generate("gaussian", compose(DropinOptions, TINY)).examples]
    mean_errors = [relative_error(candidates.mean, layer, candidates.softmax(*layer), 4) for layer in layers]
    assert errors["values"]["mean"]["4"] == pytest.approx([np.mean(mean_errors), np.std(mean_errors, ddof=1)], rel=1e-6)
    command("sources=[gaussian,clustered]", "candidates=[clustered]", "cost=30")
    values = read_errors()["values"]
    assert set(values) == {"cur_step", "cur_plus", "mean", "clustered"} and values["mean"] == errors["values"]["mean"]
    table = (tmp_path / "dropin/dropin.md").read_text()
    assert "clustered-20 c=4 | clustered-20 c=6 | gaussian-20 c=4" in table and "30 tokens, 1 heads of 4" in table
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    ratios = [float(line[1]) for line in lines]
    assert len(lines) == 4 and ratios == sorted(ratios)
    assert [r for line, r in zip(lines, ratios, strict=True) if line[0] == "| cur_step"] == [1]
    monkeypatch.setattr("lra.runs.record.git_commit", lambda: "another")
    command("sources=gaussian", "candidates=[mean]")
    assert set(read_errors()["values"]) == {"cur_step", "mean"}


def test_ratio_is_geometric_mean_and_errors_are_formatted():
    errors = lambda name, **values: Errors(name, "", 2, 0, None, {k: {"4": (v, 0.1)} for k, v in values.items()})
    pair = [errors("a", cur_step=0.4, x=0.2, y=float("nan")), errors("b", cur_step=0.5, x=1.0)]
    assert ratio("x", pair) == pytest.approx(1.0) and ratio("cur_step", pair) == 1 and ratio("y", pair) == float("inf")
    assert error_text(0.1234, 0.5) == "0.123 ± 0.500" and error_text(1234.5, 10.0) == "1234 ± 10"


def test_failed_cost_measurement_names_candidate_and_reason(monkeypatch):
    monkeypatch.setitem(CANDIDATES, "failing", SimpleNamespace(function=Mock(side_effect=RuntimeError("some reason"))))
    options = SimpleNamespace(seed=0, heads=1, head_dim=4, cost=8, counts=[4], threads=1)
    assert_error("failing with count 4 cannot be measured", measure_cost, ["failing"], options)


def test_missing_transformers_error_names_model(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lra.studies.encoder", None)
    with pytest.raises(ValueError, match="model=x: "):
        dropin.__wrapped__(compose(DropinOptions, [*TINY, f"runs={tmp_path}", "sources=[]", "model=x", "examples=y"]))


def test_qkv_of_trained_run(data_root, tmp_path):
    train.__wrapped__(config("sdpa", f"runs={tmp_path}", "study=s", "seeds=[0]"))
    home = tmp_path / "s/listops/sdpa"
    options = compose(DropinOptions, ["sources=[]", f"run={home}", "n=3", "counts=[4]"])
    (source,) = sources(options)
    assert source.name == "s-listops-sdpa-seed-0" and f"({finished(home)[0].fingerprint[:8]}), test" in source.about
    assert [len(layers) for layers in source.examples] == [2, 2, 2]
    lengths = [layers[0][0].shape[2] for layers in source.examples]
    assert min(lengths) > 4 and len(set(lengths)) > 1
    for layers, length in zip(source.examples, lengths, strict=True):
        assert all(x.shape[:3] == (1, 2, length) and x.isfinite().all() for layer in layers for x in layer)
    # Mechanisms that are not softmax over all tokens, with an option.
    others = [("sdpa.SDPA", "causal", True), ("softmax.Softmax", "weights", "laplace"), ("cur.CUR", "count", 8)]
    for target, option, value in others:
        (run,) = finished(home)
        for key in ("attn.causal", "attn.dropout"):
            del run.choices[key]
        run.choices |= {"attn._target_": f"lra.attention.{target}", f"attn.{option}": value}
        assert_error("has attn=sdpa; name a run of sdpa or softmax", qkv_sources.record_run, run, options)


def test_pairs_of_texts_are_selected_by_first_text(monkeypatch):
    """Half of the first texts are too short for 4 selected tokens, and their second ones are not."""
    offsets = F.pad(torch.tensor([[3, 20], [20, 3], [4, 60], [9, 2]]).flatten().cumsum(0), (1, 0))
    split = Split(torch.randint(1, 16, (int(offsets[-1]),)), offsets, torch.zeros(4, dtype=torch.long), towers=2)
    data = TaskData(source=SimpleNamespace(open=lambda root: {"val": split}), root="", length=128, limit=128, batch=4)
    data.setup()
    model = config("sdpa", "task.towers=2").classifier().eval()
    monkeypatch.setattr(qkv_sources.restore, "restore_experiment", lambda run, root: None)
    monkeypatch.setattr(qkv_sources.restore, "load_model_and_data", lambda run, experiment: (model, data))
    result = SimpleNamespace(task="x", label="sdpa", study="s", test=50.0, fingerprint="f")
    run = SimpleNamespace(path=Path("seed-0"), result=result)
    record_examples = lambda n: qkv_sources.record_run(run, compose(DropinOptions, ["counts=[4]", f"n={n}"])).examples
    assert sorted(layers[0][0].shape[2] for layers in record_examples(2)) == [9, 20]
    assert_error("n=3: seed-0 has 2 validation examples of more than 4 tokens", record_examples, 3)
