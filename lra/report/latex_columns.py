"""Columns of LaTeX tables: escaped texts, and numbers aligned at the decimal point by siunitx."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..results.table import Cell

# Inches: mean width of a letter.
LETTER = 4 / 72
# Sign, integer part, decimals, exponent, and any text behind the number.
NUMBER = re.compile(r"([+-]?)(\d[\d,]*)(?:\.(\d+))?(?:e([+-]?\d+))?(?![\d.])(.*)", re.DOTALL)
# Brackets and stars are in braces: at the start of a line, the \\ before it would read them as its argument.
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "≈": r"$\approx$",
    "[": "{[}", "]": "{]}", "*": "{*}", "–": "--", "→": r"$\to$",
    "×": r"$\times$", "√": r"$\surd$", "·": r"$\cdot$", "²": r"$^2$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip


class PrintColumn(NamedTuple):
    """A column of a printed table: its column type for tabular, its cells as LaTeX, and its width in inches."""

    form: str
    cells: list[str]
    width: float


def tex(text: str) -> str:
    """Escape a text for LaTeX; a character outside Latin fonts is replaced by its code point."""
    line = " ".join(text.split())
    return "".join(map(_tex_character, line))


def _tex_character(character: str) -> str:
    if character in TEX:
        return TEX[character]
    is_latin = character.isascii() or "À" <= character <= "ſ"
    if is_latin:
        return character
    return f"{{[}}U+{ord(character):04X}{{]}}"


def wrapped(column: PrintColumn, width: float) -> PrintColumn:
    """Limit the width of a text column; its lines may break behind "=", "_" and "."."""
    form = f">{{\\raggedright\\arraybackslash}}p{{{width:.2f}in}}"
    cells = [re.sub(r"([=_.])(?=[^\s}])", r"\1\\allowbreak{}", cell) for cell in column.cells]
    return PrintColumn(form, cells, width)


def column(cells: Sequence[Cell], marks: Sequence[str], name: str, is_text: bool) -> PrintColumn:
    """Format a column; numbers are aligned at the decimal point, other texts are not parsed by siunitx."""
    marked_cells = list(zip(cells, marks, strict=True))
    lengths = [len(cell.text) + len(mark) for cell, mark in marked_cells]
    width = LETTER * max([len(name), *lengths])
    texts = [_text_cell(cell, mark) for cell, mark in marked_cells]
    if is_text:
        return PrintColumn("l", texts, width)

    # Split each cell into its number and the text behind it.
    written = []
    numbers = []
    for (cell, mark), text in zip(marked_cells, texts, strict=True):
        match = NUMBER.fullmatch(cell.text)
        if match is None:
            # siunitx does not parse what is in braces.
            written.append(f"{{{text}}}")
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
        self.mark = mark

        tied = _tied(cell)
        space = "~" if text.startswith(" ") else ""
        self.suffix = f"{space}{tex(text)}{tied}"
        # Number of characters behind the number, in print.
        self.suffix_length = len(text) + len(mark)
        if tied:
            self.suffix_length += 2

    def latex(self) -> str:
        """Return the number as siunitx reads it; what is not part of it stands in braces."""
        number = f"{self.sign}{self.integer}"
        if self.decimals:
            number += f".{self.decimals}"
        if self.exponent:
            number += f"e{self.exponent}"
        text = f"{self.suffix}{superscript(self.mark)}"
        if text:
            number += f" {{{self.bold}{text}}}"
        return f"{self.bold}{number}"

    def placeholder(self) -> tuple[int, str]:
        """Return the length of the suffix, and a suffix of the same width with the widest footnote mark."""
        widest_mark = superscript("m" * len(self.mark))
        return self.suffix_length, self.suffix + widest_mark


def _siunitx_column(numbers: Sequence[_Number]) -> str:
    """Return the column type with room for the longest integer part, decimals, exponent and suffix."""
    # siunitx reserves room for sign, digits and exponent.
    sign = "+" if any(number.sign for number in numbers) else ""
    integers = max(len(number.integer) for number in numbers)
    decimals = max(len(number.decimals) for number in numbers)
    form = f"{sign}{integers}.{decimals}"
    exponent_digits = max(len(number.exponent) for number in numbers)
    if exponent_digits:
        form += f"e-{exponent_digits}"
    _, suffix = max(number.placeholder() for number in numbers)
    return f"S[table-format={{{form}{{{suffix}}}}}]"
