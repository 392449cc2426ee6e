"""An estimate of the time of a seed, from records of the same configuration and device or from a measured step."""

import math
import time
from pathlib import Path
from statistics import median

import torch

from ..bench.measure import measure
from ..runs.reader import history
from ..train import lit
from ..train.device import device_name
from ..train.plan import Plan

ROWS, TOKENS = 8, 2**13  # rows of the batch for the measurement of a step on a CPU, more of them if they are short
START = time.process_time()  # seconds until here, of the imports that every run begins with; its data take more
SHARE = 1 / 3  # time of the forward pass of an evaluation, relative to a step on as many rows


class Estimates:
    """Estimates of the time of a seed from earlier runs, or for some seconds from now on by measuring a step.

    Args:
        root: folder below which the runs are.
        seconds: time for measuring.
    """

    def __init__(self, root: Path, seconds: float):
        self.known = [(record, _cost(choices)) for record, choices in history(root)]
        self.deadline = time.monotonic() + seconds

    def of(self, plan: Plan, choices: dict, *, left: bool) -> tuple[float | None, str]:
        """Estimate the time of a seed.

        Args:
            plan: plan of the configuration.
            choices: flat.
            left: whether a seed is left, so that a measurement is of use.

        Returns:
            Seconds of a seed's steps and evaluations, without the start of its process, and the source of a step's
            time: record | measured | unknown.
        """
        experiment, name = plan.experiment, device_name(plan.device)
        same = [r for r, cost in self.known if r.device == name and r.step_ms and cost == _cost(choices)]
        if same:
            ms, n_val, basis = median(r.step_ms for r in same), same[0].n_val, "record"
        elif left and time.monotonic() < self.deadline and (ms := _measured(plan)):
            n_val, basis = plan.data.source.dev_size or 0, "measured"
        else:
            return None, "unknown"
        o = experiment.optim
        rows = experiment.data.eval_batch or o.batch
        per_evaluation = math.ceil(n_val / rows) * SHARE * rows / o.batch
        phases = [(o.steps, o.eval_every, 1)]
        if (p := experiment.pretrain).objective != "none":
            phases.append((p.steps, p.eval_every, p.batch / o.batch))
        return sum(ms / 1000 * (steps * size + steps / every * per_evaluation) for steps, every, size in phases), basis


def _cost(choices: dict) -> dict:
    """The choices on which the time of a step depends."""
    sizes, apart = ("optim.batch", "optim.micro_batch"), ("optim.", "pretrain.")
    return {key: value for key, value in choices.items() if not key.startswith(apart) or key in sizes}


def _measured(plan: Plan) -> float | None:
    """Measure a training step on random rows of the task's full length, in milliseconds; None if memory is short.

    In the precision of the run, shared by its processes, without their communication and without compilation.
    """
    experiment, o, device = plan.experiment, plan.experiment.optim, plan.device
    rows = o.micro_batch or o.batch
    rows = min(rows, max(ROWS, TOKENS // experiment.task.length)) if device == "cpu" else rows
    smaller = experiment.replace(optim=o.replace(batch=rows, micro_batch=None))
    model, batch = smaller.classifier().to(device).train(), smaller.random_batch(device)
    optimiser = torch.optim.AdamW(model.parameters())
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(experiment.trainer.precision)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device, narrow, enabled=narrow is not None):
            value = lit.loss(model, batch, experiment.task.loss)
        value.backward()
        optimiser.step()

    ms = measure({"step": step}, repeats=1, device=device)["step"].ms
    return ms and ms * o.batch / rows / plan.processes.count
