"""What a benchmark measures: a mechanism alone and its rounding error, an encoder block, a step of the whole model.

A step is a forward pass (mode ``inference``) or a forward and backward pass (``training``).
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import cycle, islice

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from ..attention.base import Attention
from ..config.experiment import Experiment
from ..data.datamodule import Batch
from ..model.dropout import Dropout
from ..model.multihead import Multihead
from ..ops.precision import bf16_products
from ..train import lit
from ..train.compilation import GRAPHS, allow_many_compilations
from ..train.optim import adamw
from .contestants import Shape

# Batches of data that the steps take in turn.
NUM_BATCHES = 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Inputs:
    """The tensors of one shape, shared by its contestants.

    They are q, k, v (N,H,L,D) in the shape's dtype; x (N,L,d) in float32, which autocast converts; and the gradient of
    an output for the backward pass.
    """

    def __init__(self, shape: Shape, device: str):
        self.shape = shape
        self.device = device
        self._gradients: dict[tuple, Tensor] = {}

    @cached_property
    def qkv(self) -> list[Tensor]:
        """q, k and v (N,H,L,D)."""
        s = self.shape
        return [
            self._normal((s.batch, s.heads, s.n, s.head_dim), DTYPES[s.dtype], i).requires_grad_() for i in range(3)
        ]

    @cached_property
    def x(self) -> Tensor:
        """Token vectors (N,L,d)."""
        s = self.shape
        return self._normal((s.batch, s.n, s.heads * s.head_dim), torch.float32, 3).requires_grad_()

    def gradient(self, out: Tensor) -> Tensor:
        """A fixed random gradient in the shape and dtype of an output."""
        key = out.shape, out.dtype
        if key not in self._gradients:
            self._gradients[key] = self._normal(out.shape, out.dtype, 4)
        return self._gradients[key]

    def _normal(self, size: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(size, generator=generator, device=self.device).to(dtype)


def mechanism(experiment: Experiment, inputs: Inputs) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a mechanism alone, and choose its inputs: q, k and v, or x if it is a Mixer or a whole block such as Luna.

    Args:
        experiment: experiment of the contestant.
        inputs: tensors of the shape.
    """
    block = experiment.block_factory()()
    # A Mixer, or a mechanism that is a whole block, computes on token vectors.
    mixer = getattr(block, "mixer", block)
    if not isinstance(mixer, Multihead):
        return mixer, (inputs.x,)

    # A mechanism alone computes on the heads, without the projections.
    attention: Attention = mixer.attention
    q, k, v = inputs.qkv
    if attention.shared_qk:
        return attention, (q, q, v)
    return attention, (q, k, v)


