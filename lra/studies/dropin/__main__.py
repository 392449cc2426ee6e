"""python -m lra.studies.dropin: what stands in for trained softmax attention without training, and how near it comes.

Every candidate of ``lra.studies.dropin.candidates`` on the same queries, keys and values of every source, in one table.
"""

import json
import sys
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table

from ...bench.measure import measure
from ...config import main
from ...disk import checksums
from ...runs import record
from .baselines import softmax
from .candidates import CANDIDATES, Function
from .qkv_sources import Source, sources
from .table import BASE, COST, FILE, Errors, load, load_cost, markdown, rows, save

REPEATS = 3  # of the timing


@main("dropin")
def dropin(config: DictConfig) -> None:
    """Adds to what lies under runs/dropin; raises ValueError for names, numbers and files that there are not."""
    names = named(config)
    torch.set_num_threads(config.threads)
    home = Path(config.runs) / "dropin"
    for source in list(sources(config)):  # all are there before the first is measured
        shortest = min(layer[0].shape[2] for example in source.examples for layer in example)
        if shortest < max(config.counts):
            raise ValueError(f"counts: {max(config.counts)} is more than the {shortest} tokens of {source.name}")
        save(merged(errors(source, names, config), home), home)
        print(f"{source.name}: {len(names)} candidates, n = {config.n}", file=sys.stderr, flush=True)
    if config.cost:
        home.mkdir(parents=True, exist_ok=True)
        made, old = cost(names, config), paid(home)
        if old.get("about") == made["about"]:
            made["values"] = old["values"] | made["values"]
        checksums.save(home / COST, json.dumps(made, indent=1) + "\n")
    found, damaged = record.scan_files(home, FILE, load)
    for line in damaged:
        print(f"skipped: {line}", file=sys.stderr)
    every, price, about = list(found.values()), paid(home), {name: c.about for name, c in CANDIDATES.items()}
    record.write(home / "dropin.md", markdown(every, price, about))
    head, lines = rows(every, price, {})
    table = Table(*head[:-1], box=box.SIMPLE_HEAD, show_edge=False)
    for cells in lines:
        table.add_row(*cells[:-1])
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else 200  # a pipe has no width to fit
    console.print(table)
    print(f"written to {home}/dropin.md")


def named(config: DictConfig) -> list[str]:
    """The names of the candidates, BASE among them. Raises ValueError."""
    names = list(CANDIDATES) if config.candidates == ["all"] else [str(name) for name in config.candidates]
    if unknown := [name for name in names if name not in CANDIDATES]:
        raise ValueError(f"candidates: {', '.join(unknown)} is not one of all, {', '.join(CANDIDATES)}")
    return [BASE, *(name for name in names if name != BASE)]


@torch.no_grad()
def errors(source: Source, names: list[str], config: DictConfig) -> Errors:
    exact = [[softmax(*layer) for layer in example] for example in source.examples]
    made = Errors(source.name, source.about, config.n, config.seed, record.git_commit())
    for name in names:
        made.values[name] = {}
        for count in config.counts:
            torch.manual_seed(config.seed)  # what is drawn at random does not depend on the candidates before
            each = [
                mean(
                    distance(CANDIDATES[name].function, layer, out, count)
                    for layer, out in zip(layers, outs, strict=True)
                )
                for layers, outs in zip(source.examples, exact, strict=True)
            ]
            made.values[name][str(count)] = (mean(each), stdev(each))
    return made


def distance(function: Function, layer: tuple, out: torch.Tensor, count: int) -> float:
    """Relative, Frobenius, heads together."""
    return ((function(*layer, count) - out).norm() / out.norm()).item()


def merged(new: Errors, home: Path) -> Errors:
    """With the candidates and counts that were measured on the same examples before."""
    path = home / new.source / FILE
    if path.exists():
        old = load(path)
        if (old.about, old.n, old.seed) == (new.about, new.n, new.seed):
            for name, values in old.values.items():
                new.values[name] = {**values, **new.values.get(name, {})}
    return new


def paid(home: Path) -> dict:
    """Earlier results of ``cost``, empty without any."""
    path = home / COST
    return load_cost(path) if path.exists() else {}


@torch.no_grad()
def cost(names: list[str], config: DictConfig) -> dict:
    """Milliseconds and MiB of one call for each count, and of exact attention."""
    draw = torch.Generator().manual_seed(config.seed)
    qkv = [torch.randn(1, config.heads, config.cost, config.head_dim, generator=draw) for _ in range(3)]
    keys = [(name, count) for name in names for count in config.counts if count <= config.cost]
    steps = {key: partial(CANDIDATES[key[0]].function, *qkv, key[1]) for key in keys}
    steps["exact"] = lambda: torch.nn.functional.scaled_dot_product_attention(*qkv)
    found = measure(steps, repeats=REPEATS)
    price = lambda m: (m.ms, m.peak_bytes / 2**20)
    sizes = f"{config.cost} tokens, {config.heads} heads of {config.head_dim}"
    about = f"{sizes}, {config.threads} CPU thread(s), median of {REPEATS}"
    made = {"about": about, "exact": price(found.pop("exact"))}
    values: dict[str, dict[str, tuple]] = {}
    for (name, count), m in found.items():
        values.setdefault(name, {})[str(count)] = price(m)
    return made | {"values": values}


if __name__ == "__main__":
    dropin()
