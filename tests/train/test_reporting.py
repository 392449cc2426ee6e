"""Tests of the progress display and the log of a run, and of its diagnostics against oracles."""

import contextlib
import os
import pty
import re
import select

import pytest
import torch
import torch.nn.functional as F
from support.training import DIAGNOSTICS, assert_same_files, result, seed_folder, smoke, train_config, trained

from lra import console
from lra.data.progress import live_line
from lra.model.classifier import Head
from lra.runs import checkpoint, record
from lra.train import diagnostics

# A killed process could not show a hidden cursor again.
HIDE_CURSOR = b"\x1b[?25l"
ERASE_LINE = b"\x1b[2K"
LABELS = torch.arange(4).repeat(250)


@contextlib.contextmanager
def terminal():
    """Make stderr a terminal; yields a function that reads it until it is silent for half a second."""
    reader_fd, terminal_fd = pty.openpty()

    def read_all():
        text = b""
        while select.select([reader_fd], [], [], 0.5)[0]:
            text += os.read(reader_fd, 2**16)
        return text

    with os.fdopen(terminal_fd, "w") as stream, contextlib.redirect_stderr(stream):
        yield read_all
    os.close(reader_fd)


def test_live_line_keeps_cursor_and_log_messages_visible():
    with terminal() as read_all:
        with live_line() as line:
            line.update(line.add_task("a [b] run", total=4, text=""), completed=2, text="best 20.00")
            line.refresh()
            console.log("a word")
        output = read_all()
    assert b"a [b] run" in output and b"2/4" in output and b"best 20.00" in output and HIDE_CURSOR not in output
    # After the logged message the live line is drawn again and finally erased.
    assert ERASE_LINE in output[output.index(b"a word") :]


WHOSE = {
    "of the background": ("os.tcgetpgrp", lambda _: os.getpgrp() + 1),
    "of a second process": ("lra.data.progress.is_main_process", lambda: False),
    "of a launcher's worker": ("multiprocessing.parent_process", object),
}


@pytest.mark.parametrize("whose", WHOSE)
def test_live_line_is_disabled_if_processes_share_the_terminal(whose, monkeypatch):
    with terminal():
        assert not live_line().disable
        monkeypatch.setattr(*WHOSE[whose])
        assert live_line().disable


