"""python -m lra.studies.dropin: the errors of replacements of softmax attention without further training.

Every candidate of ``lra.studies.dropin.candidates`` gets the same queries, keys and values of every source. Errors and
costs are JSON files, and one table shows all of them.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("dropin")

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Annotated, TypeVar

import torch
from pydantic import ConfigDict, Field

from ...bench.measure import measure
from ...config.entry import main
from ...console import log, plural
from ...io import atomic, typed_json
from ...results.table import Table, frame, show
from ...runs import record
from ..qkv import QKV
from .candidates import CANDIDATES, CandidateFunction, softmax
from .qkv_sources import DropinOptions, QKVSource, sources

# Number of timed calls, whose median is reported.
REPEATS = 3
ERRORS_FILE = "errors.json"
COST_FILE = "cost.json"
# The candidate whose error is the denominator of every ratio.
BASE = "cur_step"
# Unlike typed_json.STRICT it allows NaN and infinity, which are valid errors: an approximation may overflow.
STRICT_WITH_NAN = ConfigDict(strict=True)
# A token budget, as a key of JSON.
Count = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")]
# A pair of numbers by candidate, then by count: (mean, standard deviation) of errors, (milliseconds, MiB) of costs.
Pairs = dict[str, dict[Count, tuple[float, float]]]
# Name of exact attention among the functions that are timed.
EXACT = "exact"
# Lower bound of the errors in a ratio, since the error of an exact result is 0.
MIN_ERROR = 1e-12
LEGEND = (
    "Relative error |O - O'| / |O| (Frobenius, heads together) of the attention output, mean over layers ± sample "
    "standard deviation over examples. ratio, which sorts the table: geometric mean over the columns of the error "
    "divided by the error of cur_step, the paper's CUR; ms (MiB): time and peak memory of one call at the length below."
)


@dataclass
class Errors:
    """The errors of one source: mean and standard deviation over n examples."""

    __pydantic_config__ = STRICT_WITH_NAN
    source: typed_json.FolderName
    about: str
    n: int
    seed: int
    git: str | None
    values: Pairs = field(default_factory=dict)


@dataclass
class Cost:
    """The cost in milliseconds and MiB of exact attention, and by candidate and count."""

    __pydantic_config__ = STRICT_WITH_NAN
    about: str
    exact: tuple[float, float]
    values: Pairs


Results = TypeVar("Results", Errors, Cost)


def load(path: Path, kind: type[Results]) -> Results:
    """Read the errors of a source, or the cost.

    Raises:
        ValueError: the file does not hold them.
    """
    return typed_json.parse(kind, path, "a record of this study", "delete it to repeat the measurement")


@main(DropinOptions)
def dropin(options: DropinOptions) -> None:
    """Measure the candidates and add the results to runs/dropin.

    Raises:
        ValueError: a candidate, a run or a file does not exist, or a number is out of range.
    """
    candidates = CANDIDATES if "all" in options.candidates else options.candidates
    # The base of the ratios is always measured, and first.
    names = list(dict.fromkeys([BASE, *candidates]))
    torch.set_num_threads(options.threads)
    home = options.runs / "dropin"

    # All sources are loaded and checked before the first is measured, so that errors are raised early.
    loaded = list(sources(options))
    for source in loaded:
        _check_counts(source, options)
    for source in loaded:
        save(measure_errors(source, names, options), home / source.name / ERRORS_FILE)
        log(f"{source.name}: {plural(len(names), 'candidate')}, n = {options.n}")
    if options.cost:
        save(measure_cost(names, options), home / COST_FILE)

    # The table shows earlier results as well.
    records, damaged = typed_json.scan(home, ERRORS_FILE, partial(load, kind=Errors))
    for line in damaged:
        log(f"skipped: {line}")
    costs = None
    if (home / COST_FILE).exists():
        costs = load(home / COST_FILE, Cost)
    full_table = table(list(records.values()), costs)
    atomic.write(home / "dropin.md", full_table.section(1) + "\n")
    # Descriptions are too wide for a terminal.
    short_cells = full_table.cells.drop(columns="what")
    short_table = replace(full_table, cells=short_cells)
    show([short_table], "")
    print(f"written to {home}/dropin.md")


def _check_counts(source: QKVSource, options: DropinOptions) -> None:
    """Raise ValueError if an example of a source is shorter than the largest count."""
    shortest = math.inf
    for example in source.examples:
        for q, _, _ in example:
            shortest = min(shortest, q.shape[2])
    largest = max(options.counts)
    if shortest < largest:
        raise ValueError(f"counts must be at most {shortest}, the tokens of {source.name}, got {largest}")


def save(new: Results, path: Path) -> None:
    """Write results, together with the other candidates and counts of an earlier file.

    The earlier file is replaced if it has another description, ``n``, ``seed`` or commit.
    """
    if path.exists():
        old = load(path, type(new))
        # Costs have no n, seed and commit.
        if all(getattr(old, key, None) == getattr(new, key, None) for key in ("about", "n", "seed", "git")):
            for name, values in old.values.items():
                new.values[name] = values | new.values.get(name, {})
        else:
            log(f"{path}: replaces results of another description, n, seed or commit")
    typed_json.save(new, path)


@torch.no_grad()
def measure_errors(source: QKVSource, names: list[str], options: DropinOptions) -> Errors:
    """Measure the error of each named candidate and count: mean and deviation over the examples of a source."""
    # The exact outputs of every layer of every example.
    exact_outputs = []
    for example in source.examples:
        exact_outputs.append([softmax(*layer) for layer in example])

    measured = Errors(source.name, source.about, options.n, options.seed, record.git_commit())
    for name in names:
        function = CANDIDATES[name].function
        measured.values[name] = {}
        for count in options.counts:
            # Random numbers do not depend on earlier candidates.
            torch.manual_seed(options.seed)
            by_example = []
            for example, outputs in zip(source.examples, exact_outputs, strict=True):
                pairs = zip(example, outputs, strict=True)
                by_layer = [relative_error(function, layer, exact, count) for layer, exact in pairs]
                by_example.append(mean(by_layer))
            errors = torch.tensor(by_example, dtype=torch.float64)
            measured.values[name][str(count)] = (mean(by_example), errors.std().item())
    return measured


def relative_error(function: CandidateFunction, layer: QKV, exact: torch.Tensor, count: int) -> float:
    """Compute |O - O'| / |O| of a layer's exact output O and a candidate's O', in Frobenius norms over all heads."""
    error = function(*layer, count) - exact
    return (error.norm() / exact.norm()).item()


@torch.no_grad()
def measure_cost(names: list[str], options: DropinOptions) -> Cost:
    """Measure time and peak memory of a call of each candidate and of sdpa, at length ``options.cost`` on the CPU.

    Counts beyond the length are left out.
    """
    generator = torch.Generator().manual_seed(options.seed)
    shape = (1, options.heads, options.cost, options.head_dim)
    q, k, v = (torch.randn(*shape, generator=generator) for _ in range(3))

    counts = [count for count in options.counts if count <= options.cost]
    steps: dict[tuple[str, int], Callable[[], torch.Tensor]] = {}
    for name in names:
        function = CANDIDATES[name].function
        for count in counts:
            steps[name, count] = partial(function, q, k, v, count)
    # Exact attention has no count.
    steps[EXACT, 0] = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)
    costs = {}
    for key, measurement in measure(steps, repeats=REPEATS).items():
        if measurement.ms is None or measurement.peak_bytes is None:
            name, count = key
            raise ValueError(f"the cost of {name} with count {count} cannot be measured: {measurement.status}")
        mib = measurement.peak_bytes / 2**20
        costs[key] = (measurement.ms, mib)

    values = {}
    for name in names:
        values[name] = {str(count): costs[name, count] for count in counts}
    sizes = f"{options.cost} tokens, {options.heads} heads of {options.head_dim}"
    about = f"{sizes}, {plural(options.threads, 'thread')} of {record.processor()}, median of {REPEATS}"
    return Cost(about, costs[EXACT, 0], values)


def ratio(name: str, all_errors: list[Errors]) -> float:
    """Compute the geometric mean over columns of a candidate's error divided by the error of BASE.

    A column is a source with a count. The ratio is infinite if an error is not finite, or if no column has both.
    """
    ratios = []
    for errors in all_errors:
        by_count = errors.values.get(name, {})
        base_by_count = errors.values.get(BASE, {})
        for count in by_count.keys() & base_by_count.keys():
            error, _ = by_count[count]
            base, _ = base_by_count[count]
            if math.isfinite(error + base):
                ratios.append(max(error, MIN_ERROR) / max(base, MIN_ERROR))
            else:
                ratios.append(math.inf)
    return geometric_mean(ratios) if ratios else math.inf


def table(all_errors: list[Errors], cost: Cost | None) -> Table:
    """Make the table of the errors of every source, and of the cost if it was measured, the best candidate first."""
    measured: set[str] = set()
    for errors in all_errors:
        measured.update(errors.values)
    ratios = {name: ratio(name, all_errors) for name in measured}
    names = sorted(ratios, key=lambda name: (ratios[name], name))

    # Columns by name: candidate, ratio, cost, the errors of each source, description.
    columns = {"candidate": names, "ratio": [f"{ratios[name]:.3g}" for name in names]}
    facts = []
    for errors in all_errors:
        commit = errors.git or "unknown"
        facts.append(f"{errors.source}: {errors.about}; n = {errors.n}, seed {errors.seed}, commit {commit}")
    if cost:
        columns |= _columns("ms (MiB)", cost.values, names, cost_text)
        facts.append(f"ms (MiB): {cost.about}; exact attention (sdpa) {cost_text(*cost.exact)}")
    for errors in all_errors:
        columns |= _columns(errors.source, errors.values, names, error_text)
    columns["what"] = [CANDIDATES[name].about if name in CANDIDATES else "" for name in names]

    lines = zip(*columns.values(), strict=True)
    return Table(
        name="dropin",
        title="Candidates for a drop-in",
        about="\n* ".join([f"{LEGEND}\n", *facts]),
        cells=frame(list(columns), lines),
        words=("candidate", "what"),
    )


def _columns(title: str, values: Pairs, names: list[str], form: Callable[[float, float], str]) -> dict[str, list[str]]:
    """Format a column of pairs for each count; a candidate that was not measured with this count has an empty cell."""
    counts: set[str] = set()
    for by_count in values.values():
        counts.update(by_count)
    columns = {}
    for count in sorted(counts, key=int):
        column = []
        for name in names:
            pair = values.get(name, {}).get(count)
            column.append(form(*pair) if pair else "")
        columns[f"{title} c={count}"] = column
    return columns


def error_text(mean: float, deviation: float) -> str:
    """Format mean ± deviation."""
    digits = 3 if mean < 10 else 0
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def cost_text(ms: float, mib: float) -> str:
    """Format a time and, in brackets, a peak memory."""
    return f"{ms:.3g} ({mib:.3g})"


if __name__ == "__main__":
    dropin()
