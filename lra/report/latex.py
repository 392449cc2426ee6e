"""Tables for print: floats of LaTeX with caption, label, legend and footnotes, and a document that holds them."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from string import Template, ascii_lowercase
from typing import NamedTuple

import pandas as pd

from ..console import visible
from .figures import COLUMN, TEXT
from .table import Cell, Table

LETTER, SPACE = 4 / 72, 6 / 72  # inches: a letter of a table, and the space between two columns
LONG = 24  # letters of a text that stands in a footnote rather than in a column
WIDEST = 0.4  # share of the width that the first column may have
LINES, PAGE_LINES, HEAD = 48, 58, 4  # lines of a float, of a page with legend and footnotes, of a tabular's head
LETTERS = ["".join(letters) for n in (1, 2) for letters in product(ascii_lowercase, repeat=n)]
NUMBER = re.compile(r"([+-]?)(\d[\d,]*)(?:\.(\d+))?(?:e([+-]?\d+))?(?![\d.])(.*)", re.DOTALL)
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "≈": r"$\approx$",
    "×": r"$\times$", "√": r"$\surd$", "·": r"$\cdot$", "²": r"$^2$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip
DOCUMENT = Template(r"""% pdflatex main.tex, twice for the numbers of the tables
\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{times,array,booktabs,siunitx,graphicx}
\usepackage[letterpaper, textwidth=${text}in, textheight=9in, columnsep=0.25in]{geometry}
\sisetup{mode=text, detect-weight, retain-explicit-plus, table-align-text-after=false,
  group-digits=integer, group-minimum-digits=4, group-separator={,}}
