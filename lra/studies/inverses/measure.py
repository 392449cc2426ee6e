"""Errors of iterative inverses over their steps, and spectral norms: tables of medians and ranges over matrices."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from ...ops.pinv import cubic, newton

# Iterations for the matrices of SOFT, which are symmetric.
SYMMETRIC: dict[str, Callable[..., Tensor]] = {
    "Newton, SOFT's code (ridge 0.01)": partial(newton, init="soft", ridge=0.01),
    "Newton, paper": partial(newton, init="paper"),
    "Newton, SOFT++'s code": partial(newton, init="softpp"),
    "cubic, start by two norms": partial(cubic, init="two_norms"),
}
# Iterations for other matrices. SOFT's Newton iteration begins with A itself, not its transpose, so it needs symmetry.
OTHER: dict[str, Callable[..., Tensor]] = {
    "cubic, start by column sum": partial(cubic, init="per_matrix"),
    "cubic, start by two norms": SYMMETRIC["cubic, start by two norms"],
}


@dataclass(frozen=True, kw_only=True)
class InvertedLayer:
    """The matrices of one layer, or of one kind of random tokens.

    Args:
        place: the layer, such as "layer 0", or the kind of tokens.
        mechanism: label of the mechanism.
        weights: initial | best | last, or random.
        at: step of the training, or m of random tokens.
        symmetric: whether the mechanism is SOFT or SOFT++, which invert symmetric matrices.
        steps: ``steps`` of the mechanism's inverse, None if it has no such option.
        inverted: the matrices A (m,m) that the mechanism inverts, one for each example and head.
        norms: spectral norms by name of the matrix, such as "map", one for each example and head.
    """

    place: str
    mechanism: str
    weights: str
    at: int
    symmetric: bool
    steps: int | None
    inverted: list[Tensor]
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
    """Measure the errors of iterative inverses X of the matrices A of layers.

    Args:
        layers: the layers.
        steps: numbers of steps of the iterations.
        dtype: dtype of the iterations; errors are computed in double precision.

    Returns:
        A row for each layer, iteration, number of steps and measure: AXA is ||A X A - A|| / ||A||, XAX is
        ||X A X - X|| / ||X||, in Frobenius norms; median, smallest and largest over n matrices.
    """
    rows = []
    for layer in layers:
        iterations = SYMMETRIC if layer.symmetric else OTHER
        for name, iteration in iterations.items():
            for num_steps in steps:
                about = layer.about | {"iteration": name, "steps": num_steps}
                for a in layer.inverted:
                    x = iteration(a.to(dtype), steps=num_steps)
                    for measure, value in residuals(a.double(), x.double()).items():
                        rows.append(about | {"measure": measure, "value": value})
    return summary(rows)


def residuals(a: Tensor, x: Tensor) -> dict[str, float]:
    """Compute the relative residuals of the first two equations of Penrose (1955), A X A = A and X A X = X."""
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
    """Group rows that differ in ``value`` only: median, smallest and largest value, and their number.

    NaN, from an iteration that diverged, counts as infinite.
    """
    table = pd.DataFrame(rows).fillna({"value": math.inf})
    keys = [name for name in table if name != "value"]
    # Groups keep the order of their first rows.
    groups = table.groupby(keys, sort=False)
    return groups["value"].agg(median="median", low="min", high="max", n="size").reset_index()
