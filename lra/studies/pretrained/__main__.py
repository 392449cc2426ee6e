"""python -m lra.studies.pretrained: what CUR costs a pretrained encoder, before and after a short distillation.

CURformer's Table 5 and Figure 5 ask this of ViT-B/16 and ImageNet; this asks it of any encoder and any labelled texts
or images. Exact embeddings of the train examples teach a linear probe and a k-NN classifier once; then test examples
come from the model with CUR in place of its attention.
"""

import copy
import json
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ...config import main
from ...integrations import needs
from .figures import draw

with needs("hf", __name__):
    from ...integrations.huggingface import SELECTIONS
    from .encoder import Encoder, load


@dataclass(frozen=True, kw_only=True)
class Result:
    """attention: exact, a selection or plus. tuned: steps of distillation. cosine: of test and exact embeddings,
    mean and standard deviation over examples; probe, knn: accuracy in percent over n test examples."""

    attention: str
    count: int | None
    tuned: int
    cosine: float
    cosine_std: float
    probe: float
    knn: float
    n: int


def examples(path: Path, split: str, n: int, seed: int) -> tuple[list[bytes], Tensor]:
    """n files of <split>/<class>/<file> in a tar, as many of each class, and their classes in alphabetical order."""
    try:
        with tarfile.open(path) as archive:
            names: dict[str, list[str]] = {}
            for member in archive:
                parts = member.name.split("/")
                if member.isfile() and len(parts) > 2 and parts[-3] == split:
                    names.setdefault(parts[-2], []).append(member.name)
            smallest = min((len(same) for same in names.values()), default=0)
            if len(names) < 2 or n % len(names) or not 0 < n // len(names) <= smallest:
                raise ValueError(
                    f"{path} has {len(names)} classes of {smallest} or more files in {split}/<class>/; "
                    f"{split}={n} must be a multiple of the one, and no more than that of each"
                )
            draw = np.random.default_rng(seed)
            chosen = {
                name: label
                for label, kind in enumerate(sorted(names))
                for name in draw.choice(sorted(names[kind]), n // len(names), replace=False).tolist()
            }
            found = [(archive.extractfile(m).read(), chosen[m.name]) for m in archive if m.name in chosen]
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as a tar file: {error}") from None
    return [content for content, _ in found], torch.tensor([label for _, label in found])


def probe(features: Tensor, labels: Tensor, decay: float = 1e-3) -> torch.nn.Linear:
    """Multinomial logistic regression, L-BFGS on all examples at once; features (n,d) of length 1, labels (n,)."""
    linear = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(linear(features), labels) + decay * linear.weight.square().sum()
        value.backward()
        return value

    optimiser.step(closure)
    return linear


def nearest(features: Tensor, labels: Tensor, queries: Tensor, k: int) -> Tensor:
    """Class with the largest sum of cosines among the k nearest of features (n,d) of length 1: (m,d) -> (m,)."""
    near = (queries @ features.T).topk(k)
    votes = F.one_hot(labels[near.indices]).float() * near.values[..., None]  # (m,k,classes)
    return votes.sum(1).argmax(-1)


def distil(encoder: Encoder, contents: list[bytes], targets: Tensor, config: DictConfig) -> None:
    """Raise the cosine with the exact model's embeddings, ``steps`` times over batches of ``batch`` examples."""
    optimiser = torch.optim.AdamW(encoder.model.parameters(), lr=config.lr, weight_decay=0.0)
    draw = np.random.default_rng(config.seed)
    for _ in range(config.steps):
        some = draw.choice(len(contents), config.batch, replace=False)
        optimiser.zero_grad()
        cosine = (encoder([contents[i] for i in some]) * targets[some].to(encoder.device)).sum(-1)
        (1 - cosine).mean().backward()
        optimiser.step()


def study(config: DictConfig) -> list[Result]:
    """The exact model first, then every selection and count, each before and after distillation."""
    encoder = load(config)
    (texts, labels), (unseen, truth) = (
        examples(Path(config.examples), split, config[split], config.seed) for split in ("train", "test")
    )
    taught, exact = (encoder.embed(some, config.batch) for some in (texts, unseen))
    linear = probe(taught, labels)

    def result(attention: str, count: int | None, tuned: int, got: Tensor) -> Result:
        cosine = (got * exact).sum(-1)
        right = [(guess == truth).float().mean().item() * 100 for guess in (linear(got).argmax(-1), knn(got))]
        return Result(
            attention=attention,
            count=count,
            tuned=tuned,
            cosine=cosine.mean().item(),
            cosine_std=cosine.std().item(),
            probe=right[0],
            knn=right[1],
            n=len(truth),
        )

    def knn(got: Tensor) -> Tensor:
        return nearest(taught, labels, got, config.neighbours)

    results = [result("exact", None, 0, exact)]
    for score in config.selections:
        for count in config.counts:
            torch.manual_seed(config.seed)
            other = encoder.with_cur(**SELECTIONS[score], count=count, pairing=config.pairing, steps=config.inverse)
            results.append(result(score, count, 0, other.embed(unseen, config.batch)))
            if config.steps:
                other.model = copy.deepcopy(other.model)
                distil(other, texts, taught, config)
                results.append(result(score, count, config.steps, other.embed(unseen, config.batch)))
    return results


@main("pretrained")
def pretrained(config: DictConfig) -> None:
    """Print the table; raises ValueError for a model, file or number that there is not."""
    if wrong := [score for score in config.selections if score not in SELECTIONS]:
        raise ValueError(f"selections must be of {', '.join(SELECTIONS)}, not {', '.join(map(str, wrong))}")
    results = study(config)
    table = Table("attention", "count", "tuned", "cosine", "probe %", "k-NN %", box=box.SIMPLE_HEAD, show_edge=False)
    for r in results:
        scores = [f"{p:.1f} ± {(p * (100 - p) / r.n) ** 0.5:.1f}" for p in (r.probe, r.knn)]
        cosine = f"{r.cosine:.4f} ± {r.cosine_std:.4f}"
        table.add_row(r.attention, str(r.count or "-"), str(r.tuned), cosine, *scores)
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    console.print(table)
    print(
        f"{config.model}: {config.train} train and {config.test} test examples; cosine ± deviation over "
        "examples; accuracies ± binomial standard error, probe and k-NN taught with exact embeddings"
    )
    if config.out:
        Path(config.out).write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
        draw(results, config.model, Path(config.out).with_suffix(".png"))


if __name__ == "__main__":
    pretrained()
