"""Tests of training runs: resumed after a crash or kill, rejected, diverged, locked, and several with -m."""

import os
import re
import signal
import subprocess
import weakref
from copy import deepcopy
from functools import cache
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from conftest import config, error_message, set_up, slow, small_disk
from server import write_folder
from support import training
from support.training import DIAGNOSTICS, LONGER, result, seed_folder, trained
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lra.io.lock import hold
from lra.runs import checkpoint, config_file, record
from lra.train import distributed, optim, plan
from lra.train import run as main
from lra.train.__main__ import train
from lra.train.callbacks import Report, Stopwatch
from lra.train.lit import LitClassifier, loss


def test_run_equals_a_plain_training_loop(data_root, tmp_path):
    """Two micro-batches per step, clipped gradients and a one-cycle schedule."""
    words = ["optim.steps=4", "optim.eval_every=2", "optim.micro_batch=4", "optim.lr=0.01", "optim.clip_norm=0.1"]
    words += ["model.dropout=0", "trainer.device=cpu"]
    run_dir = trained(tmp_path, *words, attn="mean")

    experiment = training.smoke(tmp_path, *words, attn="mean")
    torch.manual_seed(0)
    model = experiment.classifier().train()
    batches = iter(set_up(experiment.task_data(0)).train_dataloader())
    optimiser = optim.adamw(model, dict(experiment.optim))
    schedule = optim.schedule(optimiser, dict(experiment.optim), cycle_momentum=True)
    rows = checkpoint.read_metrics(run_dir)
    assert [row["step"] for row in rows] == [2, 4]
    for row in rows:
        losses = []
        for _ in range(2):
            for _ in range(2):
                value = loss(model, next(batches))
                (value / 2).backward()
                losses.append(value.item())
            rate = optimiser.param_groups[0]["lr"]
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
        assert (row["train_loss"], row["lr"]) == pytest.approx((fmean(losses), rate), rel=1e-6)
    for name, value in torch.load(run_dir / "last.ckpt", weights_only=True)["state_dict"].items():
        torch.testing.assert_close(value, model.state_dict()[name.removeprefix("model.")])


def test_resume_after_crash_and_full_disk_is_bit_exact(data_root, tmp_path, monkeypatch):
    """Training crashes after its second checkpoint, and the resumed training finds a full disk at the third."""
    words = ["optim.steps=12", "optim.eval_every=3", "optim.micro_batch=4", "optim.lr=0.01"]
    reference_dir = trained(tmp_path / "whole", *words)

    crashed_dir = seed_folder(tmp_path / "cut")
    with training.power_cut(6):
        trained(tmp_path / "cut", *words)
    assert torch.load(crashed_dir / "last.ckpt", weights_only=True)["global_step"] == 6
    assert not (crashed_dir / "record.json").exists()

    steps, step = [], LitClassifier.training_step

    def counting_step(self, *batch):
        steps.append(self.global_step)
        return step(self, *batch)

    monkeypatch.setattr(LitClassifier, "training_step", counting_step)
    with small_disk():
        message = error_message(trained, tmp_path / "cut", *words)
    assert re.search(r"\.ckpt cannot be .*; make room, then the same command resumes from the last checkpoint", message)
    assert sorted(set(steps)) == list(range(6, 9)) and not list(tmp_path.rglob("*.part"))

    steps.clear()
    trained(tmp_path / "cut", *words)
    assert sorted(set(steps)) == list(range(6, 12)) and result(crashed_dir) == result(reference_dir)
    training.assert_same_files(crashed_dir, reference_dir, ["metrics.csv"], ["last.ckpt", "best.ckpt"])


def test_data_of_earlier_seeds_are_freed(data_root, tmp_path, monkeypatch):
    original, references, num_alive = main.run_phase, [], []

    def count(plan, run_dir, module, data):
        num_alive.append(sum(reference() is not None for reference in references))
        references.append(weakref.ref(data))
        return original(plan, run_dir, module, data)

    monkeypatch.setattr(main, "run_phase", count)
    trained(tmp_path, "seeds=[0,1,2]")
    assert num_alive == [0, 0, 0]


def test_scoring_uses_weights_of_first_best_validation_score(data_root, tmp_path, monkeypatch):
    """With validation scores 5, 7, 7, 6 the test set is scored with the weights of step 6, not with the last ones."""
    scores, weights, evaluated_weights = iter((5.0, 7.0, 7.0, 6.0)), {}, []
    test = LitClassifier.on_test_epoch_end

    def set_score(self):
        self.score = next(scores)
        weights[self.global_step] = deepcopy(self.model.state_dict())

    def save_weights(self):
        test(self)
        evaluated_weights.append(deepcopy(self.model.state_dict()))

    monkeypatch.setattr(LitClassifier, "on_validation_epoch_end", set_score)
    monkeypatch.setattr(LitClassifier, "on_test_epoch_end", save_weights)
    values = result(trained(tmp_path, "optim.steps=12", "optim.eval_every=3", "optim.lr=0.01"))
    assert (values["best_step"], values["val"]) == (6, 7.0) and sorted(weights) == [3, 6, 9, 12]
    # Evaluated on the test set, then on the validation set for the diagnostics.
    assert len(evaluated_weights) == 2
    assert all(torch.equal(value, weights[6][name]) for state in evaluated_weights for name, value in state.items())
    assert any(not torch.equal(value, weights[12][name]) for name, value in evaluated_weights[0].items())