def rounding_errors(experiment: Experiment, inputs: Inputs, mode: str) -> tuple[float, ...]:
    """Measure the rounding error ||x - y|| / ||y||: x in the dtype of the shape, y in float64, both without dropout.

    Both have the same weights, inputs and random seed. If rounding changes which token is selected, the error has the
    size of that change.

    Args:
        experiment: experiment of the contestant.
        inputs: tensors of the shape.
        mode: ``inference`` or ``training``.

    Returns:
        The error of the output and, in training, the error of the gradients of all inputs together.
    """
    # The mechanism, and its copy in float64. A tensor that is both query and key stays one tensor.
    part, tensors = mechanism(experiment, inputs)
    part.to(inputs.device).eval()
    exact = copy.deepcopy(part).double()
    doubles = {x: x.detach().double().requires_grad_() for x in tensors}
    exact_tensors = [doubles[x] for x in tensors]

    # The outputs of both, with the same random numbers.
    def forward(module: nn.Module, values: Sequence[Tensor], dtype: str) -> Tensor:
        torch.manual_seed(0)
        with torch.set_grad_enabled(mode == "training"), autocast(inputs.device, dtype):
            out = module(*values, None)
        return out[0] if isinstance(out, tuple) else out

    rough_out = forward(part, tensors, inputs.shape.dtype)
    exact_out = forward(exact, exact_tensors, "fp32")
    output_error = _distance([rough_out], [exact_out])
    if mode != "training":
        return (output_error,)

    # The gradients of both; 0 for an input on which the output does not depend.
    fixed_gradient = inputs.gradient(rough_out)

    def backward(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        out_gradient = fixed_gradient.to(out.dtype)
        return torch.autograd.grad(out, leaves, out_gradient, allow_unused=True, materialize_grads=True)

    rough_gradients = backward(rough_out, list(doubles))
    exact_gradients = backward(exact_out, list(doubles.values()))
    return output_error, _distance(rough_gradients, exact_gradients)


def _distance(values: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """Compute ||x - y|| / ||y|| of all values together."""
    x = _flat(values)
    y = _flat(exact)
    distance = (x - y).norm() / y.norm()
    return distance.item()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    vectors = [tensor.detach().double().flatten() for tensor in tensors]
    return torch.cat(vectors)


def layer_sizes(experiment: Experiment) -> dict[str, int | None]:
    """Count the parameters of a layer, projections included, and the numbers in its state, None without a state.

    Args:
        experiment: experiment of the contestant.
    """
    block = experiment.block_factory()()
    # A mechanism that is a whole block is the layer; otherwise the mixer is, and its state is in the mechanism.
    layer = getattr(block, "mixer", block)
    stateful = layer.attention if isinstance(layer, Multihead) else layer
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    return {"parameters": parameters, "state": getattr(stateful, "state_size", None)}


def step(
    part: nn.Module, tensors: tuple[Tensor, ...], inputs: Inputs, mode: str, compiled: bool | str
) -> Callable[[], object]:
    """Build the step of a mechanism alone, or of an encoder block with its norms, projections and MLP.

    Args:
        part: mechanism or block.
        tensors: inputs of the part.
        inputs: tensors of the shape.
        mode: ``inference`` or ``training``.
        compiled: whether to use torch.compile; a mode of it counts as true, since CUDA graphs are for ``model_step``.
    """
    part.to(inputs.device).train(mode == "training")
    if compiled:
        allow_many_compilations()
        part.compile(dynamic=False)

    def forward() -> Tensor:
        with autocast(inputs.device, inputs.shape.dtype):
            out = part(*tensors, None)
        return out[0] if isinstance(out, tuple) else out

    def training() -> None:
        out = forward()
        out.backward(inputs.gradient(out))
        # Gradients are allocated again in the next step, as in a training.
        for x in tensors:
            x.grad = None
        part.zero_grad()

    @torch.no_grad()
    def inference() -> None:
        forward()

    return training if mode == "training" else inference


def model_step(
    experiment: Experiment, device: str, dtype: str, source: str, mode: str, compiled: bool | str
) -> Callable[[], None]:
    """Build the step of the whole classifier on a batch: its forward pass, or forward, backward and optimiser.

    Args:
        experiment: experiment of the contestant.
        device: ``cpu`` or ``cuda``.
        dtype: dtype of autocast.
        source: ``random``, one batch of full sequences, which needs no data; ``data``, eight batches in turn.
        mode: ``inference`` or ``training``.
        compiled: whether to use torch.compile; ``auto`` and ``reduce-overhead``: with CUDA graphs, unless a step has
            several micro-batches. A training decides ``auto`` by the widths of its batches.
    """
    torch.manual_seed(0)
    model = classifier(experiment).to(device).train(mode == "training")
    optim = experiment.optim

    # Batches of data may be divided into micro-batches, which CUDA graphs do not support.
    num_parts = optim.micro_batches if source == "data" else 1
    if compiled:
        with_graphs = isinstance(compiled, str) and num_parts == 1
        allow_many_compilations()
        model.compile(dynamic=False, mode=GRAPHS if with_graphs else None)
    batches = cycle(_batches(experiment, source, device, num_parts))
    rounded = partial(autocast, device, dtype)
    # As in a training: bfloat16 products are computed in float32 on a CPU without bfloat16 instructions, unless
    # torch.compile is used, since Dynamo does not trace ``ProductsInFloat32``.
    products = partial(bf16_products, device, "fp32" if compiled else dtype)

    @torch.no_grad()
    def inference() -> None:
        for batch in islice(batches, num_parts):
            with rounded(), products():
                model(batch.inputs, batch.mask, batch.positions)

    if mode == "inference":
        return inference
    optimiser = adamw(model, dict(optim))

    def training() -> None:
        for batch in islice(batches, num_parts):
            with products():
                with rounded():
                    value = lit.loss(model, batch, experiment.task.loss) / num_parts
                value.backward()
        if optim.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm)
        optimiser.step()
        # Between two steps only parameters and the optimiser's state are allocated.
        optimiser.zero_grad()

    return training


def classifier(experiment: Experiment) -> nn.Module:
    """Build the contestant's model; ``attn.torch_dropout`` replaces our dropout by torch's own."""
    model = experiment.classifier()
    if experiment.attn.get("torch_dropout"):
        # Children are replaced in place, so the modules are listed first.
        for part in list(model.modules()):
            for name, child in part.named_children():
                if isinstance(child, Dropout):
                    setattr(part, name, nn.Dropout(child.p))
    return model


def autocast(device: str, dtype: str) -> torch.autocast:
    """The context in which a contestant of this dtype runs; fp32 changes nothing."""
    return torch.autocast(device, DTYPES[dtype], enabled=dtype != "fp32")


def _batches(experiment: Experiment, source: str, device: str, parts: int) -> list[Batch]:
    if source == "random":
        return [experiment.random_batch(device)]
    # The micro-batches of a few batches of the task.
    data = experiment.task_data()
    data.setup()
    return [move_data_to_device(batch, device) for batch in islice(data.train_dataloader(), NUM_BATCHES * parts)]
