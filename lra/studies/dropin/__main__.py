"""python -m lra.studies.dropin: the errors of replacements of trained softmax attention that need no training.

Every candidate of ``lra.studies.dropin.candidates`` gets the same queries, keys and values of every source. Errors and
costs are JSON files, and one table shows all of them.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, stdev
from typing import Annotated

import torch
from pydantic import ConfigDict, Field

from ...bench.measure import measure
from ...config.entry import main
from ...console import log
from ...disk import atomic, typed_json
from ...report.table import Table, frame, show
from ...runs import record
from .candidates import CANDIDATES, Function, softmax
from .qkv_sources import DropinOptions, QKVSource, sources

REPEATS = 3  # of the timing
FILE, COST, BASE = "errors.json", "cost.json", "cur_step"
STRICT = ConfigDict(strict=True)  # nan and infinity are valid results here
Count = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")]
Pairs = dict[str, dict[Count, tuple[float, float]]]  # by candidate, then by count as text
TINY = 1e-12  # the error of an exact result
LEGEND = (
    "Relative error |O - O'| / |O| (Frobenius, heads together) of the attention output, mean over layers ± sample "
    "standard deviation over examples. ratio: geometric mean over the columns of the error over that of cur_step, the "
    "paper's CUR; the table is sorted by it. ms (MiB): time and peak memory of one call at the length below."
)


@dataclass
class Errors:
    """The errors of one source: mean and deviation over n examples."""

    __pydantic_config__ = STRICT
    source: typed_json.FolderName
    about: str
    n: int
    seed: int
    git: str | None
    values: Pairs = field(default_factory=dict)


@dataclass
class Cost:
    """The cost in milliseconds and MiB of exact attention, and by candidate and count."""

    __pydantic_config__ = STRICT
    about: str
    exact: tuple[float, float]
    values: Pairs


def load(path: Path, kind: type = Errors) -> Errors | Cost:
    """Read the errors of a source, or the cost. Raises ValueError if the file does not hold them."""
    return typed_json.parse(kind, path, "a record of this study", "delete it to make it again")


@main(DropinOptions)
def dropin(options: DropinOptions) -> None:
    """Measure the candidates and add the results to those in runs/dropin.

    Raises:
        ValueError: a candidate, a run or a file does not exist, or a number is out of range.
    """
    chosen = CANDIDATES if "all" in options.candidates else options.candidates
    names = list(dict.fromkeys([BASE, *chosen]))
    torch.set_num_threads(options.threads)
    home = options.runs / "dropin"
    for source in list(sources(options)):  # all are loaded before the first is measured
        shortest = min(layer[0].shape[2] for example in source.examples for layer in example)
        if shortest < max(options.counts):
            raise ValueError(f"counts: {max(options.counts)} is more than the {shortest} tokens of {source.name}")
        save(errors(source, names, options), home / source.name / FILE)
        log(f"{source.name}: {len(names)} candidates, n = {options.n}")
    if options.cost:
        save(cost(names, options), home / COST)
    loaded, damaged = typed_json.scan(home, FILE, load)
    for line in damaged:
        log(f"skipped: {line}")
    prices = load(home / COST, Cost) if (home / COST).exists() else None
    made = table(list(loaded.values()), prices)
    atomic.write(home / "dropin.md", made.section(1) + "\n")
    show([replace(made, cells=made.cells.drop(columns="what"))], "")
    print(f"written to {home}/dropin.md")


def save(new: Errors | Cost, path: Path) -> None:
    """Write results, with the candidates and counts that an earlier file of the same examples or sizes has besides."""
    if path.exists():
        old = load(path, type(new))
        if all(getattr(old, key, None) == getattr(new, key, None) for key in ("about", "n", "seed")):
            for name, values in old.values.items():
                new.values[name] = values | new.values.get(name, {})
    typed_json.save(new, path)


@torch.no_grad()
def errors(source: QKVSource, names: list[str], options: DropinOptions) -> Errors:
    """Measure the error of each named candidate and count: mean and deviation over the examples of a source."""
    exact = [[softmax(*layer) for layer in example] for example in source.examples]
    measured = Errors(source.name, source.about, options.n, options.seed, record.git_commit())
    for name in names:
        measured.values[name] = {}
        for count in options.counts:
            torch.manual_seed(options.seed)  # random numbers do not depend on earlier candidates
            far = partial(distance, CANDIDATES[name].function, count=count)
            each = [mean(map(far, *pair)) for pair in zip(source.examples, exact, strict=True)]
            measured.values[name][str(count)] = (mean(each), stdev(each))
    return measured


def distance(function: Function, layer: tuple, out: torch.Tensor, count: int) -> float:
    """The relative Frobenius error of a candidate on a layer q, k, v with the exact output ``out``, over all heads."""
    return ((function(*layer, count) - out).norm() / out.norm()).item()


@torch.no_grad()
def cost(names: list[str], options: DropinOptions) -> Cost:
    """Measure milliseconds and MiB of one call of each candidate and count, and of exact attention."""
    draw = torch.Generator().manual_seed(options.seed)
    qkv = [torch.randn(1, options.heads, options.cost, options.head_dim, generator=draw) for _ in range(3)]
    counts = [count for count in options.counts if count <= options.cost]
    steps = {(name, count): partial(CANDIDATES[name].function, *qkv, count) for name in names for count in counts}
    steps["exact"] = lambda: torch.nn.functional.scaled_dot_product_attention(*qkv)
    prices = {key: (m.ms, m.peak_bytes / 2**20) for key, m in measure(steps, repeats=REPEATS).items()}
    sizes = f"{options.cost} tokens, {options.heads} heads of {options.head_dim}"
    about = f"{sizes}, {options.threads} CPU thread(s), median of {REPEATS}"
    values = {name: {str(count): prices[name, count] for count in counts} for name in names}
    return Cost(about, prices["exact"], values)


def ratio(name: str, some: list[Errors]) -> float:
    """The geometric mean of a candidate's error over that of BASE in the same column; infinite if one is not finite."""
    found = []
    for values in (e.values for e in some):
        for count in values.get(name, {}).keys() & values.get(BASE, {}).keys():
            own, base = (values[label][count][0] for label in (name, BASE))
            found.append(max(own, TINY) / max(base, TINY) if math.isfinite(own + base) else math.inf)
    return geometric_mean(found) if found else math.inf


