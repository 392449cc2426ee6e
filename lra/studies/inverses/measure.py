"""Errors of iterative inverses over their steps and spectral norms, as tables with a row for each summary."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from ...ops.pinv import cubic, newton

SYMMETRIC: dict[str, Callable[..., Tensor]] = {  # for the matrices of a Gaussian kernel
    "Newton, SOFT's code (ridge 0.01)": partial(newton, init="soft", ridge=0.01),
    "Newton, paper": partial(newton, init="paper"),
    "Newton, SOFT++'s code": partial(newton, init="softpp"),
    "cubic, start by two norms": partial(cubic, init="two_norms"),
}
OTHER: dict[str, Callable[..., Tensor]] = {  # Newton's iteration of SOFT begins with A itself, not its transpose
    "cubic, start by column sum": partial(cubic, init="per_matrix"),
    "cubic, start by two norms": SYMMETRIC["cubic, start by two norms"],
}


@dataclass(frozen=True, kw_only=True)
class InvertedLayer:
    """The matrices of one layer, or of one kind of random tokens.

    Args:
        place: the layer, or the kind of tokens.
        mechanism: its label.
        weights: initial | best | last, or random.
        at: step of the training, or m of random tokens.
        symmetric: whether the matrices are those of a Gaussian kernel; else rows of a softmax or of Laplace weights.
        steps: number of steps of the mechanism's own iteration, None if it has another inverse.
        inner: matrices (m,m) before their inverse, one for each example and head.
        norms: spectral norms by the name of what they are of, one for each example and head.
    """

    place: str
    mechanism: str
    weights: str
    at: int
    symmetric: bool
    steps: int | None
    inner: list[Tensor]
    norms: dict[str, list[float]]

    @property
    def about(self) -> dict[str, str | int]:
        """The first columns of a table."""
        return {name: getattr(self, name) for name in ("place", "mechanism", "weights", "at")}


@torch.no_grad()
def errors(layers: Iterable[InvertedLayer], steps: list[int], dtype: torch.dtype) -> pd.DataFrame:
    """Run every iteration that is defined for a layer's matrices in a dtype, for each number of steps.

    Returns:
        A row for each layer, iteration, steps and measure: AXA is ||A X A - A|| / ||A||, XAX is ||X A X - X|| / ||X||
        in Frobenius norms and double precision; median, smallest and largest over n matrices.
    """
    return summary(
        layer.about | {"iteration": name, "steps": k, "measure": measure, "value": value}
        for layer in layers
        for name, iteration in (SYMMETRIC if layer.symmetric else OTHER).items()
        for k in steps
        for a in layer.inner
        for measure, value in residuals(a.double(), iteration(a.to(dtype), steps=k).double()).items()
    )


def residuals(a: Tensor, x: Tensor) -> dict[str, float]:
    """Relative errors of the first two equations of Penrose (1955), A X A = A and X A X = X, of one matrix."""
    product = a @ x
    found = {"AXA": (product @ a - a).norm() / a.norm(), "XAX": (x @ product - x).norm() / x.norm()}
    return {name: value.item() for name, value in found.items()}


def norms(layers: Iterable[InvertedLayer]) -> pd.DataFrame:
    """Summarise the norms of each layer: a row for each kind of matrix, with the columns of ``errors``."""
    return summary(
        x.about | {"matrix": name, "value": value} for x in layers for name, some in x.norms.items() for value in some
    )


def summary(rows: Iterable[dict]) -> pd.DataFrame:
    """Summarise ``value`` over rows that are alike in all else: median, smallest, largest, number; NaN is infinite."""
    table = pd.DataFrame(rows).fillna({"value": math.inf})
    groups = table.groupby([name for name in table if name != "value"], sort=False)
    return groups["value"].agg(median="median", low="min", high="max", n="size").reset_index()