def test_live_line_of_run_shows_best_score_speed_and_time_left(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with terminal() as read_all:
        trained(tmp_path)
        live, _, last = read_all().decode().rpartition(ERASE_LINE.decode())
    assert re.search(r"listops cur_random seed 0 .*6/6.* best \d+\.\d\d, \d+\.\d\d steps/s, \d+:\d\d left", live)
    assert "seed 0: test" in last and "steps/s" not in last


def test_log_without_terminal_and_final_gain_over_control(data_root, tmp_path, capfd):
    words = ["seeds=[0,1]", "optim.steps=4", "optim.eval_every=2"]
    trained(tmp_path, *words, attn="mean")
    capfd.readouterr()
    trained(tmp_path, *words)
    lines = capfd.readouterr().err.splitlines()
    score = r"\d+\.\d\d"
    steps = [line for line in lines if ": step " in line]
    assert len(steps) == 4
    for line, step in zip(steps, (2, 4, 2, 4), strict=True):
        pattern = rf"seed \d: step {step}/4, validation {score}, best {score} at step [24]"
        assert re.search(rf"{pattern}, {score} steps/s, \d:\d\d left$", line), line
    (final,) = (line for line in lines if "seed 1: test" in line)
    assert re.search(rf"seed 1: test {score}, validation {score} at step [24]$", final)
    gain = rf"test {score} ± {score} \(n = 2\), [+-]{score} over mean \(n = 2\)"
    report = f"lra report study=paper-smoke runs={tmp_path}"
    assert re.fullmatch(rf"listops cur_random: {gain}; {re.escape(report)}", lines[-1])


def diagnose(outputs, labels=LABELS, hidden=None, loss="cross_entropy", precision="fp32"):
    return diagnostics.diagnose(outputs, labels, hidden, loss, precision)


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# spread: relative noise of about the rounding error of the precision.
@pytest.mark.parametrize("precision, spread", [("fp32", 1e-6), ("bf16", 2e-3), ("fp16", 2e-4)])
def test_outputs_that_differ_only_by_rounding_are_collapsed(precision, spread):
    bias = torch.tensor([1.0, -2.0, 0.5, 0.0])
    assert diagnose(bias.expand(1000, 4), precision=precision)["collapsed"]
    assert diagnose(bias * (1 + spread * noise(1000, 4)), precision=precision)["collapsed"]
    informative = bias * (1 + spread * noise(1000, 4)) + 0.5 * F.one_hot(LABELS)
    assert not diagnose(informative, precision=precision)["collapsed"]


def test_single_predicted_class_is_collapsed_unless_logits_are_informative():
    assert diagnose(torch.tensor([3.0, 0.0, 0.0, 0.0]) + 0.1 * noise(1000, 4))["collapsed"]
    assert not diagnose(0.1 * noise(1000, 4))["collapsed"]
    rare = (torch.arange(1000) % 10 == 0).long()
    # Logit of the rare class: informative, but never the largest.
    outputs = torch.stack([torch.zeros(1000), torch.where(rare == 1, -1.0, -3.0)], 1)
    assert set(outputs.argmax(-1).tolist()) == {0} and not diagnose(outputs, rare)["collapsed"]
    assert diagnose(outputs, rare[torch.randperm(1000, generator=torch.Generator().manual_seed(1))])["collapsed"]


def test_regression_outputs_are_collapsed_only_if_constant_and_nonfinite_ones_have_no_diagnostics():
    labels = noise(1000)
    assert diagnose(torch.full((1000, 1), 0.3), labels, loss="mse")["collapsed"]
    assert not diagnose(0.3 + 1e-3 * noise(1000, 1), labels, loss="mse")["collapsed"]
    outputs = noise(1000, 4)
    outputs[3, 1] = torch.nan
    assert diagnose(outputs) == {"val_loss": None, "output_std": None, "live_units": None, "collapsed": None}


def test_unit_is_live_only_if_its_activation_varies():
    hidden = noise(1000, 8).relu()
    hidden[:, :3], hidden[:, 3] = 0, 7.0
    diagnosis = diagnose(2 + 3 * noise(1000, 4), LABELS, hidden)
    assert diagnosis["live_units"] == 0.5 and not diagnosis["collapsed"]


def test_record_has_diagnostics_of_best_weights(data_root, tmp_path):
    config = smoke(tmp_path, "optim.steps=12", "optim.eval_every=3", "optim.lr=0.01", attn="sdpa")
    train_config(config)
    folder = config.home / "seed-0"
    entry, model, data = record.load(folder / "record.json"), config.classifier(), config.task_data()
    model.load_state_dict(torch.load(folder / "best.ckpt", weights_only=True))
    data.setup()
    batches = list(data.evaluation_batches("val"))
    with torch.no_grad():
        outputs = torch.cat([model.eval()(b.inputs, b.mask, b.positions) for b in batches])
    labels = torch.cat([b.label for b in batches])
    assert entry.val_loss == pytest.approx(F.cross_entropy(outputs, labels).item(), rel=1e-5)
    assert entry.output_std == pytest.approx(outputs.var(0, correction=0).mean().sqrt().item(), rel=1e-4)
    assert entry.live_units is not None
    linear = "model.head={_target_:lra.model.classifier.Head,_partial_:true,kind:linear}"
    assert diagnostics._hidden_layer(smoke(tmp_path, linear, attn="sdpa").classifier()) is None
    assert entry.train_loss == checkpoint.read_metrics(folder)[-1]["train_loss"]
    assert entry.lr == 0.01 and entry.torch == torch.__version__ and entry.command.startswith("python -m lra.train ")


def test_dead_head_is_reported_as_collapsed(data_root, tmp_path, monkeypatch, capfd):
    """No unit of the head fires for any input, as after a training step that was too large."""
    original = Head.__init__

    def init_dead_units(self, **options):
        original(self, **options)
        torch.nn.init.constant_(self.mlp[0].bias, -1e4)

    monkeypatch.setattr(Head, "__init__", init_dead_units)
    entry = record.load(trained(tmp_path) / "record.json")
    assert (entry.collapsed, entry.live_units, entry.output_std) == (True, 0.0, 0.0)
    assert diagnostics.COLLAPSED + diagnostics.DEAD in capfd.readouterr().err


def test_diagnostics_do_not_change_the_run(data_root, tmp_path, monkeypatch):
    """Random selection and dropout would show if diagnostics drew random numbers before the second seed."""
    words = ["seeds=[0,1]", "optim.steps=6", "optim.eval_every=3", "optim.lr=0.01", "model.dropout=0.1"]
    trained(tmp_path / "with", *words)
    monkeypatch.setattr(diagnostics, "of_best", lambda *_: {})
    trained(tmp_path / "without", *words)
    for seed in (0, 1):
        with_dir, without_dir = (seed_folder(tmp_path / name, seed=seed) for name in ("with", "without"))
        a, b = result(with_dir), result(without_dir)
        assert {key for key in a if a[key] != b[key]} == DIAGNOSTICS and None not in (a[key] for key in DIAGNOSTICS)
        assert_same_files(with_dir, without_dir, ["metrics.csv"], ["last.ckpt", "best.ckpt"])


@pytest.mark.parametrize(
    "override, kept",
    [
        ("task=listops", "task=listops"), ("runs=/home/me/runs", None), ("++data.root=~/data", None),
        ("source.file=/home/me/my data/lra.gz", "source.file=lra.gz"), ("+attn.share=1/8", "+attn.share=1/8"),
        ("source.url=https://host/lra.gz", "source.url=https://host/lra.gz"),
        ("x={a:/home/me/a,b:~/b,c:https://host/c}", "'x={a:a,b:b,c:https://host/c}'"),
        ("source.file='/home/me/my data/lra.gz'", "'source.file='\"'\"'lra.gz'\"'\"''"),
        ("model.head={kind:gelu}", "'model.head={kind:gelu}'"),
    ],
)  # fmt: skip
def test_recorded_command_omits_local_folders(override, kept):
    assert record.command([override]) == " ".join(["python -m lra.train", *[kept] * bool(kept)])
