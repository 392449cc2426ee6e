"""torch.compile of the steps of a run, tried before the first one."""

import itertools

import lightning as L
import torch
from torch import nn

from ..console import log
from ..data.datamodule import Batch, TaskData

FEW = 8  # widths of batches up to which a CUDA graph for each is worth its memory
GRAPHS = "reduce-overhead"
REPEATS = 3  # of a step: the first compiles, the second records a graph, the third replays it
NAMES = {GRAPHS: "CUDA graphs", None: "torch.compile"}


def modes(wanted: bool | str, data: TaskData, device: str) -> list[str | None]:
    """List the modes of torch.compile in the order in which they are tried.

    Args:
        wanted: option ``trainer.compile``.
        data: data of the run, set up.
        device: cpu | cuda.

    Returns:
        ``reduce-overhead``, which replays CUDA graphs, first if it is wanted or, for ``auto``, if steps have few
        shapes. Of several micro-batches each one's gradients would be overwritten by the next one's graph.
    """
    few = device == "cuda" and data.micro_batch == data.batch and data.widths() <= FEW
    return [GRAPHS, None] if wanted == GRAPHS or (wanted == "auto" and few) else [None]


def compile_forward(model: nn.Module, mode: str | None) -> None:
    """Compile the forward pass of a model; evaluation, whose shapes are many, without CUDA graphs.

    ``del model.forward`` undoes it.
    """
    scores = torch.compile(model.forward)
    steps = torch.compile(model.forward, mode=mode) if mode else scores
    model.forward = lambda *given: (steps if model.training else scores)(*given)


class Compile(L.Callback):
    """Compiles the model of a run before its first step; a model that cannot be compiled stays as it is, with a line.

    What is tried changes no result: the random numbers of a step are functions of its number, and buffers are restored.

    Args:
        title: title of the run.
        wanted: option ``trainer.compile``.
    """

    def __init__(self, title: str, wanted: bool | str):
        self.title, self.wanted = title, wanted

    def on_train_start(self, trainer, module) -> None:
        data = trainer.datamodule
        if module.device.type == "cpu" and any(getattr(part, "packed", False) for part in module.model.modules()):
            log(f"{self.title}: goes on without torch.compile: data.pad=none has a shape for each batch")
            return
        batches = list(itertools.islice(data.train_dataloader(), 2)), next(iter(data.val_dataloader()), None)
        for mode in modes(self.wanted, data, module.device.type):
            compile_forward(module.model, mode)
            try:
                with trainer.precision_plugin.forward_context():
                    _try(module, *batches)
                return
            except Exception as error:  # of the compiler, of a kernel, of the memory
                del module.model.forward
                reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
                log(f"{self.title}: goes on without {NAMES[mode]}: {reason}")


def _try(module, steps: list[Batch], evaluation: Batch | None) -> None:
    """Make steps and an evaluation, of None if this process has no batch of dev, without an optimiser."""
    model, buffers = module.model, [buffer.clone() for buffer in module.model.buffers()]
    try:
        for batch in [steps[0]] * REPEATS + steps[1:]:
            module.batch_loss(batch).backward()
            model.zero_grad()
        if evaluation is not None:
            model.eval()
            with torch.no_grad():
                module.on_validation_epoch_start()
                module.validation_step(evaluation, 0)
    finally:
        model.train()
        model.zero_grad()
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
