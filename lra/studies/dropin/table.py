"""The measured errors and times, as JSON and as one table of all sources."""

import math
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Annotated

from pydantic import ConfigDict, Field

from ...report.table import Table, frame
from ...runs import typed_json

FILE, COST, BASE = "errors.json", "cost.json", "cur_step"
STRICT = ConfigDict(strict=True)  # nan and infinity are valid results here
Count = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")]
LEGEND = (
    "Relative error |O - O'| / |O| (Frobenius, heads together) of the attention output, mean over layers ± sample "
    "standard deviation over examples. ratio: geometric mean over the columns of the error over that of cur_step, the "
    "paper's CUR; the table is sorted by it. ms (MiB): time and peak memory of one call at the length below."
)


@dataclass
class Errors:
    """The errors of one source; ``values`` by candidate, then by count as text: mean and deviation over n examples."""

    __pydantic_config__ = STRICT
    source: typed_json.FolderName
    about: str
    n: int
    seed: int
    git: str | None
    values: dict[str, dict[Count, tuple[float, float]]] = field(default_factory=dict)


@dataclass
class Cost:
    """The cost in milliseconds and MiB of exact attention, and by candidate and count."""

    __pydantic_config__ = STRICT
    about: str
    exact: tuple[float, float]
    values: dict[str, dict[Count, tuple[float, float]]]


def ratio(name: str, all: list[Errors]) -> float:
    """The geometric mean of the error over that of BASE in the same column; infinite if an error is not finite.

    Args:
        name: name of the candidate.
        all: errors of every source.
    """
    pairs = [
        (value[0], errors.values[BASE][count][0])
        for errors in all
        for count, value in errors.values.get(name, {}).items()
        if count in errors.values.get(BASE, {})
    ]
    if not pairs or not all_finite(pairs):
        return math.inf
    tiny = 1e-12  # an exact result
    return geometric_mean([max(own, tiny) / max(base, tiny) for own, base in pairs])


def all_finite(pairs: list[tuple[float, float]]) -> bool:
    """Whether all numbers are finite."""
    return all(math.isfinite(x) for pair in pairs for x in pair)


def rows(all: list[Errors], cost: Cost | None, about: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """Make the head and the lines of the table, the best candidate first.

    Args:
        all: errors of every source.
        cost: costs, if they were measured.
        about: descriptions of the candidates.
    """
    columns = [
        (errors, count)
        for errors in all
        for count in sorted({count for by_count in errors.values.values() for count in by_count}, key=int)
    ]
    prices = cost.values if cost else {}
    timed = sorted({count for by_count in prices.values() for count in by_count}, key=int)
    head = ["candidate", "ratio", *(f"ms (MiB) c={count}" for count in timed)]
    head += [*(f"{e.source} c={count}" for e, count in columns), "what"]
    ratios = {name: ratio(name, all) for errors in all for name in errors.values}
    lines = []
    for name in sorted(ratios, key=lambda name: (ratios[name], name)):
        price = [price_text(prices.get(name, {}).get(count)) for count in timed]
        cells = [error_text(errors.values.get(name, {}).get(count)) for errors, count in columns]
        lines.append([name, f"{ratios[name]:.3g}", *price, *cells, about.get(name, "")])
    return head, lines


def price_text(price: tuple[float, float] | None) -> str:
    """Format milliseconds and MiB; empty for None."""
    return "" if price is None else f"{price[0]:.3g} ({price[1]:.3g})"


def error_text(value: tuple[float, float] | None) -> str:
    """Format mean ± deviation; empty for None."""
    if value is None:
        return ""
    mean, deviation = value
    digits = 3 if mean < 10 else 0
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def table(all: list[Errors], cost: Cost | None, about: dict[str, str]) -> Table:
    """Make the table; arguments as for ``rows``."""
    facts = [f"{e.source}: {e.about}; n = {e.n}, seed {e.seed}, commit {e.git or 'unknown'}" for e in all]
    if cost:
        facts.append(f"ms (MiB): {cost.about}; exact attention (sdpa) {price_text(cost.exact)}")
    cells, words = frame(*rows(all, cost, about)), ("candidate", "what")
    text = "\n* ".join([f"{LEGEND}\n", *facts])
    return Table(name="dropin", title="Candidates for a drop-in", about=text, cells=cells, words=words)
