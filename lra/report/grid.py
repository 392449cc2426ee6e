"""A table as data, before it is Markdown, CSV, LaTeX or HTML, and what of a column is in bold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import mean, stdev, variance
from typing import NamedTuple

from scipy.special import stdtr

LEVEL = 0.05
MARKS = (
    f"Bold: the highest mean. ≈: not told apart from it at {LEVEL:.0%} by a two-sided t-test, paired where both have "
    "the same seeds, else Welch's, without correction for the number of comparisons; no mark: worse, or too few seeds "
    "to say."
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``text`` is shown, the numbers behind it are for sorting and CSV; ``mark`` is ``best``, ``tied`` or nothing.

    ``link`` names a place in the page.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    n: int | None = None
    mark: str = ""
    note: str = ""
    link: str = ""


class Entry(NamedTuple):
    """One line of a table. ``study`` and ``label`` say which runs of ours it is; published ones have neither.

    ``aliases`` are words besides the first cell by which the line is found.
    """

    cells: list[Cell]
    study: str = ""
    label: str = ""
    aliases: str = ""


class Grid(NamedTuple):
    """``name``: stem of its files; the first ``words`` and last ``prose`` columns are text, the others numbers."""

    name: str
    title: str
    about: str
    head: tuple[str, ...]
    entries: list[Entry]
    words: int = 1
    prose: int = 0

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [self.words <= i < len(self.head) - self.prose for i in range(len(self.head))]


class Picture(NamedTuple):
    """``file`` is its place in the report's folder; ``svg`` is what stands in the page."""

    title: str
    file: str
    svg: str


class Part(NamedTuple):
    """A chapter of the report besides the studies: tables and pictures."""

    title: str
    about: str
    grids: list[Grid]
    pictures: tuple[Picture, ...] = ()


def score(scores: Mapping[int, float], lost: int = 0) -> Cell:
    """Test scores by seed as mean ± standard deviation; seeds that were lost are told."""
    if not scores:
        return Cell(note=f"{lost} seed{'s' * (lost > 1)} without a result" if lost else "")
    values = list(scores.values())
    std = stdev(values) if len(values) > 1 else None
    text = f"{mean(values):.2f}" + ("" if std is None else f" ± {std:.2f}")
    note = f"n = {len(values)}" + (f", {lost} more without a result" if lost else "")
    return Cell(text=text, value=mean(values), std=std, n=len(values), note=note)


def p_value(a: Mapping[int, float], b: Mapping[int, float]) -> float | None:
    """Two-sided t-test of two sets of scores by seed: paired for the same seeds, else Welch's; None below two seeds."""
    if min(len(a), len(b)) < 2:
        return None
    if a.keys() == b.keys():
        differences = [a[seed] - b[seed] for seed in a]
        gap, squares = mean(differences), [variance(differences) / len(a)]
        freedom = len(a) - 1
    else:
        gap = mean(a.values()) - mean(b.values())
        squares = [variance(scores.values()) / len(scores) for scores in (a, b)]
        terms = (square**2 / (len(scores) - 1) for square, scores in zip(squares, (a, b), strict=True))
        freedom = sum(squares) ** 2 / (sum(terms) or 1.0)
    if not sum(squares):
        return 0.0 if gap else 1.0
    return float(2 * stdtr(freedom, -abs(gap) / sum(squares) ** 0.5))


def mark(cells: Sequence[Cell], scores: Sequence[Mapping[int, float]]) -> list[Cell]:
    """The cells of one column, the best and those that the test does not tell apart from it marked as such.

    Equal means are all the best. There is no best among fewer than two.
    """
    there = [cell.value is not None for cell in cells]
    if sum(there) < 2:
        return list(cells)
    top = max(cell.value for cell in compress(cells, there))
    best = next(s for cell, s in zip(cells, scores, strict=True) if cell.value == top)
    marked = []
    for cell, mine, here in zip(cells, scores, there, strict=True):
        if here and cell.value == top:
            cell = replace(cell, mark="best")
        elif here and (p := p_value(mine, best)) is not None:
            cell = replace(cell, mark="tied" if p >= LEVEL else "", note=f"{cell.note}; p = {p:.2g} against the best")
        marked.append(cell)
    return marked
