"""python -m lra.studies.factorise: sparse Chord factors against truncated SVD of each matrix, as in PSF's Table 1."""

import hashlib
import json
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from ...config.entry import main
from ...config.options import Options
from ...config.sections import Some
from ...console import log
from ...disk import atomic
from ...options import Positive, Whole
from ...report.table import show
from . import chord
from .matrices import EXTRA, KINDS
from .table import Result, picture, tables

FIT = ("iterations", "init", "seed", "impl")  # arguments of chord.fit


class FactoriseOptions(Options):
    conf: ClassVar[str] = "factorise"

    kinds: Some[Literal["all", *KINDS]]
    iterations: Positive
    init: Literal["code", "paper"]
    seed: Whole
    impl: Literal["compiled", "torch"]
    runs: Path


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
    made = tables(results)
    atomic.write(home / "factorise.md", "\n\n".join(table.section(1 + at) for at, table in enumerate(made)) + "\n")
    show(made, "")
    print(f"written to {home}/factorise.md")


def result(kind: str, name: str, x: np.ndarray, options: FactoriseOptions, path: Path) -> Result:
    """Fit a matrix x (n,n), or read the result at a path if it was fitted with the same options before."""
    fit = {key: getattr(options, key) for key in FIT}
    asked = fit | {"sha256": hashlib.sha256(np.ascontiguousarray(x)).hexdigest()}
    if path.exists() and (found := saved(path, asked)):
        return Result(kind=kind, name=name, matrix=x, **found)
    factors, fell, stopped = chord.fit(x, **fit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as part, open(part, "wb") as file:
        np.savez(file, factors=factors, errors=fell, stopped=stopped, asked=json.dumps(asked))
    fitted = Result(kind=kind, name=name, matrix=x, factors=factors, fell=fell)
    errors = f"SF {fitted.sparse:.4g}, SVD {fitted.svd['paper']:.4g}, with as many numbers {fitted.svd['equal']:.4g}"
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


if __name__ == "__main__":
    factorise()