def test_step_time_excludes_evaluations(monkeypatch):
    # Clock readings: start, 5 steps in 0.5 s, an evaluation, 10 steps in 2 s, an evaluation.
    clock = iter((10.0, 10.5, 20.0, 22.0, 30.0))
    monkeypatch.setattr("lra.train.callbacks.time.perf_counter", lambda: next(clock))
    watch, trainer = Stopwatch(), SimpleNamespace(global_step=0)
    watch.on_train_start(trainer, None)
    for step in (5, 15):
        trainer.global_step = step
        watch.on_validation_start(trainer, None)
        watch.on_validation_end(trainer, None)
    assert watch.step_ms == [100.0, 200.0] and watch.median == 150.0


def test_time_left_includes_seeds_that_follow(monkeypatch):
    monkeypatch.setattr("lra.train.callbacks.time.monotonic", lambda: 5.0)
    report = Report("", more_seeds=3, checkpoints=None, progress=None)
    report._start, report._first_step = 0.0, 0
    # A step per second: 5 of the 10 steps of this seed are left, and 30 of the others.
    assert report._pace(SimpleNamespace(global_step=5, max_steps=10)) == "1.00 steps/s, 0:35 left"


def test_recorded_commit_marks_uncommitted_changes(tmp_path, monkeypatch):
    """No commit is recorded if the package is not tracked by the repository around it."""

    def git(*words):
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    package = write_folder(tmp_path / "lra/runs", {"record.py": b""})
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(record, "__file__", str(package / "record.py"))
    head = git("rev-parse", "--short=12", "HEAD").strip()
    (tmp_path / "notes.txt").touch()
    assert record.git_commit.__wrapped__() == head
    # A new mechanism that is not tracked, then a changed file.
    for name in ("mine.py", "record.py"):
        (package / name).write_text("changed")
        assert record.git_commit.__wrapped__() == f"{head}-dirty"
        (package / "mine.py").unlink(missing_ok=True)
    git("rm", "-q", "--cached", "lra/runs/record.py")
    git("commit", "-qm", "two")
    assert record.git_commit.__wrapped__() is None


def test_finished_or_locked_seed_is_skipped_and_changed_configuration_is_rejected(data_root, tmp_path, capfd):
    run_dir, second_dir = trained(tmp_path), seed_folder(tmp_path, seed=1)
    stamp = (run_dir / "record.json").stat().st_mtime_ns
    second_dir.mkdir()
    with hold(second_dir / ".owner"):
        trained(tmp_path, "seeds=[0,1]")
    err = capfd.readouterr().err
    assert "seed 0: skipped, already done" in err and f"seed 1: skipped, process {os.getpid()} on " in err
    assert (run_dir / "record.json").stat().st_mtime_ns == stamp and not (second_dir / "record.json").exists()
    trained(tmp_path, "seeds=[0,1]")
    first, second = result(run_dir), result(second_dir)
    assert first["fingerprint"] != second["fingerprint"]
    assert (first["params"], first["n_val"], first["n_test"]) == (second["params"], 64, 64)
    assert re.search("optim.lr: 0.001 -> 0.002.*study=<name>", error_message(trained, tmp_path, "optim.lr=0.002"))
    trained(tmp_path, "optim.lr=0.002", "study=other")
    # Options that change no result.
    trained(tmp_path, "trainer.threads=1", "data.eval_batch=7")


def test_seed_that_diverges_between_evaluations_does_not_stop_the_next(data_root, tmp_path, monkeypatch, capfd):
    steps = []
    monkeypatch.setattr("lra.train.callbacks.CHECK_EVERY", 2)
    monkeypatch.setattr(LitClassifier, "on_train_batch_end", lambda module, *_: steps.append(module.global_step))
    trained(tmp_path, "optim.lr=1e30", "optim.eval_every=6", "seeds=[0,1]", attn="softmax")
    assert max(steps) < 6
    for seed in (0, 1):
        values = result(seed_folder(tmp_path, "softmax", seed))
        assert values["status"] == "diverged" and values["lr"] == 1e30 and 0 < values["steps"] < 6
        assert {values[key] for key in ("test", "train_loss", *DIAGNOSTICS)} == {None}
    assert "not finite at step" in capfd.readouterr().err


def test_resume_by_other_code_is_logged_and_leaves_no_commit(data_root, tmp_path, monkeypatch, capfd):
    """The other code is interrupted too: its checkpoint remembers that there were two."""
    with training.power_cut(3):
        trained(tmp_path)
    monkeypatch.setattr(config_file, "code_digest", lambda: "other")
    monkeypatch.setattr(record, "git_commit", cache(lambda: "0123"))
    with training.power_cut(6):
        trained(tmp_path)
    assert record.load(trained(tmp_path) / "record.json").git == "0123-dirty"
    assert capfd.readouterr().err.count("warning: the code of lra has changed since this training began") == 2


