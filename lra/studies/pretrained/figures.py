"""The figure of a study of pretrained encoders: accuracy over counts, as in CURformer's Figures 5 to 7."""

from dataclasses import dataclass
from pathlib import Path

from ..figures import panels, save

METRICS = {"cosine": "cosine", "probe": "linear probe, %", "knn": "k-NN, %"}


@dataclass(frozen=True, kw_only=True)
class EncoderResult:
    """The result of one attention.

    Args:
        attention: exact, a selection or plus.
        count: rows and columns kept, None for exact.
        tuned: steps of distillation.
        cosine, cosine_std: cosine of its embeddings with the exact ones, mean and standard deviation over test
            examples.
        probe, knn: accuracy in percent.
        n: test examples.
    """

    attention: str
    count: int | None
    tuned: int
    cosine: float
    cosine_std: float
    probe: float
    knn: float
    n: int

    def error(self, metric: str) -> float:
        """The standard error of the mean of cosines, or of a proportion in percent."""
        p = getattr(self, metric)
        return self.cosine_std / self.n**0.5 if metric == "cosine" else (p * (100 - p) / self.n) ** 0.5


def draw(results: list[EncoderResult], model: Path, file: Path) -> None:
    """Draw cosine with the exact embeddings, probe and k-NN accuracy over counts.

    There is a line for each attention and tuning; bars are standard errors over the n test examples.

    Args:
        results: results of the study, first the exact model's.
        model: folder or name of the model, whose last part is in the title.
        file: file to write.
    """
    exact, *others = results
    lines: dict[tuple[str, int], list[EncoderResult]] = {}
    for r in sorted(others, key=lambda r: r.count):
        lines.setdefault((r.attention, r.tuned), []).append(r)
    words = list(dict.fromkeys(r.attention for r in others))
    counts = sorted({r.count for r in others})
    figure, grid = panels(3, width=3.7, height=3.6)
    for axes, (metric, label) in zip(grid, METRICS.items(), strict=True):
        axes.axhline(getattr(exact, metric), color="grey", linestyle=":", linewidth=1, label="exact")
        for word, tuned in dict.fromkeys((r.attention, r.tuned) for r in others):
            some = lines[word, tuned]
            style = {"color": f"C{words.index(word) % 10}", "linestyle": "-", "marker": "o"}
            if tuned:  # hollow markers, since a line of one count has no visible dashes
                style |= {"linestyle": "--", "marker": "s", "markerfacecolor": "white"}
            name = f"{word}, {tuned} steps of distillation" if tuned else word
            values, bars = [getattr(r, metric) for r in some], [r.error(metric) for r in some]
            axes.errorbar([r.count for r in some], values, bars, label=name, markersize=4, capsize=2, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, map(str, counts))
        axes.set(xlabel="rows and columns kept", ylabel=label)
    save(figure, file, f"{model.name}, n = {exact.n}", loc="outside right upper")
