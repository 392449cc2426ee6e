"""Columns of LaTeX tables: escaped texts, and numbers aligned at the decimal point by siunitx."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..console import visible
from ..results.table import Cell

# Inches: mean width of a letter.
LETTER = 4 / 72
# Sign, integer part, decimals, exponent, and any text behind the number.
NUMBER = re.compile(r"([+-]?)(\d[\d,]*)(?:\.(\d+))?(?:e([+-]?\d+))?(?![\d.])(.*)", re.DOTALL)
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "≈": r"$\approx$",
    "×": r"$\times$", "√": r"$\surd$", "·": r"$\cdot$", "²": r"$^2$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip


class PrintColumn(NamedTuple):
    """A column of a printed table: its column type for tabular, its cells as LaTeX, and its width in inches."""

    form: str
    cells: list[str]
    width: float


def tex(text: str) -> str:
    """Escape a text for LaTeX; a character outside Latin fonts is replaced by its code point."""
    return "".join(map(_tex_character, " ".join(visible(text).split())))


def _tex_character(character: str) -> str:
    if character in TEX:
        return TEX[character]
    is_latin = character.isascii() or "À" <= character <= "ſ"
    return character if is_latin else f"[U+{ord(character):04X}]"


def wrapped(column: PrintColumn, width: float) -> PrintColumn:
    """Limit the width of a text column; its lines may break behind "=", "_" and "."."""
    form = f">{{\\raggedright\\arraybackslash}}p{{{width:.2f}in}}"
    cells = [re.sub(r"([=_.])(?=[^\s}])", r"\1\\allowbreak{}", cell) for cell in column.cells]
    return PrintColumn(form, cells, width)


def column(cells: Sequence[Cell], marks: Sequence[str], name: str, is_text: bool) -> PrintColumn:
    """Format a column; numbers are aligned at the decimal point, other texts are not parsed by siunitx."""
    lengths = [len(cell.text) + len(mark) for cell, mark in zip(cells, marks, strict=True)]
    width = LETTER * max([len(name), *lengths])
    if is_text:
        return PrintColumn("l", [_text_cell(cell, mark) for cell, mark in zip(cells, marks, strict=True)], width)

    # Split each cell into its number and the text behind it.
    written = []
    numbers = []
    for cell, mark in zip(cells, marks, strict=True):
        match = NUMBER.fullmatch(cell.text)
        if match is None:
            written.append(f"{{{_text_cell(cell, mark)}}}")
            continue
        number = _Number(cell, mark, match)
        numbers.append(number)
        written.append(number.latex())
    if not numbers:
        return PrintColumn("c", written, width)
    return PrintColumn(_siunitx_column(numbers), written, width)


def _text_cell(cell: Cell, mark: str) -> str:
    bold = r"\bfseries " if cell.mark == "best" else ""
    return f"{bold}{tex(cell.text)}{_tied(cell)}{superscript(mark)}"


def _tied(cell: Cell) -> str:
    return r" $\approx$" if cell.mark == "tied" else ""


def superscript(mark: str) -> str:
    return rf"\textsuperscript{{{mark}}}" if mark else ""


class _Number:
    """A number of a cell, split at its decimal point, and the text behind it."""

    def __init__(self, cell: Cell, mark: str, match: re.Match):
        self.sign, integer, self.decimals, exponent, text = match.groups("")
        # Thousands separators are added by siunitx.
        self.integer = integer.replace(",", "")
        self.exponent = str(int(exponent)) if exponent else ""
        self.bold = r"\bfseries " if cell.mark == "best" else ""

        space = "~" if text.startswith(" ") else ""
        self.suffix = f"{space}{tex(text)}{_tied(cell)}"
        self.mark = mark
        # Number of characters behind the number, in print.
        self.suffix_length = len(text) + (2 if cell.mark == "tied" else 0) + len(mark)

    def latex(self) -> str:
        """Return the number as siunitx reads it; what is not part of it stands in braces."""
        number = f"{self.sign}{self.integer}"
        if self.decimals:
            number += f".{self.decimals}"
        if self.exponent:
            number += f"e{self.exponent}"
        text = f"{self.bold}{self.suffix}{superscript(self.mark)}"
        braces = f" {{{text}}}" if text != self.bold else ""
        return f"{self.bold}{number}{braces}"

    def placeholder(self) -> tuple[int, str]:
        """Return the length of the suffix, and a suffix of the same width with the widest footnote mark."""
        return self.suffix_length, self.suffix + superscript("m" * len(self.mark))


def _siunitx_column(numbers: Sequence[_Number]) -> str:
    """Return the column type with room for the longest integer part, decimals, exponent and suffix."""
    # siunitx reserves room for sign, digits and exponent.
    sign = "+" if any(number.sign for number in numbers) else ""
    integers = max(len(number.integer) for number in numbers)
    decimals = max(len(number.decimals) for number in numbers)
    form = f"{sign}{integers}.{decimals}"
    if any(number.exponent for number in numbers):
        digits = max(len(number.exponent) for number in numbers)
        form += f"e-{digits}"
    _, suffix = max(number.placeholder() for number in numbers)
    return f"S[table-format={{{form}{{{suffix}}}}}]"
