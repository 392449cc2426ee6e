"""Tests of pretraining: its losses against oracles per position, and runs that are resumed, reused or rejected."""

import shutil
from copy import deepcopy
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import assert_error, error_message, set_up, slow
from support.features import build, padded_ids
from support.training import assert_same_files, power_cut, result, smoke, trained

from lra.data.datamodule import Batch
from lra.model.pretrainer import Pretrainer, draw_holes
from lra.runs import checkpoint, config_file, record
from lra.train import pretrain
from lra.train.lit import LitClassifier

WORDS = ("pretrain=masked", "pretrain.steps=9", "pretrain.lr=0.01")
WORDS += ("optim.steps=12", "optim.eval_every=3", "optim.micro_batch=4")
L, VOCAB = 20, 32
batch = partial(padded_ids, (L, 13, 5))


def comparable(folder):
    """Return the record without measured times."""
    values = result(folder)
    del values["pretrain"]["step_ms"]
    return values


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data_root):
    """Train without interruption."""
    return trained(tmp_path_factory.mktemp("whole"), *WORDS)


# Phases are pretraining in the folder pretrain, and fine-tuning in the run directory. Steps 9 and 12 are the last ones.
@pytest.mark.parametrize("phase, step", [slow("pretrain", 3), ("pretrain", 9), ("seed-0", 3), ("seed-0", 12)])
def test_resume_after_crash_in_either_phase_is_bit_exact(phase, step, whole, data_root, tmp_path, capfd):
    with power_cut(step, lambda run: run.path.name == phase):
        trained(tmp_path, *WORDS)
    assert bool([*tmp_path.rglob("pretrain/pretrain.json")]) == (phase == "seed-0")
    # What a kill may leave behind is removed.
    next(tmp_path.rglob("pretrain")).joinpath(".best.ckpt.1.part").touch()
    capfd.readouterr()
    resumed = trained(tmp_path, *WORDS)
    err = capfd.readouterr().err
    assert ("step 3/9" in err, "step 3/12" in err) == (False, phase == "pretrain")
    assert comparable(resumed) == comparable(whole)
    files = ["last.ckpt", "best.ckpt", "pretrain/last.ckpt", "pretrain/best.ckpt"]
    assert_same_files(resumed, whole, ["metrics.csv", "pretrain/metrics.csv"], files)
    assert not list(tmp_path.rglob("*.part"))


def test_pretraining_of_another_run_is_reused_only_if_identical(whole, data_root, tmp_path):
    words = (*WORDS, f"pretrain.from={whole.parent}")
    run_dir = trained(tmp_path, *words)
    assert not (run_dir / "pretrain/last.ckpt").exists()
    # The records, and so the fingerprints, do not depend on pretrain.from.
    assert comparable(run_dir) == comparable(whole)
    # optim.lr belongs to the fine-tuning: the pretraining is still identical.
    trained(tmp_path, *words, "optim.lr=0.002", "study=other")
    with pytest.raises(ValueError, match=r"pretrained in another way \(pretrain.lr: 0.01 -> 0.02\)"):
        trained(tmp_path, *words, "pretrain.lr=0.02", "study=third")
    with pytest.raises(ValueError, match=r"pretrain.from=\S+nowhere: no finished pretraining in it or in its seed-0"):
        trained(tmp_path, *WORDS, f"pretrain.from={tmp_path / 'nowhere'}", "study=fourth")


def test_other_code_and_a_lost_record_of_pretraining_are_noticed(whole, data_root, tmp_path, monkeypatch, capfd):
    root = whole.parents[3]
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    for name in ("record.json", "last.ckpt", "best.ckpt"):
        (tmp_path / whole.relative_to(root) / name).unlink()
    monkeypatch.setattr(config_file, "code_digest", lambda: "other")
    monkeypatch.setattr(record, "git_commit", cache(lambda: "0123"))
    run_dir = trained(tmp_path, *WORDS)
    assert record.load(run_dir / "record.json").git == "0123-dirty"
    assert "warning: the code of lra has changed since this pretraining" in capfd.readouterr().err
    # Without its pretraining the fine-tuning is not resumed, and the pretraining is not repeated.
    for name in ("record.json", "pretrain/pretrain.json"):
        (run_dir / name).unlink()
    assert "the fine-tuning after it has begun; restore that folder" in error_message(trained, tmp_path, *WORDS)


