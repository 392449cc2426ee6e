"""The measured errors and times, as JSON and as one table of all sources."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

from pydantic import ConfigDict, Field

from ...report.table import Table, frame
from ...runs import typed_json
from .candidates import CANDIDATES

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


def ratio(name: str, some: list[Errors]) -> float:
    """The geometric mean of a candidate's error over that of BASE in the same column; infinite if one is not finite."""
    found = []
    for values in (errors.values for errors in some):
        for count in values.get(name, {}).keys() & values.get(BASE, {}).keys():
            own, base = (values[label][count][0] for label in (name, BASE))
            found.append(max(own, TINY) / max(base, TINY) if math.isfinite(own + base) else math.inf)
    return geometric_mean(found) if found else math.inf


def table(some: list[Errors], cost: Cost | None) -> Table:
    """Make the table of the errors of every source, and of the cost if it was measured, the best candidate first."""
    ratios = {name: ratio(name, some) for errors in some for name in errors.values}
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
    for errors in some:
        shown |= columns(errors.source, errors.values, error_text)
    shown["what"] = [CANDIDATES[name].about if name in CANDIDATES else "" for name in names]
    cells, words = frame(shown, zip(*shown.values(), strict=True)), ("candidate", "what")
    text = "\n* ".join([f"{LEGEND}\n", *facts])
    return Table(name="dropin", title="Candidates for a drop-in", about=text, cells=cells, words=words)


def error_text(mean: float, deviation: float) -> str:
    """Format mean ± deviation."""
    digits = 3 if mean < 10 else 0
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"
