"""Whether a record says that its run trained: against oracles, at a dead head, without a change to the run."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.training import DIAGNOSTICS, assert_same_files, result, seed_folder, smoke, train_config

from lra.model.classifier import Head
from lra.runs import record
from lra.train import __main__ as training
from lra.train import diagnostics

LABELS = torch.arange(4).repeat(250)


def diagnose(outputs, labels=LABELS, hidden=None, loss="cross_entropy", precision="fp32"):
    return diagnostics.diagnose(outputs, labels, hidden, loss, precision)


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision, spread", [("fp32", 1e-6), ("bf16", 2e-3), ("fp16", 2e-4)])
def test_outputs_that_differ_by_rounding_are_collapsed(precision, spread):
    bias = torch.tensor([1.0, -2.0, 0.5, 0.0])
    assert diagnose(bias.expand(1000, 4), precision=precision)["collapsed"]
    assert diagnose(bias * (1 + spread * noise(1000, 4)), precision=precision)["collapsed"]
    informed = bias * (1 + spread * noise(1000, 4)) + 0.5 * F.one_hot(LABELS)
    assert not diagnose(informed, precision=precision)["collapsed"]


def test_one_answer_to_all_rows_is_collapsed_unless_its_probabilities_tell_classes_apart():
    bias = torch.tensor([3.0, 0.0, 0.0, 0.0])
    assert diagnose(bias + 0.1 * noise(1000, 4))["collapsed"]
    assert not diagnose(0.1 * noise(1000, 4))["collapsed"]  # no one answer
    rare = (torch.arange(1000) % 10 == 0).long()
    logit = torch.where(rare == 1, -1.0, -3.0)  # of the rare class, never the largest
    outputs = torch.stack([torch.zeros(1000), logit], 1)
    assert set(outputs.argmax(-1).tolist()) == {0} and not diagnose(outputs, rare)["collapsed"]
    assert diagnose(outputs, rare[torch.randperm(1000, generator=torch.Generator().manual_seed(1))])["collapsed"]


def test_real_outputs_are_collapsed_only_if_they_are_constant():
    labels = noise(1000)
    assert diagnose(torch.full((1000, 1), 0.3), labels, loss="mse")["collapsed"]
    assert not diagnose(0.3 + 1e-3 * noise(1000, 1), labels, loss="mse")["collapsed"]


def test_outputs_that_are_not_finite_are_no_collapse_and_no_number():
    outputs = noise(1000, 4)
    outputs[3, 1] = math.nan
    assert diagnose(outputs) == {"val_loss": None, "output_std": None, "live_units": None, "collapsed": None}


def test_a_unit_lives_if_it_varies():
    hidden = noise(1000, 8).relu()
    hidden[:, :3], hidden[:, 3] = 0, 7.0
    told = diagnose(2 + 3 * noise(1000, 4), LABELS, hidden)
    assert told["live_units"] == 0.5 and not told["collapsed"]


@pytest.mark.parametrize("kind", ["relu", "linear"])
def test_a_record_holds_the_diagnostics_of_the_best_weights(kind, data_root, tmp_path):
    head = f"model.head={{_target_:lra.model.classifier.Head,_partial_:true,kind:{kind}}}"
    config = smoke(tmp_path, head, "optim.steps=12", "optim.eval_every=3", "optim.lr=0.01", attn="sdpa")
    train_config(config)
    folder = next(tmp_path.rglob("record.json")).parent
    made, model, data = record.load(folder / "record.json"), config.classifier(), config.task_data()
    model.load_state_dict(torch.load(folder / "best.ckpt", weights_only=True))
    data.setup()
    batches = list(data.evaluation_batches("val"))
    with torch.no_grad():
        outputs = torch.cat([model.eval()(b.inputs, b.mask, b.positions) for b in batches])
    labels = torch.cat([b.label for b in batches])
    assert made.val_loss == pytest.approx(F.cross_entropy(outputs, labels).item(), rel=1e-5)
    assert made.output_std == pytest.approx(outputs.var(0, correction=0).mean().sqrt().item(), rel=1e-4)
    assert (made.live_units is None) == (kind == "linear")
    last = (folder / "metrics.csv").read_text().splitlines()
    assert made.train_loss == float(last[-1].split(",")[last[0].split(",").index("train_loss")])
    assert made.lr == 0.01 and made.torch == torch.__version__ and made.command.startswith("python -m lra.train ")


def test_a_dead_head_is_told(data_root, tmp_path, monkeypatch, capfd):
    """No unit of the head fires for any input, as in training after a step that was too large."""
    whole = Head.__init__

    def dead(self, **options):
        whole(self, **options)
        torch.nn.init.constant_(self.mlp[0].bias, -1e4)

    monkeypatch.setattr(Head, "__init__", dead)
    train_config(smoke(tmp_path))
    made = record.load(seed_folder(tmp_path) / "record.json")
    assert (made.collapsed, made.live_units, made.output_std) == (True, 0.0, 0.0)
    assert diagnostics.COLLAPSED + diagnostics.DEAD in capfd.readouterr().err


def test_diagnostics_change_nothing_of_a_run(data_root, tmp_path, monkeypatch):
    """Random selection and dropout draw numbers; two seeds in one process show that none is drawn in between."""
    words = ["seeds=[0,1]", "optim.steps=6", "optim.eval_every=3", "optim.lr=0.01", "model.dropout=0.1"]
    train_config(smoke(tmp_path / "with", *words))
    monkeypatch.setattr(diagnostics, "of_best", lambda *_: {})
    train_config(smoke(tmp_path / "without", *words))
    for seed in (0, 1):
        one, other = (seed_folder(tmp_path / name, seed=seed) for name in ("with", "without"))
        a, b = result(one), result(other)
        assert {key for key in a if a[key] != b[key]} == DIAGNOSTICS and None not in (a[key] for key in DIAGNOSTICS)
        assert_same_files(one, other, ["metrics.csv"], ["last.ckpt", "best.ckpt"])


def test_a_run_that_ends_after_its_last_evaluation_has_the_same_diagnostics(data_root, tmp_path, monkeypatch):
    words = ["optim.steps=6", "optim.eval_every=3", "optim.lr=0.01"]
    train_config(smoke(tmp_path / "whole", *words, attn="sdpa"))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(training.RunDir, "best_weights", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut")))
        train_config(smoke(tmp_path / "cut", *words, attn="sdpa"))
    train_config(smoke(tmp_path / "cut", *words, attn="sdpa"))
    cut, whole = (result(seed_folder(tmp_path / name, "sdpa")) for name in ("cut", "whole"))
    assert cut == whole and None not in (cut[key] for key in (DIAGNOSTICS | {"train_loss"}))


@pytest.mark.parametrize(
    "override, kept",
    [
        ("task=listops", "task=listops"),
        ("runs=/home/me/runs", None),
        ("data.root=~/data", None),
        ("hydra.run.dir=/home/me/a", None),
        ("source.file=/home/me/my data/lra.gz", "source.file=lra.gz"),
        ("source.url=https://host/lra.gz", "source.url=https://host/lra.gz"),
        ("model.head={kind:gelu}", "'model.head={kind:gelu}'"),
        ("+attn.share=1/8", "+attn.share=1/8"),
    ],
)
def test_the_command_of_a_record_names_no_folders(override, kept):
    assert record.command([override]) == " ".join(["python -m lra.train", *[kept] * bool(kept)])
