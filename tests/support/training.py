"""Trainings of a few steps, in this process and in one of their own, and their results."""

import subprocess
import sys
from dataclasses import asdict

from conftest import config

from lra.config import CONF
from lra.runs import record
from lra.train.__main__ import train

MEASURED = {"step_ms", "peak_bytes", "date", "command"}  # differ between runs of one result

train_config = train.__wrapped__  # the function of a configuration under the entry point


def seed_folder(runs, label="cur_random", seed=0):
    return runs / "paper-smoke" / "listops" / label / f"seed-{seed}"


def result(folder):
    values = asdict(record.load(folder / "record.json"))
    return {key: value for key, value in values.items() if key not in MEASURED}


def smoke(runs, *overrides, attn="cur_random"):
    return config(attn, f"runs={runs}", "seeds=[0]", "data.pad=batch", *overrides)


LONGER = ("trainer.threads=1", "optim.steps=60", "optim.eval_every=5")


def start(runs, *words):
    command = [sys.executable, "-m", "lra.train", "task=listops", "attn=cur_abs", "budget=smoke", "seeds=[0]"]
    return subprocess.Popen(
        [*command, *LONGER, f"runs={runs}", *words],
        cwd=CONF.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
