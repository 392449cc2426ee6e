"""Workloads: a mechanism alone, an encoder block, a step of the whole model; forward only or with its backward."""

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from itertools import cycle, islice

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from ..attention.base import Attention
from ..data.datamodule import Batch
from ..model.dropout import Dropout
from ..model.multihead import Multihead
from ..train import build, lit_module
from ..train.optim import adamw
from .contestants import Shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Inputs:
    """Tensors of one shape, shared by its contestants: q, k, v (N,H,L,D) in the shape's dtype; x (N,L,d) in float32,
    which autocast narrows; the gradient that an output is handed in the backward pass."""

    def __init__(self, shape: Shape, device: str):
        self.shape, self.device = shape, device
        self._gradients: dict[tuple, Tensor] = {}

    @cached_property
    def qkv(self) -> list[Tensor]:
        s = self.shape
        return [
            self._normal((s.batch, s.heads, s.n, s.head_dim), DTYPES[s.dtype], i).requires_grad_() for i in range(3)
        ]

    @cached_property
    def x(self) -> Tensor:
        s = self.shape
        return self._normal((s.batch, s.n, s.heads * s.head_dim), torch.float32, 3).requires_grad_()

    def gradient(self, out: Tensor) -> Tensor:
        key = out.shape, out.dtype
        if key not in self._gradients:
            self._gradients[key] = self._normal(out.shape, out.dtype, 4)
        return self._gradients[key]

    def _normal(self, size: Iterable[int], dtype: torch.dtype, seed: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(size, generator=generator, device=self.device).to(dtype)


def attention(config: DictConfig, inputs: Inputs, mode: str, compiled: bool) -> tuple[Callable[[], None], nn.Module]:
    """The step and the mechanism: on q, k and v, or on x if it needs the token vectors (a Mixer, a Block)."""
    block = build.block_factory(config)()
    mixer = getattr(block, "mixer", block)
    if not isinstance(mixer, Multihead):
        return _step(mixer, (inputs.x,), inputs, mode, compiled), mixer
    mechanism: Attention = mixer.attention
    q, k, v = inputs.qkv
    return _step(mechanism, (q, q if mechanism.shares_qk else k, v), inputs, mode, compiled), mechanism


def block(config: DictConfig, inputs: Inputs, mode: str, compiled: bool) -> Callable[[], None]:
    """Norms, projections and MLP included."""
    return _step(build.block_factory(config)(), (inputs.x,), inputs, mode, compiled)


def _step(part: nn.Module, given: tuple[Tensor, ...], inputs: Inputs, mode: str, compiled: bool) -> Callable[[], None]:
    part.to(inputs.device).train(mode == "training")
    if compiled:
        part.compile(dynamic=False)

    def forward() -> Tensor:
        with _autocast(inputs.device, inputs.shape.dtype):
            out = part(*given, None)
        return out[0] if isinstance(out, tuple) else out

    def training() -> None:
        out = forward()
        out.backward(inputs.gradient(out))
        for x in given:
            x.grad = None
        part.zero_grad()

    return training if mode == "training" else torch.no_grad()(forward)


def model_step(
    config: DictConfig, device: str, dtype: str, mode: str, *, source: str, compiled: bool, capturable: bool = False
) -> Callable[[], None]:
    """The whole classifier on a batch: its forward pass, or forward, backward and optimiser.

    source: ``random``, one batch of full rows, which needs no data; ``data``, eight batches of the task in turn.
    """
    torch.manual_seed(0)
    model = classifier(config).to(device).train(mode == "training")
    if compiled:
        model.compile(dynamic=False)
    parts = config.optim.batch // (config.optim.micro_batch or config.optim.batch) if source == "data" else 1
    batches = cycle(_batches(config, source, device, parts))
    autocast, kind = partial(_autocast, device, dtype), build.loss(config)

    @torch.no_grad()
    def inference() -> None:
        for batch in islice(batches, parts):
            with autocast():
                model(batch.inputs, batch.mask, batch.positions)

    if mode == "inference":
        return inference
    optimiser = adamw(model, config.optim, capturable=capturable)

    def training() -> None:
        for batch in islice(batches, parts):
            with autocast():
                value = lit_module.loss(model, batch, kind) / parts
            value.backward()
        optimiser.step()
        optimiser.zero_grad()  # so that between two steps lie parameters and the optimiser's state, nothing else

    return training


def classifier(config: DictConfig) -> nn.Module:
    """The contestant's model; with ``attn.torch_dropout`` torch's own dropout is in the place of ours."""
    model = build.classifier(config)
    if config.attn.get("torch_dropout"):
        for part in list(model.modules()):
            for name, child in part.named_children():
                if isinstance(child, Dropout):
                    setattr(part, name, nn.Dropout(child.p))
    return model


def _autocast(device: str, dtype: str) -> torch.autocast:
    return torch.autocast(device, DTYPES[dtype], enabled=dtype != "fp32")


def _batches(config: DictConfig, source: str, device: str, parts: int) -> list[Batch]:
    if source == "random":
        return [random_batch(config, device)]
    data = build.task_data(config)
    data.setup()
    on_device = lambda x: None if x is None else x.to(device)
    return [Batch(*map(on_device, batch)) for batch in islice(data.train_dataloader(), 8 * parts)]


def random_batch(config: DictConfig, device: str) -> Batch:
    """Full rows of random tokens or features, with random labels."""
    task, generator = config.task, torch.Generator().manual_seed(0)
    shape = (config.optim.batch, task.towers, task.length)
    if task.get("vocab") is None:
        inputs = torch.randn(*shape, task.features, generator=generator)
    else:
        inputs = torch.randint(1, task.vocab, shape, generator=generator)
    if build.loss(config) == "mse":
        label = torch.rand(shape[0], generator=generator)
    else:
        label = torch.randint(task.outputs, shape[:1], generator=generator)
    return Batch(inputs.to(device), None, label.to(device))


def captured(step: Callable[[], None], pool: tuple) -> Callable[[], None]:
    """The same step as one CUDA graph: its launches cost one. Its inputs must be the same tensors at every call.

    Graphs that leave nothing behind and never run at once may share the memory of one ``pool``.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay
