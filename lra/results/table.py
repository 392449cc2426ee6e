"""The report's tables: a DataFrame of cells with a caption, written as Markdown, CSV or text for a terminal."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable

# Numbers of a cell, each with a separate CSV column.
PARTS = ("std", "low", "high", "n", "failed", "collapsed")
# Between several values of one cell.
SEPARATOR = " / "
MARKDOWN_MARKS = {"best": "**{}**", "tied": "{} ≈", "": "{}"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table.

    Args:
        text: text that is shown.
        value, std, n: the numbers behind it, for sorting and CSV.
        low, high: ends of the confidence interval of ``value``.
        failed: number of seeds without a result, which are not among ``n``; None without any.
        collapsed: number of collapsed seeds, which give every example the same answer, among ``n`` or, for a mean over
            tasks, among the runs of all tasks; None without any.
        mark: "best", "tied" (no significant difference) or "".
        note: tooltip or footnote.
        link: id of an element of the page.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    failed: int | None = None
    collapsed: int | None = None
    mark: str = ""
    note: str = ""
    link: str = ""

    @classmethod
    def of(cls, value: float | None, form: Callable[[float], str] = "{:.2f}".format, **fields) -> "Cell":
        """Make a cell of a number, "-" for None.

        Args:
            value: the number.
            form: function that formats it.
            fields: further fields of the cell.
        """
        if value is None:
            return cls(text="-")
        return cls(text=form(value), value=value, **fields)


# Cells of a row; a text is a cell without a number.
TableRow = list[Cell | str]


def frame(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    keys: Sequence[tuple[str, str, str]] = (),
) -> pd.DataFrame:
    """Make the DataFrame of a table.

    Args:
        head: column names.
        rows: cells of each row; a string becomes a cell without a number.
        keys: (study, label, aliases) of each row. Study and label are empty for a published row; aliases are further
            names by which the page's filter finds the row.
    """
    # Strings become cells.
    cells = []
    for row in rows:
        cells.append([cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row])
    # Without keys, as in the tables of benchmarks, study and label of every row are empty.
    no_keys = [("", "", "")] * len(cells)
    row_keys = list(keys) or no_keys
    index = pd.MultiIndex.from_tuples(row_keys, names=("study", "label", "aliases"))
    return pd.DataFrame(cells, columns=list(head), index=index, dtype=object)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Args:
        name: file name without suffix, or "kind/study" from which ``export`` makes a unique one.
        title: heading.
        about: caption; the page's legend explains what all tables share.
        cells: cells of ``frame``.
        words: text columns; all others hold numbers.
        below: text columns that a terminal shows below each row.
        errors: number columns whose ± is a standard error ("se" in CSV); elsewhere it is a standard deviation.
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
        """Column names."""
        return list(self.cells.columns)

    def rows(self) -> list[tuple[tuple[str, str, str], list[Cell]]]:
        """List (study, label, aliases) and the cells of each row."""
        cells = self.cells.to_numpy().tolist()
        return list(zip(self.cells.index, cells, strict=True))

    def markdown(self) -> str:
        """Format as GitHub Markdown: numbers right-aligned, the best mean in bold, our mechanisms as code."""
        head = list(map(_markdown_cell, self.head))
        alignments = ["---" if name in self.words else "---:" for name in self.head]
        lines = [head, alignments]
        for (_, label, _), cells in self.rows():
            first, *numbers = cells
            # A row with a label is one of our runs.
            name = _markdown_code(first.text) if label else _markdown_cell(first.text)
            line = [name]
            for cell in numbers:
                text = _markdown_cell(cell.text)
                line.append(MARKDOWN_MARKS[cell.mark].format(text))
            lines.append(line)
        joined_lines = [" | ".join(line) for line in lines]
        return "\n".join(f"| {line} |" for line in joined_lines)

    def section(self, level: int = 3) -> str:
        """Format as Markdown below a heading of a level."""
        title = " ".join(self.title.split())
        parts = [f"{'#' * level} {in_markdown(title)}"]
        if self.about:
            parts.append(in_markdown(self.about))
        parts.append(self.markdown())
        return "\n\n".join(parts)

    def numbers(self) -> pd.DataFrame:
        """Return the numbers to eight significant digits: a column of values and, if present, one for each of PARTS."""
        columns: dict[str, list] = {}
        for name, cells in self.cells.items():
            if name in self.words:
                columns[name] = [cell.text for cell in cells]
                continue
            # A cell without a value may hold text: FAIL in the official leaderboard.
            columns[name] = [_text_of(cell) if cell.value is None else rounded(cell.value) for cell in cells]
            for part in PARTS:
                values = [getattr(cell, part) for cell in cells]
                if all(value is None for value in values):
                    continue
                suffix = part
                if part == "std" and name in self.errors:
                    suffix = "se"
                columns[f"{name} {suffix}"] = [None if value is None else rounded(value) for value in values]
        return pd.DataFrame(columns, dtype=object)

    def csv(self) -> str:
        """Format as CSV."""
        return self.numbers().to_csv(index=False, lineterminator="\n")

    def terminal(self) -> RichTable:
        """Format for a terminal of 80 columns; the columns of ``below`` are printed on separate lines."""
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        columns = [name for name in self.head if name not in self.below]
        # Texts are left-aligned, numbers right-aligned.
        for name in columns:
            is_text = name in self.words
            table.add_column(name, overflow="fold", justify="left" if is_text else "right")

        style = "bold" if self.below else None
        all_texts = self.cells.map(lambda cell: cell.text)
        for texts in all_texts.to_dict("records"):
            cells = [texts[name] for name in columns]
            table.add_row(*cells, style=style)
            # Details below the row, "source: value" in two columns.
            details = "\n".join(texts[name] for name in self.below)
            for line in filter(None, details.split("\n")):
                text, _, value = line.partition(": ")
                table.add_row(Padding(text, (0, 0, 0, 2)), value)
        return table


class Column(NamedTuple):
    """A further column of the table of one task: its name, a sentence about it and a cell for each row."""

    name: str
    about: str
    cells: list[Cell]


class Chapter(NamedTuple):
    """A part of the report in addition to the studies.

    Args:
        title, about: title and introduction.
        tables: tables.
        pictures: captions of PNG files by their paths; each file has an SVG and a PDF next to it.
    """

    title: str
    about: str
    tables: list[Table]
    pictures: Mapping[Path, str] = {}


def show(tables: Iterable[Table], legend: str) -> None:
    """Print tables, then the legend. Text is printed verbatim; a pipe gets lines of up to 1,000 characters."""
    # Brackets and colons of labels must not act as markup.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000
    for table in tables:
        console.print(table.title, style="bold underline")
        if table.about:
            console.print(table.about)
        console.print(table.terminal(), "", sep="\n")
    console.print(legend)


def number(value: float | None) -> str:
    """Format a number with two digits; "-" for None."""
    return "-" if value is None else f"{value:.2f}"


def joined(values: Iterable) -> str:
    """Join the distinct values in ascending order; integers with thousands separators, floats with two digits."""
    forms = {int: "{:,}".format, float: number}
    texts = []
    for value in sorted(set(values)):
        form = forms.get(type(value), str)
        texts.append(form(value))
    return SEPARATOR.join(dict.fromkeys(texts))


def in_markdown(text: str) -> str:
    """Escape the characters of Markdown and HTML syntax: tags, links and code."""
    return re.sub(r"[][`]", r"\\\g<0>", text).replace("<", "&lt;")


def _markdown_cell(text: str) -> str:
    return "<br>".join(in_markdown(line) for line in text.split("\n")).replace("|", "\\|")


def _markdown_code(text: str) -> str:
    # Inside a code span only a backtick and the bar of the table have a meaning.
    escaped = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{escaped}`"


def _text_of(cell: Cell) -> str:
    """Return the text of a cell without a number; a dash, which stands for no value, becomes an empty field."""
    return "" if cell.text == "-" else cell.text


def rounded(value: float) -> float:
    """Round to eight significant digits, which also keeps small numbers."""
    if isinstance(value, int):
        return value
    return float(f"{value:.8g}")
