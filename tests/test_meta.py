"""Steps on device meta, which has no memory: what reads a number there fails, as on a GPU it waits for all work.

So does a selection by a mask, whose result's size is such a number, and a tensor made on another device. Not tried:
triton's kernels, which have no form for it, and what is read once a step or an evaluation on purpose
(``Pretrainer.error`` selects the positions that count, ``LitClassifier`` scores all outputs). That a wait is noticed is
tested in tests/train/test_step.py.
"""

import contextlib

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment
from torch import nn

from lra.config import CONF
from lra.config.experiment import Experiment
from lra.data.datamodule import Batch
from lra.model.pretrainer import draw_holes
from lra.train.lit import LitClassifier
from lra.train.optim import adamw, schedule

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch):
    """``full_precision`` switches autocast off for the device of its tensors, and meta has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def batch(experiment: Experiment, rows: int = 2) -> Batch:
    task = experiment.task
    made = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta")
    shape = rows, task.towers, task.length
    inputs = made(*shape, dtype=torch.int64) if task.vocab else made(*shape, task.features or 1)
    label = made(rows, dtype=torch.int64 if task.loss == "cross_entropy" else torch.float32)
    return Batch(inputs, made(*shape, dtype=torch.bool), label, None)


def step(experiment: Experiment, model: nn.Module) -> None:
    optim = dict(experiment.optim) | {"clip_norm": 1.0}  # AdamW of one launch, which this excludes, has no meta form
    optimiser = adamw(model, optim)
    rates = schedule(optimiser, optim, cycle_momentum=False)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    if rates is not None:
        rates.step()


def trained_and_evaluated(experiment: Experiment) -> None:
    model, some = experiment.meta_model, batch(experiment)
    lit = LitClassifier.of(experiment, model.train(), seed=0)
    lit.batch_loss(some).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        lit.validation_step(some, 0)


@pytest.mark.parametrize("attn", [name for name in MECHANISMS if name not in KERNELS])
def test_no_mechanism_waits(attn):
    trained_and_evaluated(config(attn))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_experiment_waits(name):
    made = experiment(f"experiment={name}", *["attn=cur_abs"] * name.startswith(("curformer", "board")))
    # A third layer would do what the second does.
    made = made.replace(model=made.model.replace(layers=min(2, made.model.layers)))
    trained_and_evaluated(made)
    step(made, made.meta_model)
    if made.pretrained:
        with torch.device("meta"):
            model = made.pretrainer()
        some, ratio = batch(made), made.pretrain.ratio
        holes = draw_holes(ratio, some.inputs, some.mask) if ratio else None
        model.predict(model(some.inputs, some.mask, holes)).sum().backward()