def table(some: list[Errors], cost: Cost | None) -> Table:
    """Make the table of the errors of every source, and of the cost if it was measured, the best candidate first."""
    ratios = {name: ratio(name, some) for e in some for name in e.values}
    names = sorted(ratios, key=lambda name: (ratios[name], name))

    def columns(title: str, values: Pairs, form) -> dict[str, list[str]]:
        counts = sorted({count for by_count in values.values() for count in by_count}, key=int)
        text = lambda name, count: form(*values[name][count]) if count in values.get(name, {}) else ""
        return {f"{title} c={count}": [text(name, count) for name in names] for count in counts}

    shown = {"candidate": names, "ratio": [f"{ratios[name]:.3g}" for name in names]}
    facts = [f"{e.source}: {e.about}; n = {e.n}, seed {e.seed}, commit {e.git or 'unknown'}" for e in some]
    if cost:
        price = "{:.3g} ({:.3g})".format
        shown |= columns("ms (MiB)", cost.values, price)
        facts.append(f"ms (MiB): {cost.about}; exact attention (sdpa) {price(*cost.exact)}")
    for e in some:
        shown |= columns(e.source, e.values, error_text)
    shown["what"] = [CANDIDATES[name].about if name in CANDIDATES else "" for name in names]
    cells, words = frame(shown, zip(*shown.values(), strict=True)), ("candidate", "what")
    text = "\n* ".join([f"{LEGEND}\n", *facts])
    return Table(name="dropin", title="Candidates for a drop-in", about=text, cells=cells, words=words)


def error_text(mean: float, deviation: float) -> str:
    """Format mean ± deviation."""
    digits = 3 if mean < 10 else 0
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    dropin()
