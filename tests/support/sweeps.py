"""Sweeps whose runs are replaced with synthetic records."""

import json
from dataclasses import asdict

from conftest import run as entry
from support.records import RECORD

from lra.config.compose import compose
from lra.runs import record
from lra.sweep import __main__ as leader
from lra.sweep import job, launcher, plan
from lra.sweep.options import SweepOptions

SMOKE = ["budget=smoke", "tasks=[listops]", "measure=0"]


def config(name, *words):
    return compose(SweepOptions, [f"sweep={name}", *words])


def expand(name, *words, runs="unused"):
    return plan.expand(config(name, f"runs={runs}", *SMOKE, *words), threads=None)[0]


def finish(run, **changes):
    run.folder.mkdir(parents=True, exist_ok=True)
    values = asdict(RECORD) | {"task": run.task, "label": run.label, "seed": run.seed, "steps": run.steps}
    (run.folder / record.NAME).write_text(json.dumps({"form": 2} | values | changes))


def finish_each(note=lambda run: None, **changes):
    """Return a launcher that passes each run to ``note`` and writes its finished record."""

    def launch(runs, *_):
        for run in runs:
            note(run)
            finish(run, **changes)

    return launch


def fail(run, reason):
    run.folder.mkdir(parents=True, exist_ok=True)
    job.fail(run.folder, reason)


def sweep(monkeypatch, capfd, launch, *words):
    """Run a small sweep with the given launcher; returns its exit message and stderr."""
    monkeypatch.setattr(launcher.Launcher, "launch", lambda self, runs: launch(runs, self))
    monkeypatch.setattr(launcher, "EVERY", 0.01)
    small_grid = ["seeds=[0,1]", "sweep.grids.methods.attn=[cur_sum,cur_abs]"]
    return entry(leader.sweep, "sweep=selection", *SMOKE, *small_grid, *words, patch=monkeypatch, capfd=capfd)
