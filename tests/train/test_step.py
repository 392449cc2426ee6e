"""A training step does not wait for the device; evaluation takes as many rows as there is memory for.

On the device meta, which has no memory, a read of a number or a selection by a mask fails; on a GPU it would
wait for all work. Not tried: triton's kernels, and what is read once per step or evaluation on purpose
(``Pretrainer.error``, the scores of ``LitClassifier``).
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lra.config import CONF
from lra.config.experiment import MIN_GPU_EVAL_BATCH, Experiment
from lra.data.datamodule import Batch
from lra.model.pretrainer import draw_holes
from lra.train.lit import LitClassifier, seed_device
from lra.train.optim import adamw, schedule

FEW = ("cur_abs", "sdpa", "nystrom", "luna", "performer")
PAD = ("batch", "compact")


class NoWaiting(TorchDispatchMode):
    """Fails on a copy between CPU and device that the host waits for; a meta tensor itself refuses to be read."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device", args[0].device).type != args[0].device.type:
            assert kwargs.get("non_blocking"), f"{func} from {args[0].device} to {kwargs['device']}"
            self.copies += 1
        devices = {x.device.type for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)}
        assert len(devices) < 2, f"{func} copies a number to the device"
        return func(*args, **kwargs)

    copies = 0


def module_and_data(name, device, data_root, *words):
    made = config(name, f"data.root={data_root}", "task.masked_id=5", "model.pool=cls", *words)
    data = made.task_data()
    data.setup()
    data.splits = {key: split.to(device) for key, split in data.splits.items()}
    with torch.device(device):
        model = made.classifier()
    module = LitClassifier.of(made, model, seed=0)
    module.on_fit_start()
    module.bad_step, module.loss_sum = module.bad_step.to(device), module.loss_sum.to(device)
    return module.train(), data, made


def step(module, data, number):
    batch = data.gather("train", np.arange(8 * number, 8 * number + 8), slice(None))
    module.training_step(batch, number).backward()


@pytest.mark.parametrize("pad", PAD)
@pytest.mark.parametrize("name", FEW)
def test_a_step_does_not_wait_for_the_device(name, pad, data_root, monkeypatch):
    """On the meta device, whose tensors hold no numbers; ``test_no_mechanism_waits`` covers every mechanism."""
    autocast = torch.autocast  # knows no meta device
    monkeypatch.setattr(torch, "autocast", lambda kind, **how: autocast("cpu" if kind == "meta" else kind, **how))
    module, data, _ = module_and_data(name, "meta", data_root, f"data.pad={pad}")
    with NoWaiting() as mode:
        step(module, data, 0)
    assert mode.copies == 1  # the indices of the examples


def test_the_order_of_many_steps_lies_on_the_device(data_root):
    _, data, _ = module_and_data("sdpa", "meta", data_root, "optim.micro_batch=4")
    batches = iter(data._training_batches())
    with NoWaiting() as mode:
        some = [next(batches) for _ in range(10)]
    assert mode.copies == 1 and {batch.inputs.device.type for batch in some} == {"meta"}


def test_waiting_is_noticed():
    x = torch.ones(3, device="meta")
    for wait in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x[x > 0], lambda: x.cpu()):
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)), NoWaiting():
            wait()
    with pytest.raises(AssertionError, match="_to_copy"), NoWaiting():
        torch.ones(3).to("meta")


@pytest.mark.gpu
@pytest.mark.parametrize("pad", PAD)
@pytest.mark.parametrize("name", FEW)
def test_a_step_does_not_wait_for_a_gpu(name, pad, data_root):
    module, data, made = module_and_data(name, "cuda", data_root, f"data.pad={pad}")
    optimiser = adamw(module.model, dict(made.optim))
    for number in range(3):
        torch.cuda.set_sync_debug_mode("error" if number else "default")  # the first step loads kernels
        try:
            seed_device(number, torch.device("cuda"))
            step(module, data, number)
            optimiser.step()
            optimiser.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_step_draws_what_it_drew_when_all_generators_were_seeded():
    for seed in (0, 5, 2**64 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(4)
        seed_device(seed, torch.device("cpu"))
        assert torch.equal(torch.rand(4), expected)


CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory"),
    "cpu": RuntimeError(CPU_ALLOCATOR),
    "c++": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
}


