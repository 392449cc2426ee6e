"""python -m lra.studies.inverses: iterative inverses over their steps, and spectral norms of what they are part of."""

from collections.abc import Iterable
from pathlib import Path

import torch

from ...config.entry import main
from ...console import log
from ...runs.open import finished
from .matrices import InvertedLayer, of_run, random_tokens
from .measure import errors, norms
from .options import InversesOptions
from .show import save

FOLDER = "inverses"


@main(InversesOptions)
def inverses(options: InversesOptions) -> None:
    """Measure random tokens, or every finished seed of the runs.

    Raises:
        ValueError: a folder is no run, or its mechanism inverts no matrix.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    home = options.runs / FOLDER
    if options.run is None:
        sizes = f"{options.length} tokens, {options.heads} heads of {options.head_dim}"
        measured(random_tokens(options), home / "random", f"Random tokens, {sizes}", options)
        return
    for run in [run for folder in options.run for run in finished(folder, options.trust)]:
        r = run.record
        title = f"{r.task}, {r.label}, seed {r.seed}, test {r.test:.1f}, budget {r.budget}"
        measured(of_run(run, options), home / r.study / r.task / r.label / f"seed-{r.seed}", title, options)


def measured(found: Iterable[InvertedLayer], home: Path, title: str, options: InversesOptions) -> None:
    """Measure layers and save the results. Errors over steps are those of random tokens or of the best weights."""
    layers = list(found)
    weights = list(
        dict.fromkeys(f"{layer.weights} at step {layer.at}" for layer in layers if layer.weights != "random")
    )
    if weights:
        log(f"{title}: weights: {', '.join(weights)}")
    some = [layer for layer in layers if layer.weights in ("random", "best")]
    steps = sorted(set(options.steps))
    files = save(home, title, list(errors(some, steps, getattr(torch, options.dtype))), list(norms(layers)))
    print(f"written: {', '.join(map(str, files))}")


if __name__ == "__main__":
    inverses()
