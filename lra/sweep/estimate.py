"""How long a seed of a configuration takes: by records of its like on such a device, or by a measured step."""

import math
import time
from pathlib import Path
from statistics import median

import torch
from omegaconf import DictConfig

from ..bench.measure import measure
from ..data.datamodule import Batch
from ..runs import config_file as choices
from ..runs import record
from ..train import build, lit_module
from ..train.fit import device, device_name

ROWS = 8  # of a batch whose step is measured on a CPU
SHARE = 1 / 3  # of a step that the forward pass of an evaluation takes


def records(root: Path) -> list[tuple[record.RunRecord, dict]]:
    """Finished runs below a folder with their choices; what cannot be read is no basis."""
    found = []
    for path in root.rglob(record.NAME):
        try:
            found.append((record.load(path), _cost(choices.read(path.parent / choices.NAME))))
        except (ValueError, OSError):
            continue
    return found


def _cost(choices: dict) -> dict:
    """The choices that a step's time depends on."""
    sizes = ("optim.batch", "optim.micro_batch")
    return {key: value for key, value in choices.items() if not key.startswith("optim.") or key in sizes}


def estimate(config: DictConfig, choices: dict, history: list, deadline: float) -> tuple[float | None, str]:
    """Seconds of a seed with its evaluations, and where the time of a step is from."""
    where = device_name(device(config))
    same = [r for r, cost in history if r.device == where and r.step_ms and cost == _cost(choices)]
    if same:
        ms, n_val, basis = median(r.step_ms for r in same), same[0].n_val, "record"
    elif time.monotonic() < deadline and (ms := measured(config)):
        n_val, basis = config.source.get("val") or 0, "measured"
    else:
        return None, "unknown"
    o = config.optim
    per_evaluation = math.ceil(n_val / config.data.eval_batch) * SHARE * config.data.eval_batch / o.batch
    return ms / 1000 * (o.steps + o.steps / o.eval_every * per_evaluation), basis


def measured(config: DictConfig) -> float | None:
    """Milliseconds of a training step on random rows of the task's full length, None where memory is short."""
    task, where = config.task, device(config)
    rows = config.optim.micro_batch or config.optim.batch
    rows = min(rows, ROWS) if where == "cpu" else rows
    shape = (rows, task.towers, task.length)
    vocab = task.get("vocab")
    inputs = torch.randn(*shape, task.features) if vocab is None else torch.randint(1, vocab - 1, shape)
    kind = build.loss(config)
    label = torch.rand(rows) if kind == "mse" else torch.randint(task.outputs, (rows,))
    batch = Batch(inputs.to(where), None, label.to(where))
    model = build.classifier(config).to(where).train()
    optimiser = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimiser.zero_grad()
        lit_module.loss(model, batch, kind).backward()
        optimiser.step()

    ms = measure({"step": step}, repeats=1, device=where)["step"].ms
    return ms and ms * config.optim.batch / rows
