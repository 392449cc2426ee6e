"""python -m lra.studies.factorise: sparse Chord factors against truncated SVD of each matrix.

Tables and figures are those of PSF's Table 1 and Figure 4.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch

from ...config.entry import main
from ...config.options import Options
from ...config.sections import Some
from ...console import log
from ...disk import atomic
from ...options import Positive, Whole
from ...report.table import Table, frame, show
from ..figures import panels, save
from . import chord
from .matrices import EXTRA, KINDS

HEAD = ("kind", "matrix", "n", "numbers", "SF", "SVD, paper's rank", "SVD, equal numbers", "iterations", "SF half way")
RANKS = {"paper": "paper's rank", "equal": "equal numbers"}  # keys of chord.ranks
SUMMARY = ("kind", "matrices", *(f"{what}, {rank}" for rank in RANKS.values() for what in ("SF nearer", "SF / SVD")))
ABOUT = (
    "Frobenius errors. SF: product of sparse Chord factors, fitted by L-BFGS. SVD: truncated at the paper's rank "
    "ceil(M²/2), and at the largest rank that holds no more numbers than the factors. If iterations is the limit, "
    "SF was still falling, see its error after half of them."
)
ABOUT_SUMMARY = "SF / SVD: median (smallest to largest) over the matrices of a kind of the ratio of the errors."


class FactoriseOptions(Options):
    conf: ClassVar[str] = "factorise"

    kinds: Some[Literal["all", *KINDS]]
    iterations: Positive
    init: Literal["code", "paper"]
    seed: Whole
    impl: Literal["compiled", "torch"]
    runs: Path


@dataclass(frozen=True, kw_only=True)
class Result:
    """A matrix (n,n), its sparse factors (M,n,K), and the error |x - x^|_F of their product after each iteration."""

    kind: str
    name: str
    matrix: np.ndarray
    factors: np.ndarray
    fell: np.ndarray

    @cached_property
    def near(self) -> dict[str, np.ndarray]:
        """The approximations: the product of the factors, and the SVD truncated at each rank."""
        svd = {key: chord.truncated(self.matrix, rank) for key, rank in chord.ranks(len(self.matrix)).items()}
        return {"SF": chord.product(torch.from_numpy(self.factors)).numpy()} | svd

    @cached_property
    def errors(self) -> dict[str, float]:
        """The error of each approximation."""
        return {key: float(np.linalg.norm(self.matrix - near)) for key, near in self.near.items()}

    def cells(self) -> tuple[str, ...]:
        """The text of each column of HEAD."""
        n, steps = len(self.matrix), len(self.fell)
        svd = [f"{self.errors[key]:.3g} (r = {rank})" for key, rank in chord.ranks(n).items()]
        numbers, half = f"{chord.numbers(n):,}", f"{self.fell[steps // 2]:.3g}" if steps else ""
        return self.kind, self.name, str(n), numbers, f"{self.errors['SF']:.3g}", *svd, f"{steps:,}", half


@main(FactoriseOptions)
def factorise(options: FactoriseOptions) -> None:
    """Fit the matrices that have no result yet, then write the table and a figure for each kind of matrix.

    Raises:
        ValueError: a package with matrices is missing.
    """
    kinds = KINDS if "all" in options.kinds else options.kinds
    home = options.runs / "factorise"
    results = []
    for kind in kinds:
        try:
            for name, x in KINDS[kind]():
                results.append(result(kind, name, x, options, home / kind / f"{name}.npz"))
        except ImportError as error:
            raise ValueError(f"kinds={kind} needs {error.name}: {EXTRA}") from None
        picture([r for r in results if r.kind == kind], home / f"{kind}.png")
    matrices, ratios = frame(HEAD, [r.cells() for r in results]), frame(SUMMARY, summary(results))
    title = "Sparse factors against truncated SVD"
    made = [
        Table(name="factorise", title=title, about=ABOUT, cells=matrices, words=("kind", "matrix")),
        Table(name="kinds", title="Ratios of the errors", about=ABOUT_SUMMARY, cells=ratios, words=("kind",)),
    ]
    atomic.write(home / "factorise.md", "\n\n".join(table.section(1 + at) for at, table in enumerate(made)) + "\n")
    show(made, "")
    print(f"written to {home}/factorise.md")


def result(kind: str, name: str, x: np.ndarray, options: FactoriseOptions, path: Path) -> Result:
    """Fit a matrix x (n,n), or read the result at a path if it was fitted with the same options before."""
    fit = options.model_dump(include={"iterations", "init", "seed", "impl"})
    asked = fit | {"sha256": hashlib.sha256(np.ascontiguousarray(x)).hexdigest()}
    if path.exists() and (found := saved(path, asked)):
        return Result(kind=kind, name=name, matrix=x, **found)
    factors, fell, stopped = chord.fit(x, **fit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as part, open(part, "wb") as file:
        np.savez(file, factors=factors, errors=fell, stopped=stopped, asked=json.dumps(asked))
    fitted = Result(kind=kind, name=name, matrix=x, factors=factors, fell=fell)
    errors = "SF {SF:.4g}, SVD {paper:.4g}, with as many numbers {equal:.4g}".format(**fitted.errors)
    log(f"{kind} {name}: {errors}; {len(fell)} iterations")
    return fitted


def saved(path: Path, asked: dict) -> dict[str, np.ndarray] | None:
    """Read the factors and their errors; None for other options of the fit or another sum of the matrix than ``asked``.

    Raises:
        ValueError: the file does not hold a result.
    """
    try:
        with atomic.opened(path) as file, np.load(file) as arrays:
            if json.loads(str(arrays["asked"])) == asked:
                return {"factors": arrays["factors"], "fell": arrays["errors"]}
    except Exception as error:  # zipfile and numpy raise exceptions of any class for damaged files
        raise ValueError(f"{path} is not a result of this study ({type(error).__name__}: {error}); delete it") from None
    return None


def summary(results: list[Result]) -> list[list[str]]:
    """Format a line for each kind, with a text for each column of SUMMARY."""
    rows = []
    for kind, same in groupby(results, key=lambda r: r.kind):
        errors = pd.DataFrame([r.errors for r in same])
        row = [kind, str(len(errors))]
        for ratio in (errors.SF / errors[key] for key in RANKS):
            spread = f"{ratio.median():.3g} ({ratio.min():.3g} to {ratio.max():.3g})"
            row += [f"{(ratio < 1).sum()} of {len(ratio)}", spread]
        rows.append(row)
    return rows


def picture(results: list[Result], path: Path) -> None:
    """Draw each matrix, its truncated SVD and the product of sparse factors, in grey levels of the matrix's range."""
    figure, grid = panels(3 * len(results), width=2.15, height=2.3)
    places = iter(grid)
    for r in results:
        svd = f"SVD, r = {chord.ranks(len(r.matrix))['equal']}: {r.errors['equal']:.3g}"
        titles = r.name, svd, f"sparse factors: {r.errors['SF']:.3g}"
        for title, image in zip(titles, (r.matrix, r.near["equal"], r.near["SF"]), strict=True):
            axes = next(places)
            axes.imshow(image, cmap="gray", vmin=r.matrix.min(), vmax=r.matrix.max(), interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    save(figure, path)


if __name__ == "__main__":
    factorise()