def test_fine_tuning_starts_from_best_encoder_and_new_head(whole, data_root, tmp_path, monkeypatch):
    states, step = [], LitClassifier.training_step
    keep_weights = lambda self, *batch: states.append(deepcopy(self.model.state_dict())) or step(self, *batch)
    monkeypatch.setattr(LitClassifier, "training_step", keep_weights)
    trained(tmp_path, *WORDS, f"pretrain.from={whole.parent}")
    torch.manual_seed(0)
    head = smoke(whole, *WORDS).classifier().head.state_dict()
    best = checkpoint.read(whole / "pretrain/best.ckpt")
    for key, value in states[0].items():
        assert torch.equal(value, head[key.removeprefix("head.")] if key.startswith("head.") else best[key])


def test_record_counts_tokens_and_steps_of_both_phases(whole, data_root):
    run, data = record.load(whole / "record.json"), set_up(smoke(whole, *WORDS).task_data(0))
    lengths = data.splits["train"].lengths.sum(1)
    first_tokens = lambda n, epoch=0: lengths[np.random.default_rng((0, epoch)).permutation(len(lengths))[:n]].sum()
    assert run.tokens == first_tokens(12 * 8) and run.pretrain.tokens == first_tokens(9 * 8)
    assert data.count_tokens(32 * 3 + 2) == 3 * lengths.sum() + first_tokens(16, epoch=3)
    assert (run.steps, run.pretrain.steps) == (12, 9)
    assert run.pretrain == record.load_pretraining(whole / "pretrain/pretrain.json")


def test_matched_splits_step_budget_between_phases():
    matched = partial(smoke, "runs", "pretrain=masked", "pretrain.matched=true")
    made = matched("optim.steps=300", "optim.eval_every=75")
    assert (made.pretrain.steps, made.optim.steps, made.label) == (150, 150, "cur_random+masked-matched")
    double_batch = ("pretrain.steps=2", "pretrain.batch=16", "pretrain.eval_every=1", "pretrain.warmup=0")
    made = matched(*double_batch, "optim.eval_every=2", "optim.warmup=0")
    assert (made.pretrain.steps, made.optim.steps) == (2, 2)
    assert_error("pretrain.steps · pretrain.batch = 48 must be a multiple of optim.batch=", matched, "pretrain.steps=6")


@pytest.mark.parametrize("name, option", [("sdpa", "causal=true"), ("s4d_lin", "bidirectional=false")])
def test_next_token_pretraining_runs_with_causal_mechanism(name, option, data_root, tmp_path):
    made = record.load(trained(tmp_path, "pretrain=next", f"attn.{option}", attn=name) / "record.json")
    assert made.label.startswith(f"{name}-") and made.label.endswith("+next")
    assert made.status == "done" and made.pretrain.objective == "next"


def test_validation_masking_does_not_depend_on_batching():
    made = smoke("runs", *WORDS)
    lit = pretrain.LitPretrainer.of(made, made.pretrainer(), 0)

    def draw_mask(batch_size, number, width, real=None):
        lit._trainer = SimpleNamespace(world_size=1, global_rank=0, datamodule=SimpleNamespace(eval_batch=batch_size))
        inputs = torch.ones(batch_size, 1, width, dtype=torch.long)
        return lit._validation_holes(Batch(inputs, real, torch.zeros(batch_size)), number)

    assert torch.equal(draw_mask(8, 1, 64)[2], draw_mask(5, 2, 64)[0])
    assert torch.equal(draw_mask(8, 1, 64), draw_mask(8, 1, 128)[..., :64])
    real = torch.rand(8, 1, 64) < 0.5
    assert torch.equal(draw_mask(8, 1, 64, real), draw_mask(8, 1, 64) & real)
    # Four standard errors of the mean of 256 x 128 Bernoulli variables.
    assert abs(draw_mask(256, 0, 128).float().mean() - 0.1) < 4 * (0.1 * 0.9 / (256 * 128)) ** 0.5


def test_nonfinite_pretraining_loss_ends_the_seed(data_root, tmp_path):
    made = record.load(trained(tmp_path, *WORDS, "pretrain.lr=1e30", attn="softmax") / "record.json")
    assert (made.status, made.steps, made.test, made.pretrain.status) == ("diverged", 0, None, "diverged")
    assert 0 < made.pretrain.steps < 9


