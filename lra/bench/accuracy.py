"""The rounding error of a mechanism: its output and gradients compared with the same mechanism in float64."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from ..config.experiment import Experiment
from . import workloads
from .workloads import Inputs


def errors(experiment: Experiment, inputs: Inputs, mode: str) -> tuple[float, ...]:
    """Measure ||x - y|| / ||y|| in the 2-norm; y has the same weights, inputs and random numbers, x is without dropout.

    If rounding changes which token is selected, the error has the size of that change.

    Args:
        experiment: experiment of the contestant.
        inputs: tensors of the shape, rounded to its dtype.
        mode: ``inference`` or ``training``.

    Returns:
        The error of the output and, in training, the error of the gradients by all inputs together.
    """
    # The mechanism, and its copy in float64. A tensor that is both query and key stays one tensor.
    part, tensors = workloads.mechanism(experiment, inputs)
    part.to(inputs.device).eval()
    exact = copy.deepcopy(part).double()
    doubles = {x: x.detach().double().requires_grad_() for x in tensors}
    exact_tensors = [doubles[x] for x in tensors]

    # The outputs of both, with the same random numbers.
    outputs = []
    for module, values, dtype in ((part, tensors, inputs.shape.dtype), (exact, exact_tensors, "fp32")):
        torch.manual_seed(0)
        with torch.set_grad_enabled(mode == "training"), workloads.autocast(inputs.device, dtype):
            out = module(*values, None)
        outputs.append(out[0] if isinstance(out, tuple) else out)
    distances = [_distance(outputs[:1], outputs[1:])]

    # The gradients of both; 0 for an input on which the output does not depend.
    if mode == "training":
        weights = inputs.gradient(outputs[0])
        gradients = []
        for out, leaves in zip(outputs, (list(doubles), list(doubles.values())), strict=True):
            grads = torch.autograd.grad(out, leaves, weights.to(out.dtype), allow_unused=True, materialize_grads=True)
            gradients.append(grads)
        distances.append(_distance(*gradients))
    return tuple(distances)


def _distance(values: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """Compute ||x - y|| / ||y|| of all values together."""
    x = _flat(values)
    y = _flat(exact)
    return ((x - y).norm() / y.norm()).item()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])
