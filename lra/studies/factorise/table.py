"""Errors of sparse factors beside those of the SVD, as tables and figures (PSF's Table 1 and Figure 4)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np
import torch

from ...report.table import Table, frame
from ..figures import panels, save
from . import chord

HEAD = ("kind", "matrix", "n", "numbers", "SF", "SVD, paper's rank", "SVD, equal numbers", "iterations", "SF half way")
RANKS = {"paper": "paper's rank", "equal": "equal numbers"}  # keys of chord.ranks
SUMMARY = ("kind", "matrices", *(f"{what}, {rank}" for rank in RANKS.values() for what in ("SF nearer", "SF / SVD")))
ABOUT = (
    "Frobenius errors. SF: product of sparse Chord factors, fitted by L-BFGS. SVD: truncated at the paper's rank "
    "ceil(M²/2), and at the largest rank that holds no more numbers than the factors. If iterations is the limit, "
    "SF was still falling, see its error after half of them."
)
ABOUT_SUMMARY = "SF / SVD: median (smallest to largest) over the matrices of a kind of the ratio of the errors."


@dataclass(frozen=True, kw_only=True)
class Result:
    """A matrix (n,n), its sparse factors (M,n,K), and the error |x - x^|_F of their product after each iteration."""

    kind: str
    name: str
    matrix: np.ndarray
    factors: np.ndarray
    fell: np.ndarray

    product = cached_property(lambda r: chord.product(torch.from_numpy(r.factors)).numpy())
    sparse = cached_property(lambda r: float(np.linalg.norm(r.matrix - r.product)))  # the error of the product

    @cached_property
    def truncated(self) -> dict[str, np.ndarray]:
        """The SVD truncated at each rank."""
        return {key: chord.truncated(self.matrix, rank) for key, rank in chord.ranks(len(self.matrix)).items()}

    @cached_property
    def svd(self) -> dict[str, float]:
        """The error of the truncated SVD at each rank."""
        return {key: float(np.linalg.norm(self.matrix - near)) for key, near in self.truncated.items()}

    def cells(self) -> tuple[str, ...]:
        """The text of each column of HEAD."""
        n, steps = len(self.matrix), len(self.fell)
        rank = chord.ranks(n)
        svd = [f"{self.svd[key]:.3g} (r = {rank[key]})" for key in RANKS]
        numbers, half = f"{chord.numbers(n):,}", f"{self.fell[steps // 2]:.3g}" if steps else ""
        return self.kind, self.name, str(n), numbers, f"{self.sparse:.3g}", *svd, f"{steps:,}", half


def summary(results: list[Result]) -> list[list[str]]:
    """Format a line for each kind, with a text for each column of SUMMARY."""
    rows = []
    for kind, same in groupby(results, key=lambda r: r.kind):
        of_kind = list(same)
        row = [kind, str(len(of_kind))]
        for key in RANKS:
            values = [r.sparse / r.svd[key] for r in of_kind]
            spread = f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            row += [f"{sum(value < 1 for value in values)} of {len(values)}", spread]
        rows.append(row)
    return rows


def tables(results: list[Result]) -> list[Table]:
    """Make the table of matrices and that of kinds."""
    matrices, kinds = frame(HEAD, [r.cells() for r in results]), frame(SUMMARY, summary(results))
    title = "Sparse factors against truncated SVD"
    return [
        Table(name="factorise", title=title, about=ABOUT, cells=matrices, words=("kind", "matrix")),
        Table(name="kinds", title="Ratios of the errors", about=ABOUT_SUMMARY, cells=kinds, words=("kind",)),
    ]


def picture(results: list[Result], path: Path) -> None:
    """Draw each matrix, its truncated SVD and the product of sparse factors, in grey levels of the matrix's range."""
    figure, grid = panels(3 * len(results), width=2.15, height=2.3)
    places = iter(grid)
    for r in results:
        svd = f"SVD, r = {chord.ranks(len(r.matrix))['equal']}: {r.svd['equal']:.3g}"
        titles = r.name, svd, f"sparse factors: {r.sparse:.3g}"
        for title, image in zip(titles, (r.matrix, r.truncated["equal"], r.product), strict=True):
            axes = next(places)
            axes.imshow(image, cmap="gray", vmin=r.matrix.min(), vmax=r.matrix.max(), interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    save(figure, path)
