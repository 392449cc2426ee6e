"""python -m lra.studies.inverses: iterative inverses over their steps, and spectral norms of what they are part of."""

from collections.abc import Iterable
from pathlib import Path

import torch

from ...config.entry import main
from ...console import log
from ...disk import atomic
from ...runs.open import finished
from .matrices import InversesOptions, of_run, random_tokens
from .measure import InvertedLayer, errors, norms
from .show import convergence, spectral


@main(InversesOptions)
def inverses(options: InversesOptions) -> None:
    """Measure random tokens, or every finished seed of the runs.

    Raises:
        ValueError: a folder is no run, or its mechanism inverts no matrix.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    home = options.runs / "inverses"
    if options.run is None:
        sizes = f"{options.length} tokens, {options.heads} heads of {options.head_dim}"
        measured(random_tokens(options), home / "random", f"Random tokens, {sizes}", options)
        return
    for run in [run for folder in options.run for run in finished(folder, options.trust)]:
        r = run.record
        title = f"{r.task}, {r.label}, seed {r.seed}, test {r.test:.1f}, budget {r.budget}"
        measured(of_run(run, options), home / r.study / r.task / r.label / f"seed-{r.seed}", title, options)


def measured(found: Iterable[InvertedLayer], home: Path, title: str, options: InversesOptions) -> None:
    """Measure layers and save tables and pictures. Errors over steps are of random tokens or of the best weights."""
    layers = list(found)
    trained = dict.fromkeys(f"{layer.weights} at step {layer.at}" for layer in layers if layer.weights != "random")
    if trained:
        log(f"{title}: weights: {', '.join(trained)}")
    some = [layer for layer in layers if layer.weights in ("random", "best")]
    tables = {
        "convergence": errors(some, sorted(set(options.steps)), getattr(torch, options.dtype)),
        "norms": norms(layers),
    }
    pictures = [
        convergence(tables["convergence"], some, title, home / "convergence.png"),
        spectral(tables["norms"], title, home / "norms.png"),
    ]
    for name, table in tables.items():
        atomic.write(home / f"{name}.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    print(f"written: {', '.join(map(str, (*pictures, *(home / f'{name}.csv' for name in tables))))}")


if __name__ == "__main__":
    inverses()
