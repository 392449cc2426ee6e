"""The rounding error of a mechanism: its output and gradients beside those of the same mechanism in float64."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from ..config.experiment import Experiment
from . import workloads
from .workloads import Inputs


def errors(experiment: Experiment, inputs: Inputs, mode: str) -> tuple[float, ...]:
    """Measure ||x - y|| / ||y|| in the 2-norm; y has the same weights, inputs and random numbers, x is without dropout.

    If rounding changes which token is kept, the error has the size of that change.

    Args:
        experiment: experiment of the contestant.
        inputs: tensors of the shape, rounded to its dtype.
        mode: ``inference`` or ``training``.

    Returns:
        The error of the output and, in training, that of the gradients by all inputs together.
    """
    part, given = workloads.mechanism(experiment, inputs)
    part.to(inputs.device).eval()
    exact = copy.deepcopy(part).double()
    doubles = {x: x.detach().double().requires_grad_() for x in given}  # a tensor that is given twice stays one
    outputs = []
    for module, values, dtype in ((part, given, inputs.shape.dtype), (exact, [doubles[x] for x in given], "fp32")):
        torch.manual_seed(0)
        with torch.set_grad_enabled(mode == "training"), workloads.autocast(inputs.device, dtype):
            out = module(*values, None)
        outputs.append(out[0] if isinstance(out, tuple) else out)
    measured = [_distance(outputs[:1], outputs[1:])]
    if mode == "training":
        weights, leaves = inputs.gradient(outputs[0]), (list(doubles), list(doubles.values()))
        gradients = [  # 0 for an input on which the output does not depend
            torch.autograd.grad(out, values, weights.to(out.dtype), allow_unused=True, materialize_grads=True)
            for out, values in zip(outputs, leaves, strict=True)
        ]
        measured.append(_distance(*gradients))
    return tuple(measured)


def _distance(values: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    x, y = (torch.cat([part.detach().double().flatten() for part in parts]) for parts in (values, exact))
    return ((x - y).norm() / y.norm()).item()
