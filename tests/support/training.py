"""Short training runs, in this process or in a subprocess, and comparisons of their results."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from conftest import config, until

from lra.config import CONF
from lra.runs import record
from lra.train.__main__ import train
from lra.train.callbacks import Checkpoints

# Fields that differ between identical runs; bag depends on which test fitted the baseline in the shared data first.
MEASURED = {"step_ms", "peak_bytes", "date", "command", "bag"}

DIAGNOSTICS = {"val_loss", "output_std", "live_units", "collapsed"}
FAST = ("model.layers=1", "data.eval_batch=40")
LONGER = (*FAST, "trainer.threads=1", "optim.steps=60", "optim.eval_every=5")
# The training function without the command line.
train_config = train.__wrapped__


def seed_folder(runs, label="cur_random", seed=0):
    return runs / "paper-smoke" / "listops" / label / f"seed-{seed}"


def result(folder):
    return {key: value for key, value in asdict(record.load(folder / "record.json")).items() if key not in MEASURED}


def smoke(runs, *overrides, attn="cur_random"):
    return config(attn, f"runs={runs}", "seeds=[0]", "data.pad=batch", *FAST, *overrides)


def trained(runs, *overrides, attn="cur_random"):
    """Train on ListOps for a few steps; returns the run directory of seed 0."""
    experiment = smoke(runs, *overrides, attn=attn)
    train_config(experiment)
    return experiment.home / "seed-0"


def start(runs, *words, **options):
    """Start training in a subprocess with options of Popen."""
    command = [sys.executable, "-m", "lra.train", "task=listops", "attn=cur_abs", "budget=smoke", "seeds=[0]"]
    options = {"cwd": CONF.parent, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*command, *LONGER, f"runs={runs}", *words], **options)


def wait(process, condition):
    """Wait until a condition is true or the process has ended; fail after five minutes."""
    until(lambda: condition() or process.poll() is not None, 300)


def killed(process, path, kill=signal.SIGKILL):
    """Kill a process as soon as it has written a file; returns its stderr."""
    wait(process, path.exists)
    os.kill(process.pid, kill)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in err and path.exists()
    return err


@contextlib.contextmanager
def power_cut(step, cut=lambda run: True):
    """Crash training after the evaluation of a step, in runs for which ``cut(run directory)`` is true."""
    saved = Checkpoints.on_validation_end

    def crash(self, trainer, module):
        saved(self, trainer, module)
        if trainer.global_step == step and cut(self.run_dir):
            raise RuntimeError("power cut")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(Checkpoints, "on_validation_end", crash)
        yield


def assert_same_files(first_dir, second_dir, curves, checkpoints):
    """Check that two run directories have byte-identical curves and equal tensors in their checkpoints."""
    for name in curves:
        assert (first_dir / name).read_bytes() == (second_dir / name).read_bytes()
    for name in checkpoints:
        a, b = (torch.load(folder / name, weights_only=True) for folder in (first_dir, second_dir))
        a, b = (x.get("state_dict", x) for x in (a, b))
        assert all(torch.equal(a[key], b[key]) for key in a | b), name
