"""Pretraining: its loss position by position, and runs that are resumed, reused or rejected."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import config
from support.features import padded_ids
from support.training import assert_same_files, killed, power_cut, result, seed_folder, smoke, start, trained

from lra.data.datamodule import Batch
from lra.model.pretrainer import Pretrainer, draw_holes
from lra.runs import checkpoint, config_file, record
from lra.train import pretrain

WORDS = ("pretrain=masked", "pretrain.steps=9", "pretrain.lr=0.01", "optim.steps=12", "optim.eval_every=3")


def comparable(folder):
    """The record without what is measured."""
    made = result(folder)
    made["pretrain"] = {key: value for key, value in made["pretrain"].items() if key != "step_ms"}
    return made


def assert_same(one, two):
    assert comparable(one) == comparable(two)
    files = ["last.ckpt", "best.ckpt", "pretrain/last.ckpt", "pretrain/best.ckpt"]
    assert_same_files(one, two, ["metrics.csv", "pretrain/metrics.csv"], files)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data_root):
    """One run without interruption."""
    return trained(tmp_path_factory.mktemp("whole"), *WORDS, "optim.micro_batch=4")


@pytest.mark.parametrize(
    "phase, step",
    [
        pytest.param("pretrain", 3, marks=pytest.mark.slow),
        ("pretrain", 9),
        ("fine-tuning", 3),
        pytest.param("fine-tuning", 9, marks=pytest.mark.slow),
    ],
)
def test_run_resumed_after_a_crash_in_either_phase_equals_an_uninterrupted_one(phase, step, whole, data_root, tmp_path):
    words = (*WORDS, "optim.micro_batch=4")
    with power_cut(step, lambda run: (run.path.name == "pretrain") == (phase == "pretrain")):
        trained(tmp_path, *words)
    assert bool([*tmp_path.rglob("pretrain/pretrain.json")]) == (phase == "fine-tuning")
    assert_same(trained(tmp_path, *words), whole)


@pytest.mark.slow
def test_killed_in_both_phases(data_root, tmp_path):
    """kill -9 in phase one, again in phase two, then to the end."""
    words = ("pretrain=masked", "pretrain.steps=60", "optim.steps=60")
    folder = seed_folder(tmp_path / "cut", "cur_abs+masked")
    killed(start(tmp_path / "cut", *words), folder / "pretrain/last.ckpt")
    assert not (folder / "last.ckpt").exists() and not (folder / "record.json").exists()
    killed(start(tmp_path / "cut", *words), folder / "last.ckpt")
    assert not (folder / "record.json").exists()
    for runs in ("cut", "whole"):
        process = start(tmp_path / runs, *words)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert_same(folder, seed_folder(tmp_path / "whole", "cur_abs+masked"))


def test_phase_one_of_another_run_is_taken_if_it_is_the_same(whole, data_root, tmp_path):
    words = (*WORDS, "optim.micro_batch=4", f"pretrain.from={whole.parent}")
    run_dir = trained(tmp_path, *words)
    assert not (run_dir / "pretrain/last.ckpt").exists()
    assert comparable(run_dir) == comparable(whole)
    trained(tmp_path, *words, "optim.lr=0.002", "study=other")  # of the fine-tuning alone
    with pytest.raises(ValueError, match=r"pretrained in another way \(pretrain.lr: 0.01 -> 0.02\)"):
        trained(tmp_path, *words, "pretrain.lr=0.02", "study=third")
    with pytest.raises(ValueError, match=r"pretrain.from=\S+nowhere: no finished pretraining in it or in its seed-0"):
        trained(tmp_path, *WORDS, f"pretrain.from={tmp_path / 'nowhere'}", "study=fourth")


def test_fine_tuning_starts_from_the_best_encoder_and_a_new_head(whole, data_root):
    made = smoke(whole, *WORDS)
    torch.manual_seed(0)
    model = made.classifier()
    head = {key: value.clone() for key, value in model.head.state_dict().items()}
    pretrain.load_encoder(model, whole)
    best = checkpoint.read(whole / "pretrain/best.ckpt")
    for key, value in model.state_dict().items():
        assert torch.equal(value, head[key.removeprefix("head.")] if key.startswith("head.") else best[key])


def test_the_record_says_what_both_phases_cost(whole, data_root):
    made, data = record.load(whole / "record.json"), smoke(whole, *WORDS).task_data(0)
    data.setup()
    lengths = data.splits["train"].lengths.sum(1)
    first = lambda n, epoch=0: lengths[np.random.default_rng((0, epoch)).permutation(len(lengths))[:n]].sum()
    assert made.tokens == first(12 * 8) and made.pretrain.tokens == first(9 * 8)
    assert data.tokens(32 * 3 + 2) == 3 * lengths.sum() + first(16, epoch=3)
    assert (made.steps, made.pretrain.steps) == (12, 9)
    assert made.pretrain == record.load_pretraining(whole / "pretrain/pretrain.json")


def test_matched_takes_the_steps_of_phase_one_from_those_of_the_fine_tuning():
    matched = partial(smoke, "runs", "pretrain=masked", "pretrain.matched=true")
    made = matched("optim.steps=300", "optim.eval_every=75")
    assert (made.pretrain.steps, made.optim.steps, made.label) == (150, 150, "cur_random+masked-matched")
    twice = ("pretrain.steps=2", "pretrain.batch=16", "pretrain.eval_every=1", "pretrain.warmup=0")
    made = matched(*twice, "optim.eval_every=2", "optim.warmup=0")
    assert (made.pretrain.steps, made.optim.steps) == (2, 2)
    with pytest.raises(ValueError, match=r"pretrain.steps · pretrain.batch = 48 must be a multiple of optim.batch="):
        matched("pretrain.steps=6")


@pytest.mark.parametrize("name, option", [("sdpa", "causal=true"), ("s4d_lin", "bidirectional=false")])
def test_next_token_runs(name, option, data_root, tmp_path):
    made = record.load(trained(tmp_path, "pretrain=next", f"attn.{option}", attn=name) / "record.json")
    assert made.label.startswith(f"{name}-") and made.label.endswith("+next")
    assert made.status == "done" and made.pretrain.objective == "next"


def test_validation_holes_are_those_of_the_example_whatever_the_batch():
    made = smoke("runs", *WORDS)
    lit = pretrain.LitPretrainer.of(made, made.pretrainer(), 0)

    def drawn(rows, number, width):
        lit._trainer = SimpleNamespace(world_size=1, global_rank=0, datamodule=SimpleNamespace(eval_batch=rows))
        inputs = torch.ones(rows, 1, width, dtype=torch.long)
        return lit._validation_holes(Batch(inputs, None, torch.zeros(rows)), number)

    assert torch.equal(drawn(8, 1, 64)[2], drawn(5, 2, 64)[0])
    assert torch.equal(drawn(8, 1, 64), drawn(8, 1, 128)[..., :64])
    share = drawn(256, 0, 128).float().mean()
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / (256 * 128)) ** 0.5


def test_a_loss_that_is_not_finite_in_phase_one_ends_the_seed(data_root, tmp_path):
    made = record.load(trained(tmp_path, *WORDS, "pretrain.lr=1e30", attn="softmax") / "record.json")
    assert (made.status, made.steps, made.test, made.pretrain.status) == ("diverged", 0, None, "diverged")
    assert 0 < made.pretrain.steps < 9


def test_another_objective_is_another_run():
    made = lambda *words: config_file.fingerprint(smoke("runs", *words).choices({}))
    assert smoke("runs").choices({})["pretrain.objective"] == "none"
    prints = {made(), *(made("pretrain=masked", *more) for more in ((), ("pretrain.ratio=0.2",), ("pretrain.lr=0.1",)))}
    assert len(prints) == 4
    assert made("pretrain=masked", "pretrain.from=runs/x") == made("pretrain=masked")


L, VOCAB = 20, 32


def classifier(name="sdpa", *overrides):
    torch.manual_seed(0)
    return config(name, f"task.length={L}", *overrides).classifier().double().eval()


def pretrainer(encoder, loss="cross_entropy", objective="masked", **options):
    outputs = VOCAB if loss == "cross_entropy" else 1
    return Pretrainer(encoder, dim=64, outputs=outputs, loss=loss, objective=objective, **options).double().eval()


batch = partial(padded_ids, (L, 13, 5))


@pytest.mark.parametrize("loss", ["cross_entropy", "l1"])
@pytest.mark.parametrize("towers", [1, 2])
def test_masked_loss_is_over_the_holes_alone(loss, towers):
    inputs, mask = batch(towers)
    model = pretrainer(classifier(), loss)
    torch.manual_seed(2)
    holes = draw_holes(0.4, inputs, mask)
    assert holes.any() and not (holes & ~mask).any()
    total, count = model.error(inputs, mask, holes)
    vectors = model(inputs, mask, holes)
    terms = []
    for n, t, i in holes.nonzero().tolist():
        predicted, target = model.predict(vectors[n, t, i]).float(), inputs[n, t, i]
        l1 = (predicted[0] - target / 255).abs()
        terms.append(F.cross_entropy(predicted, target) if loss == "cross_entropy" else l1)
    assert count == len(terms) == int(holes.sum())
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask_id", ["own", "padding"])
def test_what_stands_in_a_hole_is_not_seen(mask_id):
    inputs, mask = batch()
    model = pretrainer(classifier(), mask_id=mask_id)
    holes = draw_holes(0.4, inputs, mask)
    other = torch.where(holes, (inputs + 3) % 16, inputs)
    assert torch.equal(model(inputs, mask, holes), model(other, mask, holes))
    shown = (inputs * ~holes, mask)  # own: a hole differs from a token of id 0, padding: it is one
    assert torch.equal(model(inputs, mask, holes), model(*shown, torch.zeros_like(holes))) == (mask_id == "padding")


def test_next_token_loss_is_that_of_prefixes():
    inputs, mask = batch()
    model = pretrainer(classifier("sdpa", "attn.causal=true"), objective="next")
    total, count = model.error(inputs, mask)
    terms = []
    for n, length in enumerate((20, 13, 5)):
        for i in range(1, length):
            vectors = model(inputs[n : n + 1, :, :i], None)
            terms.append(F.cross_entropy(model.predict(vectors[0, 0, -1]).float(), inputs[n, 0, i]))
    assert count == len(terms) == 19 + 12 + 4
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)
    full, _ = model.error(inputs[:1], None)
    torch.testing.assert_close(full, model.error(inputs[:1], mask[:1])[0], rtol=1e-5, atol=1e-5)


def test_real_features_have_a_mean_absolute_error():
    made = classifier("sdpa", "task=adding")
    model = Pretrainer(made, dim=64, outputs=2, loss="l1", objective="masked").double().eval()
    inputs, holes = torch.randn(3, 1, L, 2, dtype=torch.float64), torch.rand(3, 1, L) < 0.5
    total, count = model.error(inputs, None, holes)
    predicted = model.predict(model(inputs, None, holes))
    want = ((predicted - inputs).abs().mean(-1) * holes).sum()
    assert count == holes.sum()
    torch.testing.assert_close(total, want.float(), rtol=1e-5, atol=1e-5)


def test_the_encoder_has_the_names_of_the_classifier_and_every_parameter_a_gradient():
    inputs, mask = batch()
    made = classifier("nystrom_original", "attn.landmarks=4")  # towers one by one
    model = pretrainer(made)
    own, theirs = model.state_dict(), made.state_dict()
    assert {key for key in theirs if key not in own} == {key for key in theirs if key.startswith("head.")}
    assert {key for key in own if key not in theirs} == {"hole", "predict.weight", "predict.bias"}
    model.error(inputs, mask, draw_holes(0.4, inputs, mask))[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_no_hole_is_a_loss_of_zero():
    inputs, mask = batch()
    total, count = pretrainer(classifier()).error(inputs, mask, torch.zeros_like(mask))
    assert count == 0 and total == 0 and total.requires_grad
