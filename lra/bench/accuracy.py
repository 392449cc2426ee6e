"""The rounding error of a mechanism: its output and gradients compared with the same mechanism in float64."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from . import workloads
from .workloads import Inputs


def errors(experiment: Experiment, inputs: Inputs, mode: str) -> tuple[float, ...]:
    """Measure ||x - y|| / ||y|| in the 2-norm, x in the dtype of the shape, y in float64, both without dropout.

    Both have the same weights, inputs and random seed. If rounding changes which token is selected, the error has the
    size of that change.

    Args:
        experiment: experiment of the contestant.
        inputs: tensors of the shape, rounded to its dtype.
        mode: ``inference`` or ``training``.

    Returns:
        The error of the output and, in training, the error of the gradients of all inputs together.
    """
    # The mechanism, and its copy in float64. A tensor that is both query and key stays one tensor.
    part, tensors = workloads.mechanism(experiment, inputs)
    part.to(inputs.device).eval()
    exact = copy.deepcopy(part).double()
    doubles = {x: x.detach().double().requires_grad_() for x in tensors}
    exact_tensors = [doubles[x] for x in tensors]

    # The outputs of both, with the same random numbers.
    def forward(module: nn.Module, values: list[Tensor], dtype: str) -> Tensor:
        torch.manual_seed(0)
        with torch.set_grad_enabled(mode == "training"), workloads.autocast(inputs.device, dtype):
            out = module(*values, None)
        return out[0] if isinstance(out, tuple) else out

    rough_out = forward(part, tensors, inputs.shape.dtype)
    exact_out = forward(exact, exact_tensors, "fp32")
    output_error = _distance([rough_out], [exact_out])
    if mode != "training":
        return (output_error,)

    # The gradients of both; 0 for an input on which the output does not depend.
    weights = inputs.gradient(rough_out)

    def backward(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        out_gradient = weights.to(out.dtype)
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
