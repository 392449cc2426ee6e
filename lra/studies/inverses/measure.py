"""Errors of iterative inverses over their steps, and spectral norms: tables of medians and ranges over matrices."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from ...ops.pinv import cubic, newton

# Iterations for the matrices of a Gaussian kernel, which are symmetric.
SYMMETRIC: dict[str, Callable[..., Tensor]] = {
    "Newton, SOFT's code (ridge 0.01)": partial(newton, init="soft", ridge=0.01),
    "Newton, paper": partial(newton, init="paper"),
    "Newton, SOFT++'s code": partial(newton, init="softpp"),
    "cubic, start by two norms": partial(cubic, init="two_norms"),
}
# Iterations for other matrices: Newton's iteration of SOFT begins with A itself, not its transpose, and needs symmetry.
OTHER: dict[str, Callable[..., Tensor]] = {
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
        symmetric: whether the mechanism is SOFT, whose A are Gaussian kernels; Newton's iteration is for them only.
        steps: ``steps`` of the mechanism's inverse, None if it has no such option.
        inner: matrices (m,m) before their inverse, one for each example and head.
        norms: spectral norms by the name of the matrix, one for each example and head.
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
        return {
            "place": self.place,
            "mechanism": self.mechanism,
            "weights": self.weights,
            "at": self.at,
        }


@torch.no_grad()
def errors(layers: Iterable[InvertedLayer], steps: list[int], dtype: torch.dtype) -> pd.DataFrame:
    """Run every iteration that is defined for a layer's matrices in a dtype, for each number of steps.

    Returns:
        A row for each layer, iteration, steps and measure: AXA is ||A X A - A|| / ||A||, XAX is ||X A X - X|| / ||X||
        in Frobenius norms and double precision; median, smallest and largest over n matrices.
    """
    rows = []
    for layer in layers:
        iterations = SYMMETRIC if layer.symmetric else OTHER
        for name, iteration in iterations.items():
            for num_steps in steps:
                about = layer.about | {"iteration": name, "steps": num_steps}
                # The iteration runs in the dtype, its error is measured in double precision.
                for a in layer.inner:
                    x = iteration(a.to(dtype), steps=num_steps)
                    for measure, value in residuals(a.double(), x.double()).items():
                        rows.append(about | {"measure": measure, "value": value})
    return summary(rows)


def residuals(a: Tensor, x: Tensor) -> dict[str, float]:
    """Compute the relative errors of the first two equations of Penrose (1955), A X A = A and X A X = X."""
    product = a @ x
    axa = (product @ a - a).norm() / a.norm()
    xax = (x @ product - x).norm() / x.norm()
    return {"AXA": axa.item(), "XAX": xax.item()}


def norms(layers: Iterable[InvertedLayer]) -> pd.DataFrame:
    """Summarise the norms of each layer: a row for each kind of matrix, with median, smallest and largest norm."""
    rows = []
    for layer in layers:
        for name, values in layer.norms.items():
            rows += [layer.about | {"matrix": name, "value": value} for value in values]
    return summary(rows)


def summary(rows: Iterable[dict]) -> pd.DataFrame:
    """Summarise ``value`` over rows that are equal otherwise: median, smallest, largest, number; NaN is infinite."""
    table = pd.DataFrame(rows).fillna({"value": math.inf})
    keys = [name for name in table if name != "value"]
    # Groups keep the order of their first rows.
    groups = table.groupby(keys, sort=False)
    return groups["value"].agg(median="median", low="min", high="max", n="size").reset_index()
