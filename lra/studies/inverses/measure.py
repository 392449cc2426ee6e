"""Errors of iterative inverses over their steps, and the rows of the tables."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from ...ops.pinv import cubic, newton
from .matrices import InvertedLayer

Iteration = Callable[..., Tensor]
SYMMETRIC: dict[str, Iteration] = {  # for the matrices of a Gaussian kernel
    "Newton, SOFT's code (ridge 0.01)": partial(newton, init="soft", ridge=0.01),
    "Newton, paper": partial(newton, init="paper"),
    "Newton, SOFT++'s code": partial(newton, init="softpp"),
    "cubic, start by two norms": partial(cubic, init="two_norms"),
}
OTHER: dict[str, Iteration] = {  # Newton's iteration of SOFT begins with A itself, not its transpose
    "cubic, start by column sum": partial(cubic, init="per_matrix"),
    "cubic, start by two norms": SYMMETRIC["cubic, start by two norms"],
}


class Error(NamedTuple):
    """The relative error of an iteration after some steps over n matrices: median, smallest and largest."""

    layer: InvertedLayer
    iteration: str
    steps: int
    measure: str  # AXA: ||A X A - A|| / ||A|| | XAX: ||X A X - X|| / ||X||, Frobenius norms
    median: float
    low: float
    high: float
    n: int


class Norm(NamedTuple):
    """A spectral norm over n matrices: median, smallest and largest."""

    layer: InvertedLayer
    matrix: str
    median: float
    low: float
    high: float
    n: int


@torch.no_grad()
def errors(layers: Iterable[InvertedLayer], steps: list[int], dtype: torch.dtype) -> Iterator[Error]:
    """Run every iteration that is defined for a layer's matrices.

    Args:
        layers: layers of matrices.
        steps: numbers of steps after which the error is measured, in double precision.
        dtype: dtype of the iteration.
    """
    for layer in layers:
        for name, iteration in (SYMMETRIC if layer.symmetric else OTHER).items():
            for k in steps:
                both = [residuals(a.double(), iteration(a.to(dtype), steps=k).double()) for a in layer.inner]
                for measure, values in zip(("AXA", "XAX"), zip(*both, strict=True), strict=True):
                    yield Error(layer, name, k, measure, *spread(values))


def residuals(a: Tensor, x: Tensor) -> tuple[float, float]:
    """Relative errors of the first two equations of Penrose (1955), A X A = A and X A X = X, of one matrix."""
    product = a @ x
    first = (product @ a - a).norm() / a.norm()
    second = (x @ product - x).norm() / x.norm()
    return first.item(), second.item()


def norms(layers: Iterable[InvertedLayer]) -> Iterator[Norm]:
    """Summarise the norms of each layer."""
    for layer in layers:
        for matrix, values in layer.norms.items():
            yield Norm(layer, matrix, *spread(values))


def spread(values: Iterable[float]) -> tuple[float, float, float, int]:
    """Median, smallest and largest of values, and their number; infinite ones count."""
    found = torch.tensor(list(values), dtype=torch.float64).nan_to_num(nan=torch.inf)
    return median(found.tolist()), found.min().item(), found.max().item(), len(found)