def test_nonfinite_weights_are_not_saved(data_root, tmp_path, monkeypatch):
    """An update may overflow while its loss is finite; a kill before the next loss would leave NaN."""

    def overflow_weights(module, *_):
        if module.global_step == 6:
            next(module.model.parameters()).data.view(-1)[0] = torch.nan

    monkeypatch.setattr(LitClassifier, "on_train_batch_end", overflow_weights)
    run_dir = trained(tmp_path)
    assert result(run_dir)["status"] == "diverged" and result(run_dir)["steps"] == 6
    assert checkpoint.read_state(run_dir / checkpoint.LAST)["global_step"] == 3


@pytest.mark.first
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT, slow(signal.SIGTERM)])
def test_killed_run_resumes(data_root, tmp_path, kill, capfd):
    folder = seed_folder(tmp_path, "cur_abs")
    err = training.killed(training.start(tmp_path, "seeds=[0,1]"), folder / "last.ckpt", kill)
    assert kill == signal.SIGKILL or re.search(r"stopped at step \d+; the same command resumes from step \d+\n$", err)
    assert not (folder / "record.json").exists()
    # The signal stops the command, not only its first seed.
    assert not seed_folder(tmp_path, "cur_abs", seed=1).exists()
    training.train_config(config("cur_abs", "seeds=[0]", *LONGER, f"runs={tmp_path}"))
    err = capfd.readouterr().err
    assert "step 60/60" in err and "step 5/60" not in err and result(folder)["status"] == "done"
    assert not list(folder.glob(".*.part"))


def test_label_outside_the_classes_is_rejected():
    run = config("mean", "task=recall")
    data = set_up(run.task_data())
    plan.check_labels_and_tokens(run.task, data)
    above = "task.outputs must be above 8, the largest label of the train set, not 8"
    # The ignore_index of torch's cross entropy.
    ignored = "labels must be 0 or more; the smallest label of the train set is -100"
    for label, message in ((8, above), (-100, ignored)):
        data.splits["train"].labels[3] = label
        assert message in error_message(plan.check_labels_and_tokens, run.task, data)
    # Of 16 token ids the last one is 15, here the stored token 14.
    check = lambda vocab: plan._check_tokens(run.task.replace(vocab=vocab, shift=1), "a", torch.tensor([3, 14]), False)
    check(16)
    assert plan._describe_cut_sequences(data) == []
    data.limit = 3
    assert "are longer than 3 tokens (task.limit and task.length) and lose" in plan._describe_cut_sequences(data)[0]
    message = "task.vocab must be above 15, the largest token id of the a set with task.shift=1"
    assert message in error_message(check, 15)


def test_failed_multirun_job_is_listed_and_others_finish(data_root, tmp_path, monkeypatch, call):
    finished_labels = []

    def seed(plan, run_dir):
        if plan.experiment.label == "linear":
            raise RuntimeError("out of\nmemory")
        finished_labels.append(plan.experiment.label)

    monkeypatch.setattr("lra.train.run.run_seed", seed)
    words = ["task=listops", "budget=smoke", "seeds=[0]", f"runs={tmp_path}"]
    stop, _, error = call(train, "-m", *words, "model.heads=3,2", "attn=sdpa,linear,luna")
    assert finished_labels == ["sdpa", "luna"]
    first, *lines = stop.splitlines()
    assert first == "lra: 4 runs failed, the others finished"
    job = lambda heads, attn, why: f"  {' '.join(words)} model.heads={heads} attn={attn}: {why}"
    message = "model.heads must divide model.dim 64, got 3; or set model.head_dim"
    expected = [job(3, name, message) for name in ("sdpa", "linear", "luna")]
    assert lines == [*expected, job(2, "linear", "out of memory")]
    assert error.count("lra: failed: ") == 4 and error.count("Traceback") == 1


def test_failed_ddp_job_is_listed_once_and_others_finish(tmp_path, monkeypatch, call):
    calls, exitcodes = [], (1, -9, 1)

    def launch(arguments):
        calls.append(arguments.training_script_args)
        raise ChildFailedError("train", {0: ProcessFailure(0, 1, exitcodes[len(calls) - 1], "")})

    monkeypatch.setattr(distributed.torchrun, "run", launch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["task=listops", "budget=smoke", f"runs={tmp_path}"]
    words += ["trainer=ddp", "trainer.devices=2", "trainer.device=cpu"]
    stop, *_ = call(train, "-m", *words, "attn=mean,sdpa")
    assert len(calls) == 2
    assert stop.startswith("lra: 2 runs failed") and "attn=mean: one of its processes failed" in stop
    assert "attn=sdpa: process 0 ended by SIGKILL, perhaps because memory ran out" in stop
    stop, _, error = call(train, *words, "attn=mean")
    assert (stop, error) == (1, "")
