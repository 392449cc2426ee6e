"""The callback that compiles the model of a run by torch.compile, with CUDA graphs where they are possible."""

import itertools
from collections.abc import Iterable

import lightning as L
import torch
from torch import nn

from ..console import log
from ..data.datamodule import Batch, TaskData

# With trainer.compile=auto, use CUDA graphs only if batches have at most this many widths: each adds a graph to memory.
MAX_NUM_WIDTHS = 8
GRAPHS = "reduce-overhead"
# Trial runs of a step: the first compiles, the second records a CUDA graph, the third replays it.
TRIALS = 3
# Number of training batches that are searched for a second width.
MAX_SEARCHED_BATCHES = 20
# Limit of compiled graphs per function. torch's default of 8 counts the models, shapes and modes of the whole process;
# beyond the limit a function runs uncompiled.
MAX_NUM_COMPILED = 1024
NAMES = {GRAPHS: "CUDA graphs", None: "torch.compile"}


class Compile(L.Callback):
    """Compiles the model of a run before its first step, or logs why it runs without compilation.

    The trials change no result: the RNG is reseeded before every step, and buffers are restored.

    Args:
        title: title of the run.
        option: option ``trainer.compile``.
    """

    def __init__(self, title: str, option: bool | str):
        self.title = title
        self.option = option

    def on_train_start(self, trainer, module) -> None:
        data = trainer.datamodule
        device = module.device.type
        is_packed = any(getattr(part, "packed", False) for part in module.model.modules())
        if device == "cpu" and is_packed:
            log(f"{self.title}: continues without torch.compile: with data.pad=none each batch has its own shape")
            return
        training_batches = trial_batches(data.train_dataloader())
        # None if this rank has no validation batch.
        evaluation_batch = next(iter(data.val_dataloader()), None)
        for mode in list_modes(self.option, data, device):
            compile_forward(module.model, mode)
            try:
                with trainer.precision_plugin.forward_context():
                    _run_trial(module, training_batches, evaluation_batch)
            # The compiler, a kernel or an allocator may raise any exception.
            except Exception as error:
                del module.model.forward
                message = " ".join(f"{type(error).__name__} {error}".split())
                log(f"{self.title}: continues without {NAMES[mode]}: {message[:200]}")
            else:
                return


def list_modes(option: bool | str, data: TaskData, device: str) -> list[str | None]:
    """List the modes of torch.compile in the order in which they are tried.

    Args:
        option: option ``trainer.compile``.
        data: data of the run, set up.
        device: cpu | cuda.

    Returns:
        ``reduce-overhead`` (CUDA graphs) comes first if the option names it or, for ``auto``, on a GPU if batches have
        few widths. A step of several micro-batches has no CUDA graphs: each replay would overwrite the gradients of the
        micro-batch before. None, the default mode, is last.
    """
    if data.micro_batch < data.batch:
        return [None]
    uses_graphs = option == GRAPHS
    if option == "auto" and device == "cuda":
        uses_graphs = data.count_widths() <= MAX_NUM_WIDTHS
    return [GRAPHS, None] if uses_graphs else [None]


def compile_forward(model: nn.Module, mode: str | None) -> None:
    """Compile the forward pass of a model; ``del model.forward`` undoes it.

    Evaluation has many shapes and is compiled without CUDA graphs.
    """
    allow_many_compilations()
    evaluation_forward = torch.compile(model.forward)
    training_forward = torch.compile(model.forward, mode=mode) if mode else evaluation_forward

    def forward(*args):
        return training_forward(*args) if model.training else evaluation_forward(*args)

    model.forward = forward


def allow_many_compilations() -> None:
    """Let torch.compile compile a function for each model, shape and mode of this process."""
    torch._dynamo.config.recompile_limit = MAX_NUM_COMPILED
    torch._dynamo.config.accumulated_recompile_limit = MAX_NUM_COMPILED


def trial_batches(loader: Iterable[Batch]) -> list[Batch]:
    """Choose the training batches of a trial: the first one, and the first of another width among MAX_SEARCHED_BATCHES.

    The second width makes torch.compile generate kernels for any width, which can fail where the first width succeeds.
    """
    batches: list[Batch] = []
    widths = set()
    for batch in itertools.islice(loader, MAX_SEARCHED_BATCHES):
        # The padded length L: inputs are (B,T,L) or (B,T,L,F).
        width = batch.inputs.shape[2]
        if width not in widths:
            batches.append(batch)
            widths.add(width)
        if len(widths) > 1:
            break
    return batches


def _run_trial(module, training_batches: list[Batch], evaluation_batch: Batch | None) -> None:
    """Run training steps and an evaluation without an optimiser, and restore the buffers of the model."""
    model = module.model
    buffers = [buffer.clone() for buffer in model.buffers()]
    try:
        first = training_batches[0]
        for batch in [first] * TRIALS + training_batches[1:]:
            module.batch_loss(batch).backward()
            model.zero_grad()
        if evaluation_batch is not None:
            model.eval()
            with torch.no_grad():
                module.on_validation_epoch_start()
                module.validation_step(evaluation_batch, 0)
    finally:
        model.train()
        model.zero_grad()
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
