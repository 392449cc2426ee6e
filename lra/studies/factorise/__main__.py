"""python -m lra.studies.factorise: sparse Chord factors compared with the truncated SVD of each matrix.

The first table and the figures correspond to Table 1 and Figure 4 of PSF-Attn.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("factorise")

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
from ...config.schema import Some
from ...console import log
from ...io import atomic
from ...options import Positive, Whole
from ...results.table import Table, frame, show
from ..figures import panels, save
from . import chord
from .matrices import EXTRA, KINDS

HEAD = ("kind", "matrix", "n", "numbers", "SF", "SVD, paper's rank", "SVD, equal numbers", "iterations", "SF half way")
# Keys of ``chord.ranks``, in the order of the columns of SUMMARY.
RANKS = ("paper", "equal")
SUMMARY = (
    "kind",
    "matrices",
    "SF nearer, paper's rank",
    "SF / SVD, paper's rank",
    "SF nearer, equal numbers",
    "SF / SVD, equal numbers",
)
ABOUT = (
    "Frobenius errors of SF, the product of sparse Chord factors fitted by L-BFGS, and of SVD, truncated at the "
    "paper's rank ceil(M²/2) and at the largest rank that holds no more numbers than the factors. If iterations equals "
    "the limit, the error of SF was still falling; SF half way is its error after half of the iterations."
)
ABOUT_SUMMARY = "SF / SVD: median (smallest to largest) over the matrices of a kind of the ratio of the errors."


class FactoriseOptions(Options):
    """The options of conf/factorise.yaml."""

    conf: ClassVar[str] = "factorise"

    kinds: Some[Literal["all", *KINDS]]
    iterations: Positive
    init: Literal["code", "paper"]
    seed: Whole
    impl: Literal["compiled", "torch"]
    runs: Path


@dataclass(frozen=True, kw_only=True)
class Result:
    """A matrix and its sparse factors.

    Args:
        kind, name: kind and name of the matrix.
        matrix: the matrix x (n,n).
        factors: its sparse factors (M,n,K).
        error_curve: Frobenius error |x - W_1 ... W_M| after each iteration of the fit.
    """

    kind: str
    name: str
    matrix: np.ndarray
    factors: np.ndarray
    error_curve: np.ndarray

    @cached_property
    def approximations(self) -> dict[str, np.ndarray]:
        """The product of the factors, ``SF``, and the SVD truncated at each of ``chord.ranks``."""
        product = chord.product(torch.from_numpy(self.factors)).numpy()
        approximations = {"SF": product}
        for key, rank in chord.ranks(len(self.matrix)).items():
            approximations[key] = chord.truncated_svd(self.matrix, rank)
        return approximations

    @cached_property
    def errors(self) -> dict[str, float]:
        """The Frobenius error of each approximation."""
        errors = {}
        for key, approximation in self.approximations.items():
            errors[key] = float(np.linalg.norm(self.matrix - approximation))
        return errors

    def cells(self) -> tuple[str, ...]:
        """Format the columns of HEAD."""
        n = len(self.matrix)
        iterations = len(self.error_curve)
        svd = [f"{self.errors[key]:.3g} (r = {rank})" for key, rank in chord.ranks(n).items()]
        # The error after half of the iterations, rounded up; entry i is the error after iteration i + 1.
        half_way = f"{self.error_curve[(iterations - 1) // 2]:.3g}" if iterations else ""
        return (
            self.kind,
            self.name,
            str(n),
            f"{chord.num_parameters(n):,}",
            f"{self.errors['SF']:.3g}",
            *svd,
            f"{iterations:,}",
            half_way,
        )


@main(FactoriseOptions)
def factorise(options: FactoriseOptions) -> None:
    """Fit the matrices that have no result yet; write a figure for each kind of matrix and two tables.

    Raises:
        ValueError: the package that a kind of matrix needs is missing, or a result is damaged.
    """
    kinds = KINDS if "all" in options.kinds else options.kinds
    home = options.runs / "factorise"
    results = []
    for kind in dict.fromkeys(kinds):
        results_of_kind = []
        try:
            for name, x in KINDS[kind]():
                path = home / kind / f"{name}.npz"
                results_of_kind.append(fit_or_load(kind, name, x, options, path))
        except ImportError as error:
            raise ValueError(f"kinds={kind} needs {error.name}: {EXTRA}") from None
        draw(results_of_kind, home / f"{kind}.png")
        results += results_of_kind

    # A table with a row for each matrix, and a table with a row for each kind.
    matrix_table = Table(
        name="factorise",
        title="Sparse factors against truncated SVD",
        about=ABOUT,
        cells=frame(HEAD, [r.cells() for r in results]),
        words=("kind", "matrix"),
    )
    kind_table = Table(
        name="kinds",
        title="Ratios of the errors",
        about=ABOUT_SUMMARY,
        cells=frame(SUMMARY, summary(results)),
        words=("kind",),
    )
    sections = [matrix_table.section(1), kind_table.section(2)]
    atomic.write(home / "factorise.md", "\n\n".join(sections) + "\n")
    show([matrix_table, kind_table], "")
    print(f"written to {home}/factorise.md")


def fit_or_load(kind: str, name: str, x: np.ndarray, options: FactoriseOptions, path: Path) -> Result:
    """Read the result at a path if it is of the same matrix x (n,n) and options; else fit the matrix and write it."""
    fit = options.model_dump(include={"iterations", "init", "seed", "impl"})
    digest = hashlib.sha256(x.tobytes()).hexdigest()
    key = fit | {"sha256": digest}
    if path.exists():
        arrays = load_arrays(path, key)
        if arrays:
            return Result(kind=kind, name=name, matrix=x, **arrays)

    factors, error_curve, stopped = chord.fit(x, **fit)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file holds the key, by which ``load_arrays`` recognises the same matrix and options.
    with atomic.replacing(path) as part, open(part, "wb") as file:
        np.savez(file, factors=factors, errors=error_curve, stopped=stopped, asked=json.dumps(key))
    fitted = Result(kind=kind, name=name, matrix=x, factors=factors, error_curve=error_curve)
    errors = fitted.errors
    log(
        f"{kind} {name}: SF {errors['SF']:.4g}, SVD {errors['paper']:.4g}, "
        f"with equal numbers {errors['equal']:.4g}; {len(error_curve)} iterations"
    )
    return fitted


def load_arrays(path: Path, key: dict) -> dict[str, np.ndarray] | None:
    """Read a result.

    Returns:
        Factors and error curve; None if the file has another ``key``: another matrix or other options of the fit.

    Raises:
        ValueError: the file does not hold a result.
    """
    # zipfile and numpy raise exceptions of any class for damaged files.
    try:
        with atomic.opened(path) as file, np.load(file) as arrays:
            if json.loads(str(arrays["asked"])) != key:
                return None
            return {"factors": arrays["factors"], "error_curve": arrays["errors"]}
    except Exception as error:
        raise ValueError(f"{path} is not a result of this study ({type(error).__name__}: {error}); delete it") from None


def summary(results: list[Result]) -> list[list[str]]:
    """Format a row of SUMMARY for each kind. Results of one kind must follow each other."""
    lines = []
    for kind, group in groupby(results, key=lambda r: r.kind):
        errors = pd.DataFrame([r.errors for r in group])
        line = [kind, str(len(errors))]
        for key in RANKS:
            # Below one, the sparse factors have the smaller error.
            ratio = errors.SF / errors[key]
            line.append(f"{(ratio < 1).sum()} of {len(ratio)}")
            line.append(f"{ratio.median():.3g} ({ratio.min():.3g} to {ratio.max():.3g})")
        lines.append(line)
    return lines


def draw(results: list[Result], path: Path) -> None:
    """Draw each matrix, its SVD with equal numbers and the product of the factors, in grey levels of its range."""
    figure, grid = panels(3 * len(results), width=2.15, height=2.3)
    panel = iter(grid)
    for r in results:
        # Three panels for each matrix.
        rank = chord.ranks(len(r.matrix))["equal"]
        images = {
            r.name: r.matrix,
            f"SVD, r = {rank}: {r.errors['equal']:.3g}": r.approximations["equal"],
            f"sparse factors: {r.errors['SF']:.3g}": r.approximations["SF"],
        }
        for title, image in images.items():
            axes = next(panel)
            axes.imshow(image, cmap="gray", vmin=r.matrix.min(), vmax=r.matrix.max(), interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    save(figure, path)


if __name__ == "__main__":
    factorise()