class Small(torch.nn.Module):
    """Raises an error above a number of examples."""

    def __init__(self, most, error):
        super().__init__()
        self.most, self.error, self.calls, self.encode_separately = most, error, [], False

    def forward(self, inputs, mask, positions):
        self.calls.append(len(inputs))
        if len(inputs) > self.most:
            raise self.error
        return inputs[:, 0, :1].float() * (1 if mask is None else mask[:, 0, :1])


def evaluation(model):
    module = LitClassifier.of(config("mean"), model, seed=0).eval()
    inputs = torch.arange(14)[:, None, None]
    return module, Batch(inputs, torch.ones_like(inputs, dtype=torch.bool), torch.zeros(14))


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_evaluation_continues_with_half_the_examples_if_memory_runs_out(error):
    module, batch = evaluation(Small(3, error))
    for _ in range(2):
        module.validation_step(batch, 0)
    assert [out.flatten().tolist() for out, _ in module._evaluated] == [list(range(14))] * 2
    assert module.model.calls == [14, 7, 3, 3, 3, 3, 2, 3, 3, 3, 3, 2] and module.eval_limit == 3
    for module.model.most, module.model.encode_separately in (
        (3, True),
        (0, False),
    ):  # examples interact; one is too many
        module.eval_limit = None
        with pytest.raises(type(error)):
            module.validation_step(batch, 0)


def test_another_error_of_the_model_is_not_retried():
    module, batch = evaluation(Small(3, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        module.validation_step(batch, 0)
    assert module.model.calls == [14]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced by Linux")
def test_evaluation_fits_into_a_memory_limit_of_the_process():
    """The address space of a child is limited to 512 MiB more; 14 examples take 14 times 128 MiB."""

    class Large(Small):
        def forward(self, inputs, mask, positions):
            self.calls.append(len(inputs))
            torch.empty(len(inputs), 2**25).fill_(1.0)
            return inputs[:, 0, :1].float()

    child = os.fork()
    if not child:
        module, batch = evaluation(Large(14, None))
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2**29
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        module.validation_step(batch, 0)
        is_retried = module.model.calls == [14, 7, 3, 3, 3, 3, 2] and len(module._evaluated[0][0]) == 14
        os._exit(0 if is_retried else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_more_rows_are_evaluated_on_a_gpu_unless_they_mix(monkeypatch):
    rows = lambda name, *words: config(name, "optim.batch=8", *words).eval_batch
    assert rows("cur_abs") == 8
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rows("cur_abs") == MIN_GPU_EVAL_BATCH and rows("cur_abs", "optim.batch=600") == 600
    assert rows("cur_abs", "trainer.device=cpu") == 8 and rows("cur_abs", "data.eval_batch=7") == 7
    assert rows("nystrom_original") == 8


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


def take_step(experiment: Experiment, model: nn.Module) -> None:
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


# Mamba's scan takes a step of Python per token; its other experiments differ in sizes.
SCANS = ("mamba_text", "mamba_retrieval", "mamba_image", "mamba_pathfinder", "mamba_pathfinder_x")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SCANS)) for name in EXPERIMENTS]
)
def test_no_experiment_waits(name):
    made = experiment(
        f"experiment={name}", *["attn=cur_abs"] * name.startswith(("curformer", "board", "listops_quick"))
    )
    # A third layer would do what the second does.
    made = made.replace(model=made.model.replace(layers=min(2, made.model.layers)))
    trained_and_evaluated(made)
    take_step(made, made.meta_model)
    if made.pretrained:
        with torch.device("meta"):
            model = made.pretrainer()
        some, ratio = batch(made), made.pretrain.ratio
        holes = draw_holes(ratio, some.inputs, some.mask) if ratio else None
        model.predict(model(some.inputs, some.mask, holes)).sum().backward()
