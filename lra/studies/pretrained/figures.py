"""The figure of a study of pretrained encoders: accuracy over counts, as in CURformer's Figures 5 to 7."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ..figures import panels, save

METRICS = {"cosine": "cosine", "probe": "linear probe, %", "knn": "k-NN, %"}


def error(result: Mapping, metric: str):
    """The standard error of the mean of cosines, or of a proportion in percent.

    Args:
        result: row of the study, or the rows as a DataFrame.
        metric: name of the column.
    """
    p = result[metric]
    return result["cosine_std"] / result["n"] ** 0.5 if metric == "cosine" else (p * (100 - p) / result["n"]) ** 0.5


def draw(results: pd.DataFrame, model: Path, file: Path) -> None:
    """Draw cosine with the exact embeddings, probe and k-NN accuracy over counts.

    There is a line for each attention and tuning; bars are standard errors over the n test examples.

    Args:
        results: rows of the study, first the exact model's.
        model: folder or name of the model, whose last part is in the title.
        file: file to write.
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
