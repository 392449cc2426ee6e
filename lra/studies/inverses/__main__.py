"""python -m lra.studies.inverses: iterative inverses over their steps, and spectral norms of what they are part of."""

from collections.abc import Iterable
from pathlib import Path

import torch
from omegaconf import DictConfig

from ...config.entry import main
from ...console import log
from ...runs.open import finished
from .matrices import InvertedLayer, of_run, random_tokens
from .measure import errors, norms
from .show import save

FOLDER = "inverses"


@main("inverses")
def inverses(config: DictConfig) -> None:
    """Measure random tokens, or every finished seed of the runs.

    Raises:
        ValueError: a folder is no run, or its mechanism inverts no matrix.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    home = Path(config.runs) / FOLDER
    if config.run is None:
        sizes = f"{config.length} tokens, {config.heads} heads of {config.head_dim}"
        measured(random_tokens(config), home / "random", f"Random tokens, {sizes}", config)
        return
    for run in [run for folder in config.run for run in finished(Path(folder), config.trust)]:
        r = run.record
        title = f"{r.task}, {r.label}, seed {r.seed}, test {r.test:.1f}, budget {r.budget}"
        measured(of_run(run, config), home / r.study / r.task / r.label / f"seed-{r.seed}", title, config)


def measured(found: Iterable[InvertedLayer], home: Path, title: str, config: DictConfig) -> None:
    """Measure layers and save the results. Errors over steps are those of random tokens or of the best weights."""
    layers = list(found)
    weights = list(
        dict.fromkeys(f"{layer.weights} at step {layer.at}" for layer in layers if layer.weights != "random")
    )
    if weights:
        log(f"{title}: weights: {', '.join(weights)}")
    some = [layer for layer in layers if layer.weights in ("random", "best")]
    steps = sorted(set(config.steps))
    files = save(home, title, list(errors(some, steps, getattr(torch, config.dtype))), list(norms(layers)))
    print(f"written: {', '.join(map(str, files))}")


if __name__ == "__main__":
    inverses()
