"""python -m lra.studies.pretrained: the accuracy of a pretrained encoder with CUR, before and after distillation.

CURformer's Table 5 and Figure 5 study ViT-B/16 on ImageNet; this study takes any encoder and any labelled texts or
images. A linear probe and a k-NN classifier are fitted once, to embeddings of the train examples by the exact model;
they then classify embeddings of the test examples by the model with CUR.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("pretrained")

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from ...config.entry import main
from ...integrations import needs
from ...results.table import Table, frame, show
from ..examples import draw_files
from ..figures import panels, save
from .options import PretrainedOptions

with needs("hf", __name__):
    from ...integrations.huggingface import SELECTIONS
    from ..encoder import Encoder, load

# Label of each metric in the figure.
METRICS = {"cosine": "cosine", "probe": "linear probe, %", "knn": "k-NN, %"}
HEAD = ("attention", "count", "tuned", "cosine", "probe %", "k-NN %")
LEGEND = (
    "cosine ± deviation over examples; accuracies ± binomial standard error, probe and k-NN fitted to exact embeddings"
)


def fit_probe(features: Tensor, labels: Tensor) -> torch.nn.Linear:
    """Fit multinomial logistic regression with an L2 penalty to features (n,d), labels (n,) by full-batch L-BFGS."""
    # Start from zero, so that the fit does not depend on a seed.
    linear = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = 1e-3 * linear.weight.square().sum()
        loss = F.cross_entropy(linear(features), labels) + penalty
        loss.backward()
        return loss

    optimiser.step(closure)
    return linear


def classify_by_neighbours(features: Tensor, labels: Tensor, queries: Tensor, k: int) -> Tensor:
    """Classify queries by a vote of their k nearest neighbours, each weighted by its cosine.

    Args:
        features: unit vectors (n,d).
        labels: their labels (n,).
        queries: unit vectors (m,d).
        k: number of neighbours.

    Returns:
        Labels (m,).
    """
    cosines, indices = (queries @ features.T).topk(k)  # (m,k)
    classes = F.one_hot(labels[indices]).float()  # (m,k,classes)
    votes = classes * cosines[..., None]
    return votes.sum(1).argmax(-1)


def distil(encoder: Encoder, contents: list[bytes], targets: Tensor, options: PretrainedOptions) -> None:
    """Train an encoder in place, so that its embeddings approach the embeddings of the exact model.

    The loss is 1 - cosine. The encoder stays in evaluation mode, without dropout.

    Args:
        encoder: encoder with CUR attention.
        contents: n training examples.
        targets: their embeddings (n,d) by the exact model.
        options: options of the study.
    """
    optimiser = torch.optim.AdamW(encoder.model.parameters(), lr=options.lr, weight_decay=0.0)
    generator = np.random.default_rng(options.seed)
    for _ in range(options.steps):
        indices = generator.choice(len(contents), options.batch, replace=False)
        optimiser.zero_grad()
        embeddings = encoder([contents[i] for i in indices])
        # Embeddings are unit vectors, so the product is the cosine.
        cosine = (embeddings * targets[indices].to(encoder.device)).sum(-1)
        loss = (1 - cosine).mean()
        loss.backward()
        optimiser.step()


def study(options: PretrainedOptions) -> list[dict]:
    """Measure the exact model, then every selection and count, each before and after distillation.

    Returns:
        A row for each model: ``attention``, which is exact, a selection or plus; ``count``, the number of selected
        queries and keys, None for exact; ``tuned``, the steps of distillation; ``cosine`` and ``cosine_std``, mean and
        standard deviation over test examples of the cosine with the exact embedding; ``probe`` and ``knn``, the
        accuracies in percent; ``n``, the number of test examples.
    """
    encoder = load(
        options.model,
        pool=options.pool,
        length=options.length,
        size=options.size,
        device=options.device,
    )
    train_contents, train_labels = draw_files(options.examples, "train", options.train, options.seed)
    test_contents, test_labels = draw_files(options.examples, "test", options.test, options.seed)

    # Both classifiers are fitted to exact embeddings.
    train_embeddings = encoder.embed(train_contents, options.batch)
    exact = encoder.embed(test_contents, options.batch)
    linear = fit_probe(train_embeddings, train_labels)

    def accuracy(predictions: Tensor) -> float:
        """Percentage of test examples that are classified correctly."""
        return (predictions == test_labels).float().mean().item() * 100

    def result(attention: str, count: int | None, tuned: int, embeddings: Tensor) -> dict:
        """Make a row from the embeddings of the test examples."""
        cosine = (embeddings * exact).sum(-1)
        neighbour_labels = classify_by_neighbours(train_embeddings, train_labels, embeddings, options.neighbours)
        return {
            "attention": attention,
            "count": count,
            "tuned": tuned,
            "cosine": cosine.mean().item(),
            "cosine_std": cosine.std().item(),
            "probe": accuracy(linear(embeddings).argmax(-1)),
            "knn": accuracy(neighbour_labels),
            "n": len(test_labels),
        }

    results = [result("exact", None, 0, exact)]
    for score in options.selections:
        for count in options.counts:
            # The same random numbers for every attention.
            torch.manual_seed(options.seed)
            other = encoder.with_cur(
                **SELECTIONS[score],
                count=count,
                pairing=options.pairing,
                steps=options.inverse,
            )
            results.append(result(score, count, 0, other.embed(test_contents, options.batch)))
            if options.steps:
                distil(other, train_contents, train_embeddings, options)
                results.append(result(score, count, options.steps, other.embed(test_contents, options.batch)))
    return results


@main(PretrainedOptions)
def pretrained(options: PretrainedOptions) -> None:
    """Measure an encoder with CUR and print the table; with ``out``, write the results as JSON and as a figure.

    Raises:
        ValueError: the model or the examples cannot be used, or an option is not valid.
    """
    # Create the directory before anything is trained, so that an error is raised early.
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    results = study(options)

    lines = []
    for r in results:
        line = [
            r["attention"],
            str(r["count"] or "-"),
            str(r["tuned"]),
            f"{r['cosine']:.4f} ± {r['cosine_std']:.4f}",
            f"{r['probe']:.1f} ± {standard_error(r, 'probe'):.1f}",
            f"{r['knn']:.1f} ± {standard_error(r, 'knn'):.1f}",
        ]
        lines.append(line)
    table = Table(
        name="pretrained",
        title=str(options.model),
        about=f"{options.train} train and {options.test} test examples",
        cells=frame(HEAD, lines),
        words=("attention",),
    )
    show([table], LEGEND)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        draw(pd.DataFrame(results), options.model, options.out.with_suffix(".png"))


def standard_error(result: Mapping, metric: str):
    """Compute the standard error of a metric, of one row of ``study`` or of a DataFrame of rows.

    The cosine is a mean over the test examples; the accuracies are proportions in percent.
    """
    n = result["n"]
    if metric == "cosine":
        return result["cosine_std"] / n**0.5
    p = result[metric]
    return (p * (100 - p) / n) ** 0.5


def draw(results: pd.DataFrame, model: Path, file: Path) -> None:
    """Draw each metric over the count, as one curve for each selection before and after distillation.

    Bars are standard errors over the test examples.

    Args:
        results: rows of ``study``.
        model: path of the model, for the title.
        file: path of the figure.
    """
    # The first row is the exact model, which is drawn as a horizontal line.
    exact = results.iloc[0]
    cur = results[1:].astype({"count": int}).sort_values("count", kind="stable")
    attentions = list(cur.attention.unique())
    counts = list(cur["count"].unique())
    figure, grid = panels(3, width=3.7, height=3.6)
    for axes, (metric, label) in zip(grid, METRICS.items(), strict=True):
        axes.axhline(exact[metric], color="grey", linestyle=":", linewidth=1, label="exact")
        for (attention, tuned), line in cur.groupby(["attention", "tuned"], sort=False):
            style: dict[str, Any] = {"color": f"C{attentions.index(attention) % 10}", "linestyle": "-", "marker": "o"}
            name = attention
            # Hollow markers after distillation, since a line of one count has no visible dashes.
            if tuned:
                style |= {"linestyle": "--", "marker": "s", "markerfacecolor": "white"}
                name += f", {tuned} steps of distillation"
            axes.errorbar(
                line["count"],
                line[metric],
                standard_error(line, metric),
                label=name,
                markersize=4,
                capsize=2,
                **style,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, map(str, counts))
        axes.set(xlabel="selected queries and keys", ylabel=label)
    save(figure, file, f"{model.name}, n = {exact.n}", loc="outside right upper")


if __name__ == "__main__":
    pretrained()