def classifier(name="sdpa", *overrides):
    return build(name, f"task.length={L}", *overrides)


def pretrainer(encoder, loss="cross_entropy", objective="masked", **options):
    outputs = VOCAB if loss == "cross_entropy" else 1
    return Pretrainer(encoder, dim=64, outputs=outputs, loss=loss, objective=objective, **options).double().eval()


@pytest.mark.parametrize("loss", ["cross_entropy", "l1"])
@pytest.mark.parametrize("towers", [1, 2])
def test_masked_loss_covers_only_masked_positions(loss, towers):
    inputs, mask = batch(towers)
    model = pretrainer(classifier(), loss)
    torch.manual_seed(2)
    holes = draw_holes(0.4, inputs, mask)
    assert holes.any() and not (holes & ~mask).any()
    total, count = model.sum_loss(inputs, mask, holes)
    vectors = model(inputs, mask, holes)
    terms = []
    for n, t, i in holes.nonzero().tolist():
        predicted, target = model.predict(vectors[n, t, i]).float(), inputs[n, t, i]
        l1 = (predicted[0] - target / 255).abs()
        terms.append(F.cross_entropy(predicted, target) if loss == "cross_entropy" else l1)
    assert count == len(terms) == int(holes.sum())
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)
    # Without masked positions the loss is zero.
    total, count = model.sum_loss(inputs, mask, torch.zeros_like(mask))
    assert count == 0 and total == 0 and total.requires_grad


@pytest.mark.parametrize("mask_id", ["own", "padding"])
def test_token_at_masked_position_does_not_change_output(mask_id):
    inputs, mask = batch()
    model = pretrainer(classifier(), mask_id=mask_id)
    holes = draw_holes(0.4, inputs, mask)
    assert torch.equal(model(inputs, mask, holes), model(torch.where(holes, (inputs + 3) % 16, inputs), mask, holes))
    # mask_id=own: a masked position differs from the padding id 0; mask_id=padding: it is id 0.
    zeroed = (inputs * ~holes, mask)
    assert torch.equal(model(inputs, mask, holes), model(*zeroed, torch.zeros_like(holes))) == (mask_id == "padding")


def test_next_token_loss_equals_loss_over_prefixes():
    """A prefix alone predicts its next token, so no later token is visible."""
    inputs, mask = batch()
    model = pretrainer(classifier("sdpa", "attn.causal=true"), objective="next")
    total, count = model.sum_loss(inputs, mask)
    terms = []
    for n, length in enumerate((20, 13, 5)):
        for i in range(1, length):
            vectors = model(inputs[n : n + 1, :, :i], None)
            terms.append(F.cross_entropy(model.predict(vectors[0, 0, -1]).float(), inputs[n, 0, i]))
    assert count == len(terms) == 19 + 12 + 4
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)
    full, _ = model.sum_loss(inputs[:1], None)
    torch.testing.assert_close(full, model.sum_loss(inputs[:1], mask[:1])[0], rtol=1e-5, atol=1e-5)


def test_real_valued_features_use_mean_absolute_error():
    made = classifier("sdpa", "task=adding")
    model = Pretrainer(made, dim=64, outputs=2, loss="l1", objective="masked").double().eval()
    inputs, holes = torch.randn(3, 1, L, 2, dtype=torch.float64), torch.rand(3, 1, L) < 0.5
    total, count = model.sum_loss(inputs, None, holes)
    expected = ((model.predict(model(inputs, None, holes)) - inputs).abs().mean(-1) * holes).sum()
    assert count == holes.sum()
    torch.testing.assert_close(total, expected.float(), rtol=1e-5, atol=1e-5)


def test_pretrainer_has_classifier_parameter_names_and_all_gradients():
    inputs, mask = batch()
    # This mechanism encodes the towers separately.
    made = classifier("nystrom_original", "attn.landmarks=4")
    model = pretrainer(made)
    state, clf_state = model.state_dict(), made.state_dict()
    assert {key for key in clf_state if key not in state} == {key for key in clf_state if key.startswith("head.")}
    assert {key for key in state if key not in clf_state} == {"hole", "predict.weight", "predict.bias"}
    model.sum_loss(inputs, mask, draw_holes(0.4, inputs, mask))[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
