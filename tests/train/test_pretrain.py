"""Runs with pretraining: the same from wherever they are resumed, reused, refused, and what they cost."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.training import assert_same_files, killed, power_cut, result, seed_folder, smoke, start, train_config

from lra.data.datamodule import Batch
from lra.runs import checkpoint, config_file, pretrain_dir, record
from lra.train import pretrain

WORDS = ("pretrain=masked", "pretrain.steps=9", "pretrain.lr=0.01", "optim.steps=12", "optim.eval_every=3")
folder_of = partial(seed_folder, label="cur_random+masked")


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
    runs = tmp_path_factory.mktemp("whole")
    train_config(smoke(runs, *WORDS, "optim.micro_batch=4"))
    return folder_of(runs)


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
        train_config(smoke(tmp_path, *words))
    cut = folder_of(tmp_path)
    assert (cut / "pretrain/pretrain.json").exists() == (phase == "fine-tuning")
    train_config(smoke(tmp_path, *words))
    assert_same(cut, whole)


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
    train_config(smoke(tmp_path, *words))
    assert not (folder_of(tmp_path) / "pretrain/last.ckpt").exists()
    assert comparable(folder_of(tmp_path)) == comparable(whole)
    train_config(smoke(tmp_path, *words, "optim.lr=0.002", "study=other"))  # of the fine-tuning alone
    with pytest.raises(ValueError, match=r"pretrained in another way \(pretrain.lr: 0.01 -> 0.02\)"):
        train_config(smoke(tmp_path, *words, "pretrain.lr=0.02", "study=third"))
    with pytest.raises(ValueError, match=r"pretrain.from=\S+nowhere: no finished pretraining in it or in its seed-0"):
        train_config(smoke(tmp_path, *WORDS, f"pretrain.from={tmp_path / 'nowhere'}", "study=fourth"))


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
    assert made.pretrain == pretrain_dir.load(whole / "pretrain/pretrain.json")


def test_matched_takes_the_steps_of_phase_one_from_those_of_the_fine_tuning():
    matched = partial(smoke, "runs", "pretrain=masked", "pretrain.matched=true")
    made = matched("optim.steps=300", "optim.eval_every=75")
    assert (made.pretrain.steps, made.optim.steps, made.label) == (150, 150, "cur_random+masked-matched")
    twice = ("pretrain.steps=2", "pretrain.batch=16", "pretrain.eval_every=1", "pretrain.warmup=0")
    made = matched(*twice, "optim.eval_every=2", "optim.warmup=0")
    assert (made.pretrain.steps, made.optim.steps) == (2, 2)
    with pytest.raises(ValueError, match=r"pretrain.matched needs pretrain.steps · pretrain.batch 48 to be a multiple"):
        matched("pretrain.steps=6")


@pytest.mark.parametrize("name, option", [("sdpa", "causal=true"), ("s4d_lin", "bidirectional=false")])
def test_next_token_runs(name, option, data_root, tmp_path):
    train_config(smoke(tmp_path, "pretrain=next", f"attn.{option}", attn=name))
    (path,) = tmp_path.glob(f"paper-smoke/listops/{name}-*+next/seed-0/record.json")
    made = record.load(path)
    assert made.status == "done" and made.pretrain.objective == "next"


def test_validation_holes_are_those_of_the_example_whatever_the_batch():
    made = smoke("runs", *WORDS)
    lit = pretrain.LitPretrainer.of(made, made.pretrainer(), 0)

    def drawn(rows, number, width):
        lit._trainer = SimpleNamespace(world_size=1, global_rank=0, datamodule=SimpleNamespace(eval_batch=rows))
        return lit._validation_holes(
            Batch(torch.ones(rows, 1, width, dtype=torch.long), None, torch.zeros(rows)), number
        )

    assert torch.equal(drawn(8, 1, 64)[2], drawn(5, 2, 64)[0])
    assert torch.equal(drawn(8, 1, 64), drawn(8, 1, 128)[..., :64])
    share = drawn(256, 0, 128).float().mean()
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / (256 * 128)) ** 0.5


def test_a_loss_that_is_not_finite_in_phase_one_ends_the_seed(data_root, tmp_path):
    train_config(smoke(tmp_path, *WORDS, "pretrain.lr=1e30", attn="softmax"))
    made = record.load(seed_folder(tmp_path, "softmax+masked") / "record.json")
    assert (made.status, made.steps, made.test, made.pretrain.status) == ("diverged", 0, None, "diverged")
    assert 0 < made.pretrain.steps < 9


def test_another_objective_is_another_run():
    made = lambda *words: config_file.fingerprint(smoke("runs", *words).choices({}))
    assert smoke("runs").choices({})["pretrain.objective"] == "none"
    prints = {made(), *(made("pretrain=masked", *more) for more in ((), ("pretrain.ratio=0.2",), ("pretrain.lr=0.1",)))}
    assert len(prints) == 4
    assert made("pretrain=masked", "pretrain.from=runs/x") == made("pretrain=masked")
