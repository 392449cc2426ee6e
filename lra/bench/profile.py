"""A profile of training steps: time by operator and by kind of operator, and the share that is not arithmetic."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat

import lightning as L
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

from ..console import log
from ..data.datamodule import Batch
from ..results.table import Table, frame
from ..train.callbacks import Divergence, Stopwatch
from ..train.compilation import allow_many_compilations
from ..train.lit import LitClassifier
from ..train.plan import Plan, make_plan
from ..train.trainer import make_trainer
from . import contestants
from .contestants import BenchOptions, Shape
from .workloads import classifier

# Steps before the profile, and operators in its table.
WARMUP = 3
TOP = 15
HEAD = ("operator", "kind", "ms", "share", "calls")
PYTHON = "Python and the trainer, or the device idle"
ELEMENTWISE = "element-wise and reductions"
# Kinds of operators with a pattern of their names. The first match counts; the rest are element-wise or reductions.
KINDS = {
    PYTHON: r"^Optimizer|^\[pl\]|^enumerate|autograd::|Backward\d*$|^_[A-Z]",
    # Kernels of torch.compile on a GPU: their names list all operators that they fuse.
    ELEMENTWISE: r"^triton_",
    "matrix products": r"mm$|mm_|bmm|matmul|linear|conv|_scaled_dot_product|attention|landmark_product",
    "selection and random numbers": r"topk|sort|rand|bernoulli|uniform_|normal_|dropout$|token_scores",
    "waiting for the device": r"_local_scalar_dense|item|is_nonzero|Synchronize|equal$",
    "moving data": r"copy|clone|cat$|stack|contiguous|gather|scatter|index|embedding|zero|fill|empty|pad|repeat"
    r"|select_backward|slice_backward|Memcpy|Memset|detach|view|reshape|transpose|expand|as_strided|resize"
    r"|::t$|mT$|::to$|::select$|::slice$|squeeze|split|chunk|unbind|flatten|permute|flip|roll|alias|resolve_conj|lift_",
    "optimiser": r"adam",
}
# Kinds that count as arithmetic.
ARITHMETIC = ("matrix products", ELEMENTWISE, "optimiser", "selection and random numbers")


class _Watch(L.Callback):
    """A callback that times the batches from ``first_batch`` on, and profiles them if ``profiled``."""

    def __init__(self, device: str, first_batch: int, profiled: bool):
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.device = device
        self.first_batch = first_batch
        self.profiler = profile(activities=activities) if profiled else None

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        if batch_idx == self.first_batch:
            if self.profiler:
                self.profiler.start()
            self.began = self._now()

    def on_train_end(self, trainer, module) -> None:
        self.seconds = self._now() - self.began
        if self.profiler:
            self.profiler.stop()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def table(options: BenchOptions, name: str, device: str) -> Table:
    """Profile ``options.steps`` training steps at the first shape.

    Args:
        options: options of the benchmark.
        name: name of the contestant.
        device: ``cpu`` or ``cuda``.

    Returns:
        The operators that take most time, then the time and share of each kind.

    Raises:
        ValueError: the mechanism cannot run here.
    """
    keys = ["tasks", *Shape._fields]
    if options.batches == "data":
        # The length is the task's own.
        keys.remove("n")
        keys.append("pads")
    shortened = [key for key in keys if len(getattr(options, key)) > 1]
    if shortened:
        log(f"what=profile takes the first value of {', '.join(shortened)}")
    first_values = [getattr(options, key)[0] for key in Shape._fields]
    shape = Shape(*first_values)
    pad = None
    if options.batches == "data":
        shape = shape._replace(n=None)
        pad = options.pads[0]
    overrides = contestants.shape_overrides(options, options.tasks[0], shape, pad)
    contestant = contestants.experiment(name, overrides)

    # The schedule must be at least as long as the profile.
    steps = max(contestant.optim.steps, WARMUP + options.steps)
    contestant = contestant.replace(
        # Not ``replace``, which would require that eval_every divides the steps.
        optim=contestant.optim.model_copy(update={"steps": steps}),
        trainer=contestant.trainer.replace(device=device, devices=1, precision=options.dtype[0]),
    )
    if contestant.unavailable:
        raise ValueError(contestant.unavailable)

    # The same steps twice, without and with the profiler, which slows them down.
    plan = make_plan(contestant)
    plain_seconds, _ = _run(plan, options, profiled=False)
    profiled_seconds, events = _run(plan, options, profiled=True)

    # Milliseconds and calls per step of each operator, without the operators that it calls. Events of the device are
    # kernels, whose time is in the event of the operator that launched them.
    self_time = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    ms = {}
    calls = {}
    for event in events:
        if event.key and event.device_type == DeviceType.CPU:
            ms[event.key] = getattr(event, self_time) / 1000 / options.steps
            calls[event.key] = event.count / options.steps
    step_ms = 1000 * plain_seconds / options.steps
    profiled_ms = 1000 * profiled_seconds / options.steps

    # The operators that take most time.
    lines = []
    slowest_first = sorted(ms, key=lambda key: -ms[key])
    for key in slowest_first[:TOP]:
        num_calls = f"{calls[key]:.0f}"
        lines.append([key, kind(key), *_time_cells(ms[key], profiled_ms), num_calls])

    # Sums of each kind; in the remaining time Python runs, or the device is idle.
    sums = Counter({PYTHON: profiled_ms - sum(ms.values())})
    for key, value in ms.items():
        sums[kind(key)] += value
    arithmetic = sum(sums[kind_name] for kind_name in ARITHMETIC)
    kinds = [*sums.most_common(), ("not arithmetic", profiled_ms - arithmetic)]
    for kind_name, value in kinds:
        lines.append(["all", kind_name, *_time_cells(value, profiled_ms), ""])
    threads = torch.get_num_threads()
    return Table(
        name="profile",
        title=f"{contestant.task.name} {name}: {step_ms:.1f} ms per training step, {profiled_ms:.1f} profiled",
        about=f"Batch {shape.batch}, n {contestant.task.length}, {shape.dtype}, {device}, {threads} threads, "
        f"{options.steps} steps.",
        cells=frame(HEAD, lines),
        words=("operator", "kind"),
    )


def _time_cells(ms: float, total: float) -> tuple[str, str]:
    """Format milliseconds, and their share of the total."""
    share = ms / total
    return f"{ms:.2f}", f"{share:.1%}"


def kind(operator: str) -> str:
    """Return the kind of an operator, a key of KINDS: the first whose pattern matches, else ELEMENTWISE."""
    for name, pattern in KINDS.items():
        if re.search(pattern, operator):
            return name
    return ELEMENTWISE


def _run(plan: Plan, options: BenchOptions, *, profiled: bool) -> tuple[float, Sequence[FunctionEventAvg]]:
    """Train for the warm-up and ``options.steps`` steps; return the seconds of the latter and the profiler's events."""
    torch.manual_seed(0)
    model = classifier(plan.experiment)
    if options.compile:
        allow_many_compilations()
        model.compile()
    # Batches of data come in micro-batches, several of which may be one step.
    optim = plan.experiment.optim
    num_parts = optim.micro_batches if options.batches == "data" else 1
    watch = _Watch(plan.device, WARMUP * num_parts, profiled)
    trainer = make_trainer(
        plan,
        [Divergence(), Stopwatch(), watch],
        max_steps=WARMUP + options.steps,
        accumulate_grad_batches=num_parts,
        gradient_clip_val=optim.clip_norm,
        limit_val_batches=0,
        logger=False,
    )
    batches: Iterable[Batch]
    if options.batches == "data":
        plan.data.setup()
        batches = plan.data.train_dataloader()
    else:
        batches = repeat(plan.experiment.random_batch(plan.device))
    trainer.fit(LitClassifier.of(plan.experiment, model, seed=0), batches)
    return watch.seconds, watch.profiler.key_averages() if watch.profiler else []
