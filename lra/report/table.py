"""The report's tables: a DataFrame of cells with a caption, written as Markdown, CSV or text for a terminal."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable

from ..console import visible

LONGEST = 120  # letters of a file name without its ending


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table.

    Args:
        text: shown.
        value, std, n: the numbers behind it, for sorting and CSV.
        low, high: ends of the interval of ``value``.
        collapsed: number of seeds among ``n`` that give every example the same answer; None if there are none.
        mark: ``best``, ``tied`` or empty.
        note: explains the text.
        link: an id in the page.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    collapsed: int | None = None
    mark: str = ""
    note: str = ""
    link: str = ""

    @classmethod
    def of(cls, value: float | None, form: Callable[[float], str] = "{:.2f}".format, **fields) -> "Cell":
        """Make a cell of a number, "-" for None.

        Args:
            value: the number.
            form: a function that formats it.
            fields: further fields of the cell.
        """
        return cls(text="-") if value is None else cls(text=form(value), value=value, **fields)


def frame(
    head: Sequence[str], rows: Iterable[Sequence[Cell | str]], keys: Sequence[tuple[str, str, str]] = ()
) -> pd.DataFrame:
    """Make the DataFrame of a table.

    Args:
        head: names of the columns.
        rows: cells of each line; a string becomes a cell without a number.
        keys: study and label of the runs of each line, both empty for a published line, and aliases: further names
            by which the page's filter finds it.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row] for row in rows]
    index = pd.MultiIndex.from_tuples(list(keys) or [("", "", "")] * len(cells), names=("study", "label", "aliases"))
    return pd.DataFrame(cells, columns=list(head), index=index, dtype=object)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Args:
        name: stem of its files.
        title: heading.
        about: one or more sentences.
        cells: cells of ``frame``.
        words: columns of text; all others hold numbers.
        below: columns of text that a terminal shows below each line.
        errors: columns of numbers whose ± is a standard error, in CSV ``se``; elsewhere it is a standard deviation.
    """

    name: str
    title: str
    about: str
    cells: pd.DataFrame
    words: tuple[str, ...] = ("mechanism",)
    below: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def head(self) -> list[str]:
        return list(self.cells.columns)

    def rows(self) -> list[tuple[tuple[str, str, str], list[Cell]]]:
        """List (study, label, aliases) and the cells of each line."""
        return list(zip(self.cells.index, self.cells.to_numpy().tolist(), strict=True))

    def markdown(self) -> str:
        """Format as GitHub's Markdown: numbers on the right, the best in bold, our mechanisms as code."""
        inside = lambda text: "<br>".join(in_markdown(line) for line in text.split("\n")).replace("|", "\\|")
        # between backticks nothing but another backtick and a bar is acted on
        code = lambda text: " ".join(visible(text).split()).replace("`", "'").replace("|", "\\|")
        lines = [map(inside, self.head), ["---" if name in self.words else "---:" for name in self.head]]
        form = {"best": "**{}**", "tied": "{} ≈", "": "{}"}
        for (_, label, _), (first, *others) in self.rows():
            name = f"`{code(first.text)}`" if label else inside(first.text)
            lines.append([name, *(form[cell.mark].format(inside(cell.text)) for cell in others)])
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def section(self, level: int = 3) -> str:
        """Format as Markdown below a heading of a level."""
        heading = f"{'#' * level} {in_markdown(' '.join(self.title.split()))}"
        return "\n\n".join([heading, in_markdown(self.about), self.markdown()])

    def numbers(self) -> pd.DataFrame:
        """Give the numbers in full: of each column of numbers the values and, if there are any, spread, ends and n."""
        columns: dict[str, list] = {}
        for name, cells in self.cells.items():
            if name in self.words:
                columns[name] = [cell.text for cell in cells]
                continue
            # FAIL of the leaderboard is not a number
            columns[name] = [cell.text if cell.value is None else _plain(cell.value) for cell in cells]
            for part in ("std", "low", "high", "n", "collapsed"):
                values = [getattr(cell, part) for cell in cells]
                if any(value is not None for value in values):
                    called = "se" if part == "std" and name in self.errors else part
                    columns[f"{name} {called}"] = [None if value is None else _plain(value) for value in values]
        return pd.DataFrame(columns, dtype=object)

    def csv(self) -> str:
        """Format as CSV; an apostrophe is put before texts that a spreadsheet would take for a formula."""
        plain = {_inert(name): list(map(_inert, values)) for name, values in self.numbers().items()}
        return pd.DataFrame(plain, dtype=object).to_csv(index=False, lineterminator="\n")

    def terminal(self) -> RichTable:
        """Format for a terminal of 80 columns: columns of ``below`` in lines of their own, as ``name: value``."""
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        shown = [name for name in self.head if name not in self.below]
        for name in shown:
            table.add_column(visible(name), overflow="fold", justify="left" if name in self.words else "right")
        for texts in self.cells.map(lambda cell: visible(cell.text)).to_dict("records"):
            table.add_row(*(texts[name] for name in shown), style="bold" if self.below else None)
            for line in filter(None, "\n".join(texts[name] for name in self.below).split("\n")):
                text, _, value = line.partition(": ")
                table.add_row(Padding(text, (0, 0, 0, 2)), value)
        return table


class Column(NamedTuple):
    """A further column of the table of one task: its name, a sentence about it and a cell for each line."""

    name: str
    about: str
    cells: list[Cell]


class Chapter(NamedTuple):
    """A part of the report besides the studies: tables, and paths of PNG files with an SVG beside each."""

    title: str
    about: str
    tables: list[Table]
    pictures: tuple = ()


def show(tables: Iterable[Table], legend: str) -> None:
    """Print tables and the meaning of their columns, all text as it is; in a pipe no line is wrapped."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000
    for table in tables:
        console.print(visible(table.title), style="bold underline")
        console.print(visible(table.about), table.terminal(), "", sep="\n")
    console.print(legend)


def in_markdown(text: str) -> str:
    """Escape what Markdown and HTML would act on: tags, links and code."""
    return re.sub(r"[][`]", r"\\\g<0>", visible(text)).replace("<", "&lt;")


def stem(text: str) -> str:
    """Turn a title into a file name; the end of a long one becomes its checksum."""
    name = re.sub(r"[^\w.-]+", "-", text)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _plain(value: float) -> float:
    """A number with eight significant digits, which small ones have too."""
    return value if isinstance(value, int) else float(f"{value:.8g}")


def _inert(value):
    if not isinstance(value, str):
        return value
    text = value.replace("\r", "\n")  # the CSV writer would not quote it
    return "'" + text if re.match(r"[=+\-@\t\n].", text, re.DOTALL) else text
