"""Errors of sparse factors beside those of the SVD, as tables and figures (PSF's Table 1 and Figure 4)."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np

from ...report.table import Cell, Table, frame
from ..figures import panels, save
from . import chord

HEAD = ("kind", "matrix", "n", "numbers", "SF", "SVD, paper's rank", "SVD, equal numbers", "iterations", "SF half way")
RANKS = ("paper's rank", "equal numbers")
SUMMARY = ("kind", "matrices", *(f"{what}, {rank}" for rank in RANKS for what in ("SF nearer", "SF / SVD")))
ABOUT = (
    "Frobenius errors. SF: product of sparse Chord factors, fitted by L-BFGS. SVD: truncated at the paper's rank "
    "ceil(M²/2), and at the largest rank that holds no more numbers than the factors. The smaller error is bold; if "
    "iterations is the limit, SF was still falling, see its error after half of them."
)
ABOUT_SUMMARY = "SF / SVD: median (smallest to largest) over the matrices of a kind of the ratio of the errors."


@dataclass(frozen=True, kw_only=True)
class Result:
    """One matrix (n,n), its approximations and their errors |x - x^|_F.

    Args:
        kind, name, n: kind, name and size of the matrix.
        matrix: itself.
        product: product of the sparse factors.
        truncated: SVD by the keys of chord.ranks.
        sparse: error of the product.
        svd: errors of the truncated SVD.
        fell: error of the product after each iteration.
        stopped: SciPy's reason for stopping.
    """

    kind: str
    name: str
    n: int
    matrix: np.ndarray
    product: np.ndarray
    truncated: dict[str, np.ndarray]
    sparse: float
    svd: dict[str, float]
    fell: np.ndarray
    stopped: str

    @property
    def iterations(self) -> int:
        """The number of iterations of the fit."""
        return len(self.fell)

    def cells(self) -> tuple[Cell | str, ...]:
        """The cell of each column of HEAD."""
        rank, best = chord.ranks(self.n), min(self.sparse, *self.svd.values())
        error = lambda value, more="": Cell(text=f"{value:.3g}{more}", value=value, mark="best" * (value == best))
        svd = [error(self.svd[key], f" (r = {rank[key]})") for key in ("paper", "equal")]
        numbers = f"{chord.numbers(self.n):,}"
        half = f"{self.fell[self.iterations // 2]:.3g}" if self.iterations else ""
        return self.kind, self.name, str(self.n), numbers, error(self.sparse), *svd, f"{self.iterations:,}", half


def ratios(results: list[Result]) -> dict[str, dict[str, list[float]]]:
    """Divide the error of SF by that of the SVD for each matrix, by kind and key of chord.ranks."""
    return {
        kind: {key: [r.sparse / r.svd[key] for r in of_kind] for key in ("paper", "equal")}
        for kind, same in groupby(results, key=lambda r: r.kind)
        if (of_kind := list(same))
    }


def summary(results: list[Result]) -> list[tuple[str, ...]]:
    """Format a line for each kind, with a text for each column of SUMMARY."""
    rows = []
    for kind, by_rank in ratios(results).items():
        row = [kind, str(len(by_rank["paper"]))]
        for values in by_rank.values():
            spread = f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            row += [f"{sum(value < 1 for value in values)} of {len(values)}", spread]
        rows.append(tuple(row))
    return rows


def tables(results: list[Result]) -> list[Table]:
    """Make the table of matrices and that of kinds."""
    return [
        Table(
            name="factorise",
            title="Sparse factors against truncated SVD",
            about=ABOUT,
            cells=frame(HEAD, [r.cells() for r in results]),
            words=("kind", "matrix"),
        ),
        Table(
            name="kinds",
            title="Ratios of the errors",
            about=ABOUT_SUMMARY,
            cells=frame(SUMMARY, summary(results)),
            words=("kind",),
        ),
    ]


def picture(results: list[Result], path: Path) -> None:
    """Draw each matrix, its truncated SVD and the product of sparse factors, in grey levels of the matrix's range."""
    figure, grid = panels(3 * len(results), width=2.15, height=2.3)
    for at, r in enumerate(results):
        shown = (
            (r.matrix, r.name),
            (r.truncated["equal"], f"SVD, r = {chord.ranks(r.n)['equal']}: {r.svd['equal']:.3g}"),
            (r.product, f"sparse factors: {r.sparse:.3g}"),
        )
        for axes, (image, title) in zip(grid[3 * at : 3 * at + 3], shown, strict=True):
            axes.imshow(image, cmap="gray", vmin=r.matrix.min(), vmax=r.matrix.max(), interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    save(figure, path)
