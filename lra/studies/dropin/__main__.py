"""python -m lra.studies.dropin: the errors of replacements of trained softmax attention that need no training.

Every candidate of ``lra.studies.dropin.candidates`` gets the same queries, keys and values of every source.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch

from ...bench.measure import measure
from ...config.entry import main
from ...console import log
from ...disk import atomic
from ...report.table import show
from ...runs import record, typed_json
from .candidates import CANDIDATES, Function, softmax
from .qkv_sources import DropinOptions, QKVSource, sources
from .table import BASE, COST, FILE, Cost, Errors, load, table

REPEATS = 3  # of the timing


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


if __name__ == "__main__":
    dropin()
