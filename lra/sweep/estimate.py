"""An estimate of the time of a seed, from records of similar runs on the same device or from a measured step."""

import math
import time
from pathlib import Path
from statistics import median

import torch

from ..bench.measure import measure
from ..config.errors import is_out_of_memory
from ..ops.precision import AUTOCAST_DTYPES, bf16_products
from ..runs.reader import history
from ..train import lit
from ..train.device import device_name
from ..train.plan import Plan

# Batch for the measurement of a step on a CPU: 8 sequences, more if they are short.
SEQUENCES = 8
TOKENS = 2**13
# CPU seconds of this process so far, spent on imports: an estimate of the start-up time of every run.
START_SECONDS = time.process_time()
# Time of a forward pass in evaluation, relative to a training step on the same batch.
SHARE = 1 / 3


class Estimates:
    """Estimates of the time of a seed from earlier runs, or, for a limited time, by measuring a step.

    Args:
        root: directory of all runs.
        seconds: time limit for measurements.
    """

    def __init__(self, root: Path, seconds: float):
        self.history = [(record, _time_settings(choices)) for record, choices in history(root)]
        self.deadline = time.monotonic() + seconds
        # Threads of a run that does not set ``trainer.threads``.
        self.threads = torch.get_num_threads()

    def of(self, plan: Plan, choices: dict, *, may_measure: bool) -> tuple[float | None, str]:
        """Estimate the time of a seed.

        Args:
            plan: plan of the configuration.
            choices: flat.
            may_measure: whether to measure a step if there are no records: only if a seed is left.

        Returns:
            Seconds of a seed's steps and evaluations, without the start of its process, and the source of a step's
            time: record | measured | unknown.
        """
        # The name of a CPU and the time of a measured step depend on the number of threads.
        torch.set_num_threads(plan.experiment.trainer.threads or self.threads)
        # Time of a step: the median of records on this device that differ at most in schedule and optimiser.
        name = device_name(plan.device, plan.processes.count)
        settings = _time_settings(choices)
        records = []
        for record, record_settings in self.history:
            if record.device == name and record.step_ms and record_settings == settings:
                records.append((record.step_ms, record.n_val))
        ms: float | None
        if records:
            ms = median(step_ms for step_ms, _ in records)
            _, n_val = records[0]
            basis = "record"
        else:
            ms = _measured(plan) if may_measure and time.monotonic() < self.deadline else None
            n_val = plan.data.source.num_val or 0
            basis = "measured"
        if not ms:
            return None, "unknown"

        # All work in training steps of the fine-tuning, whose time is known: the fine-tuning with its evaluations, then
        # the pretraining with its evaluations.
        optim = plan.experiment.optim
        eval_batch = plan.experiment.data.eval_batch or optim.batch
        num_batches = math.ceil(n_val / eval_batch)
        steps_per_eval = num_batches * SHARE * eval_batch / optim.batch
        steps = optim.steps + optim.steps / optim.eval_every * steps_per_eval
        if plan.experiment.pretrained:
            pretrain = plan.experiment.pretrain.pretraining_optim(optim)
            steps += pretrain.steps * pretrain.batch / optim.batch
            steps += pretrain.steps / pretrain.eval_every * steps_per_eval
        return ms / 1000 * steps, basis


def _time_settings(choices: dict) -> dict:
    """Select the choices on which the time of a step depends."""
    sizes = ("optim.batch", "optim.micro_batch")
    settings = {}
    for key, value in choices.items():
        is_schedule = key.startswith(("optim.", "pretrain."))
        if not is_schedule or key in sizes:
            settings[key] = value
    return settings


def _measured(plan: Plan) -> float | None:
    """Measure a training step on random sequences of the task's full length, in milliseconds; None if the step fails.

    The step has the precision of the run. Its time is divided by the number of processes; communication and compilation
    are left out.
    """
    experiment = plan.experiment
    optim = experiment.optim
    device = plan.device
    # On a CPU a smaller batch is measured: the time is proportional to its size.
    size = optim.micro_batch or optim.batch
    if device == "cpu":
        size = min(size, max(SEQUENCES, TOKENS // experiment.task.length))
    smaller = experiment.replace(optim=optim.replace(batch=size, micro_batch=None))
    try:
        model = smaller.classifier().to(device).train()
        batch = smaller.random_batch(device)
    # Other processes may have filled the GPU.
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        torch.cuda.empty_cache()
        return None
    optimiser = torch.optim.AdamW(model.parameters())
    precision = experiment.trainer.precision
    dtype = AUTOCAST_DTYPES.get(precision)

    def step() -> None:
        optimiser.zero_grad()
        with bf16_products(device, precision):
            with torch.autocast(device, dtype, enabled=dtype is not None):
                value = lit.loss(model, batch, experiment.task.loss)
            value.backward()
        optimiser.step()

    ms = measure({"step": step}, repeats=1, device=device)["step"].ms
    # The process of a sweep lives as long as its runs, which need the memory.
    if device == "cuda":
        torch.cuda.empty_cache()
    if ms is None:
        return None
    # Scale to the full batch, which the processes share.
    return ms * optim.batch / size / plan.processes.count