\begin{document}
$body
\end{document}
""")
FLOAT = Template(r"""\begin{$kind}[tbp]
\centering\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\abovecaptionskip}{0pt}\setlength{\belowcaptionskip}{4pt}
$head
$body
\end{$kind}
""")


class PrintColumn(NamedTuple):
    """A column of a printed table: the argument of tabular, its cells as LaTeX, and its width in inches."""

    form: str
    cells: list[str]
    width: float


def tex(text: str) -> str:
    """Escape a text for LaTeX; a character that its fonts may lack becomes its number."""
    known = lambda c: c.isascii() or "À" <= c <= "ſ"  # in Latin fonts
    return "".join(TEX.get(c, c if known(c) else f"[U+{ord(c):04X}]") for c in " ".join(visible(text).split()))


def table(made: Table, width: float = TEXT) -> str:
    """Format a table as one or more floats, which need booktabs and siunitx.

    Columns that the width has no room for stand below the others, with the first columns again. Long texts and the
    notes on published values are footnotes.

    Args:
        made: the table.
        width: width in inches; a table of more than one column of a paper goes over both.
    """
    notes: dict[str, str] = {}
    mark = lambda note: notes.setdefault(note, LETTERS[len(notes)]) if note else ""
    first, *others = made.head
    long = made.cells.map(lambda cell: len(cell.text)).max() > LONG
    aside = [name for name in others if name in made.below or (name in made.words and long[name])]
    marks = {name: [] for name in made.head if name not in aside}
    for (_, label, _), line in made.cells.iterrows():
        texts = [f"{name}: {', '.join(line[name].text.splitlines())}" for name in aside if line[name].text]
        marks[first].append(mark("; ".join(texts)))
        for name in list(marks)[1:]:
            marks[name].append(mark("" if label else line[name].note))
    columns = {name: _column(made.cells[name].tolist(), marks[name], name, name in made.words) for name in marks}
    if columns[first].width > WIDEST * width:
        narrow = f">{{\\raggedright\\arraybackslash}}p{{{WIDEST * width:.2f}in}}"
        cells = [re.sub(r"([=_.])(?=[^\s}])", r"\1\\allowbreak{}", cell) for cell in columns[first].cells]
        columns[first] = PrintColumn(narrow, cells, WIDEST * width)
    floats, height = [[]], 0
    for block in _blocks(columns, made.words, width):
        forms = "".join(columns[name].form for name in block)
        whole = pd.DataFrame({tex(name): columns[name].cells for name in block})
        for start in range(0, max(len(whole), 1), LINES - HEAD):
            rows = whole[start : start + LINES - HEAD]
            if height + HEAD + len(rows) > LINES and floats[-1]:
                floats.append([])
                height = 0
            style = rows.style.hide(axis="index")
            floats[-1].append(style.to_latex(column_format=forms, hrules=True, siunitx=True).rstrip())
            height += HEAD + len(rows)
    foot = sum(map(len, (made.about, *notes))) * 0.75 * LETTER / width
    if height + foot > PAGE_LINES and len(floats[-1]) > 1:
        floats.append([floats[-1].pop()])
    return "\n".join(_float(made, tabulars, i, len(floats), notes, width) for i, tabulars in enumerate(floats))


def _column(cells: Sequence[Cell], marks: Sequence[str], name: str, words: bool) -> PrintColumn:
    """Align numbers at their decimal point; what follows a number, and other texts, are not parsed."""
    numbers, behind, written = [], [], []
    for cell, mark in zip(cells, marks, strict=True):
        match = None if words else NUMBER.fullmatch(cell.text)
        sign, whole, part, power, rest = match.groups("") if match else ("", "", "", "", cell.text)
        bold, raised = r"\bfseries " * (cell.mark == "best"), r"\textsuperscript{%s}" if mark else "%s"
        more = "~" * (bool(match) and rest.startswith(" ")) + tex(rest) + r" $\approx$" * (cell.mark == "tied")
        text = bold + more + raised % mark
        if match:
            widest = "m" * len(mark)
            behind.append((len(rest) + 2 * (cell.mark == "tied") + len(mark), more + raised % widest))
            numbers.append((sign, whole.replace(",", ""), part, str(int(power)) if power else ""))
            value = "".join(numbers[-1][:2]) + f".{part}" * bool(part) + f"e{numbers[-1][3]}" * bool(power)
            written.append(f"{bold}{value}" + f" {{{text}}}" * (text != bold))
        else:
            written.append(text if words else f"{{{text}}}")
    width = LETTER * max([len(name), *(len(cell.text) + len(mark) for cell, mark in zip(cells, marks, strict=True))])
    if not numbers:
        return PrintColumn("l" if words else "c", written, width)
    signs, wholes, parts, powers = zip(*numbers, strict=True)
    form = "+" * any(signs) + f"{max(map(len, wholes))}.{max(map(len, parts))}"
    form += f"e-{max(map(len, powers))}" if any(powers) else ""
    return PrintColumn(f"S[table-format={{{form}{{{max(behind)[1]}}}}}]", written, width)


def _blocks(columns: dict[str, PrintColumn], words: Sequence[str], width: float) -> list[list[str]]:
    """Divide columns into blocks that are no wider than ``width``; the columns of words at the left are in each."""
    names = list(columns)
    lead = names[: 2 if len(names) > 2 and names[1] in words else 1]
    blocks = [list(lead)]
    for name in names[len(lead) :]:
        wide = sum(columns[other].width + SPACE for other in (*blocks[-1], name))
        if wide > width and len(blocks[-1]) > len(lead):
            blocks.append(list(lead))
        blocks[-1].append(name)
    return blocks


def _float(made: Table, tabulars: list[str], i: int, of: int, notes: dict[str, str], width: float) -> str:
    """Write the i-th float of a table: the first has the label, the last the legend and the footnotes."""
    head = f"\\caption{{{tex(made.title)}.}}\\label{{tab:{made.name}}}"
    if i:
        head = f"\\addtocounter{{table}}{{-1}}\n\\caption{{{tex(made.title)} (continued).}}"
    body = "\n\\par\\medskip\n".join(tabulars)
    if i == of - 1:
        marked = "".join(f"\n\\textsuperscript{{{letter}}}~{tex(note)}." for note, letter in notes.items())
        body += f"\n\\par\\smallskip\n\\parbox{{\\linewidth}}{{\\scriptsize {tex(made.about)}{marked}}}"
    return FLOAT.substitute(kind="table*" if width > 1.25 * COLUMN else "table", head=head, body=body)


def document(tables: Sequence[str], figures: Mapping[Path, str], width: float) -> str:
    """Format the document that shows tables and figures.

    Args:
        tables: names of tables, whose files are ``tables/<name>.tex``.
        figures: captions of PDF files by their paths as seen from the document.
        width: their width in inches.
    """
    kind = "figure*" if width > 1.25 * COLUMN else "figure"
    floats = [f"\\input{{tables/{name}.tex}}" for name in tables]
    for path, text in figures.items():
        caption = f"\\caption{{{tex(text)}.}}\\label{{fig:{path.stem}}}"
        picture = f"\\includegraphics{{{path.as_posix()}}}"
        floats.append(f"\\begin{{{kind}}}[tbp]\n\\centering\n{picture}\n{caption}\n\\end{{{kind}}}")
    several = ["\n".join(floats[i : i + 8]) for i in range(0, len(floats), 8)]
    return DOCUMENT.substitute(text=max(TEXT, width), body="\n\\clearpage\n".join(several))
