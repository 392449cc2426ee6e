"""python -m lra.studies.pretrained: the accuracy of a pretrained encoder with CUR, before and after distillation.

CURformer's Table 5 and Figure 5 study ViT-B/16 on ImageNet; this study takes any encoder and any labelled texts or
images. A linear probe and a k-NN classifier are fitted once to exact embeddings of the train examples, then applied to
embeddings of the test examples by the model with CUR in place of its attention.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from ...config.entry import main
from ...integrations import needs
from ...report.table import Table, frame, show
from ..examples import labelled
from ..figures import panels, save
from .options import PretrainedOptions

with needs("hf", __name__):
    from ...integrations.huggingface import SELECTIONS
    from ..encoder import Encoder, load

METRICS = {"cosine": "cosine", "probe": "linear probe, %", "knn": "k-NN, %"}
HEAD = ("attention", "count", "tuned", "cosine", "probe %", "k-NN %")
LEGEND = (
    "cosine ± deviation over examples; accuracies ± binomial standard error, probe and k-NN fitted to exact embeddings"
)


def probe(features: Tensor, labels: Tensor) -> torch.nn.Linear:
    """Fit a multinomial logistic regression by L-BFGS to features (n,d) of length 1 with labels (n,), all at once."""
    linear = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(linear(features), labels) + 1e-3 * linear.weight.square().sum()
        value.backward()
        return value

    optimiser.step(closure)
    return linear


def nearest(features: Tensor, labels: Tensor, queries: Tensor, k: int) -> Tensor:
    """Classify queries (m,d) by the largest sum of cosines with the k nearest features (n,d): labels (n,) -> (m,)."""
    near = (queries @ features.T).topk(k)
    votes = F.one_hot(labels[near.indices]).float() * near.values[..., None]  # (m,k,classes)
    return votes.sum(1).argmax(-1)


def distil(encoder: Encoder, contents: list[bytes], targets: Tensor, options: PretrainedOptions) -> None:
    """Train an encoder in place to increase the cosine of its embeddings with the exact ones, ``targets`` (n,d)."""
    optimiser = torch.optim.AdamW(encoder.model.parameters(), lr=options.lr, weight_decay=0.0)
    draw = np.random.default_rng(options.seed)
    for _ in range(options.steps):
        some = draw.choice(len(contents), options.batch, replace=False)
        optimiser.zero_grad()
        cosine = (encoder([contents[i] for i in some]) * targets[some].to(encoder.device)).sum(-1)
        (1 - cosine).mean().backward()
        optimiser.step()


def study(options: PretrainedOptions) -> list[dict]:
    """Measure the exact model, then every selection and count, each before and after distillation.

    Returns:
        A row for each attention: ``attention``, exact, a selection or plus; ``count``, the rows and columns kept, None
        for exact; ``tuned``, the steps of distillation; ``cosine`` and ``cosine_std`` of its embeddings with the exact
        ones, mean and standard deviation over test examples; ``probe`` and ``knn``, the accuracies in percent; ``n``,
        the number of test examples.
    """
    encoder = load(options.model, pool=options.pool, length=options.length, size=options.size, device=options.device)
    (texts, labels), (unseen, truth) = (
        labelled(options.examples, split, getattr(options, split), options.seed) for split in ("train", "test")
    )
    train_embeddings, exact = (encoder.embed(some, options.batch) for some in (texts, unseen))
    linear = probe(train_embeddings, labels)

    def result(attention: str, count: int | None, tuned: int, embeddings: Tensor) -> dict:
        cosine = (embeddings * exact).sum(-1)
        guesses = linear(embeddings).argmax(-1), nearest(train_embeddings, labels, embeddings, options.neighbours)
        probed, near = ((guess == truth).float().mean().item() * 100 for guess in guesses)
        own = {"attention": attention, "count": count, "tuned": tuned, "cosine": cosine.mean().item()}
        return own | {"cosine_std": cosine.std().item(), "probe": probed, "knn": near, "n": len(truth)}

    results = [result("exact", None, 0, exact)]
    for score in options.selections:
        for count in options.counts:
            torch.manual_seed(options.seed)
            other = encoder.with_cur(**SELECTIONS[score], count=count, pairing=options.pairing, steps=options.inverse)
            results.append(result(score, count, 0, other.embed(unseen, options.batch)))
            if options.steps:
                distil(other, texts, train_embeddings, options)
                results.append(result(score, count, options.steps, other.embed(unseen, options.batch)))
    return results


@main(PretrainedOptions)
def pretrained(options: PretrainedOptions) -> None:
    """Print the table and write it with its figure.

    Raises:
        ValueError: the model or a file cannot be used, or an option is not valid.
    """
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is trained
    lines, results = [], study(options)
    for r in results:
        scores = [f"{r[name]:.1f} ± {error(r, name):.1f}" for name in ("probe", "knn")]
        cosine = f"{r['cosine']:.4f} ± {r['cosine_std']:.4f}"
        lines.append([r["attention"], str(r["count"] or "-"), str(r["tuned"]), cosine, *scores])
    cells, about = frame(HEAD, lines), f"{options.train} train and {options.test} test examples"
    show([Table(name="pretrained", title=str(options.model), about=about, cells=cells, words=("attention",))], LEGEND)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        draw(pd.DataFrame(results), options.model, options.out.with_suffix(".png"))


def error(result: Mapping, metric: str):
    """The standard error of a metric of a row, or of rows as a DataFrame: of a mean, or of a proportion in percent."""
    p = result[metric]
    return result["cosine_std"] / result["n"] ** 0.5 if metric == "cosine" else (p * (100 - p) / result["n"]) ** 0.5


def draw(results: pd.DataFrame, model: Path, file: Path) -> None:
    """Draw the metrics of the rows of a study, first the exact model's, over counts.

    There is a line for each attention and tuning; bars are standard errors over the n test examples.
    """
    exact, others = results.iloc[0], results[1:].astype({"count": int}).sort_values("count", kind="stable")
    words, counts = list(others.attention.unique()), list(others["count"].unique())
    figure, grid = panels(3, width=3.7, height=3.6)
    for axes, (metric, label) in zip(grid, METRICS.items(), strict=True):
        axes.axhline(exact[metric], color="grey", linestyle=":", linewidth=1, label="exact")
        for (word, tuned), line in others.groupby(["attention", "tuned"], sort=False):
            style = {"color": f"C{words.index(word) % 10}", "linestyle": "-", "marker": "o"}
            if tuned:  # hollow markers, since a line of one count has no visible dashes
                style |= {"linestyle": "--", "marker": "s", "markerfacecolor": "white"}
            name = f"{word}, {tuned} steps of distillation" if tuned else word
            axes.errorbar(
                line["count"], line[metric], error(line, metric), label=name, markersize=4, capsize=2, **style
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, map(str, counts))
        axes.set(xlabel="rows and columns kept", ylabel=label)
    save(figure, file, f"{model.name}, n = {exact.n}", loc="outside right upper")


if __name__ == "__main__":
    pretrained()
