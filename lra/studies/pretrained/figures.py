"""The figure of a study of pretrained encoders: accuracy over counts, as in CURformer's Figures 5 to 7."""

from pathlib import Path

from ..figures import panels, save

METRICS = {"cosine": "cosine", "probe": "linear probe, %", "knn": "k-NN, %"}


def draw(results: list, model: Path, file: Path) -> None:
    """Draw cosine with the exact embeddings, probe and k-NN accuracy over counts.

    There is a line for each attention and tuning; bars are standard errors over the n test examples.

    Args:
        results: results of the study.
        model: folder or name of the model, whose last part is in the title.
        file: file to write.

    Raises:
        ValueError: the results have no exact attention.
    """
    exact = next((r for r in results if r.attention == "exact"), None)
    if exact is None:
        raise ValueError("results hold no exact attention to compare with")
    lines: dict[tuple[str, int], list] = {}
    for r in results:
        if r is not exact:
            lines.setdefault((r.attention, r.tuned), []).append(r)
    words = list(dict.fromkeys(word for word, _ in lines))
    figure, grid = panels(3, width=3.7, height=3.6)
    for axes, (metric, label) in zip(grid, METRICS.items(), strict=True):
        axes.axhline(getattr(exact, metric), color="grey", linestyle=":", linewidth=1, label="exact")
        for (word, tuned), some in lines.items():
            some = sorted(some, key=lambda r: r.count)
            style = {"color": f"C{words.index(word) % 10}", "linestyle": "-", "marker": "o"}
            if tuned:  # hollow markers, since a line of one count has no visible dashes
                style |= {"linestyle": "--", "marker": "s", "markerfacecolor": "white"}
            name = f"{word}, {tuned} steps of distillation" if tuned else word
            values, bars = [getattr(r, metric) for r in some], [_error(r, metric) for r in some]
            axes.errorbar([r.count for r in some], values, bars, label=name, markersize=4, capsize=2, **style)
        axes.set_xscale("log", base=2)
        counts = sorted({r.count for some in lines.values() for r in some})
        axes.set_xticks(counts, map(str, counts))
        axes.set(xlabel="rows and columns kept", ylabel=label)
    title = f"{model.name}, n = {exact.n}"
    save(figure, file, title, loc="outside right upper")


def _error(result, metric: str) -> float:
    """The standard error of a mean of cosines, or of a proportion in percent."""
    if metric == "cosine":
        return result.cosine_std / result.n**0.5
    p = getattr(result, metric)
    return (p * (100 - p) / result.n) ** 0.5
