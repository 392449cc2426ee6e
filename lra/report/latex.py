"""Tables for print: LaTeX floats with caption, label, legend and footnotes, and a document that holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template, ascii_lowercase

import pandas as pd

from ..results.figures import COLUMN_WIDTH, TEXT_WIDTH
from ..results.score_cells import MARKS
from ..results.table import Cell, Table
from .latex_columns import LETTER, PrintColumn, column, superscript, tex, wrapped

# Inches between two columns.
SPACE = 6 / 72
# A text column with longer texts becomes footnotes.
MAX_TEXT = 24
# Largest share of the width for the first column.
MAX_FIRST_COLUMN = 0.4
# Lines of a float, of a page including legend and footnotes, and of a tabular's head.
FLOAT_LINES = 48
PAGE_LINES = 58
HEAD_LINES = 4
FLOATS_PER_PAGE_BREAK = 8
# Height of a text in \scriptsize relative to \footnotesize: 7/8 of the width of a letter, lines of 8 instead of 9.5 pt.
FOOT_SCALE = 0.75
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


@dataclass
class Footnotes:
    """The footnotes of a table, each with its mark."""

    marks: dict[str, str] = field(default_factory=dict)

    def mark(self, note: str) -> str:
        """Return the mark of a note, a new one for a new note; "" for no note."""
        if not note:
            return ""
        if note not in self.marks:
            self.marks[note] = _footnote_mark(len(self.marks))
        return self.marks[note]

    def length(self) -> int:
        """Return the number of characters of all notes."""
        return sum(map(len, self.marks))


def _footnote_mark(index: int) -> str:
    """Return the mark of a footnote: a, b, ... z, aa, ab, ... zz, aaa, ..."""
    letters = ""
    number = index + 1
    while number > 0:
        number, letter = divmod(number - 1, len(ascii_lowercase))
        letters = ascii_lowercase[letter] + letters
    return letters


def format_table(table: Table, width: float = TEXT_WIDTH) -> str:
    """Format a table as one or more floats, which need array, booktabs and siunitx.

    Columns that do not fit the width go into further tabulars below, which repeat the first column, and the second if
    it holds text. Long texts and the notes on published values become footnotes.

    Args:
        table: the table.
        width: width in inches; beyond 1.25 columns of a paper the float spans both columns.
    """
    # Columns first: they decide which texts become footnotes.
    footnotes = Footnotes()
    columns = _print_columns(table, footnotes, width)
    legend = table.about
    all_cells = table.cells.to_numpy().ravel()
    if any(cell.mark for cell in all_cells):
        legend = f"{legend} {MARKS}"

    floats, height = _paginate(columns, table.words, width)
    # If the legend does not fit into the last float, it moves to another one, with the last tabular unless that is the
    # only one.
    num_letters = len(legend) + footnotes.length()
    foot_height = FOOT_SCALE * num_letters * LETTER / width
    if height + foot_height > PAGE_LINES:
        has_several = len(floats[-1]) > 1
        moved = [floats[-1].pop()] if has_several else []
        floats.append(moved)

    # The legend and the footnotes are below the last float.
    feet = [""] * len(floats)
    feet[-1] = _foot(legend, footnotes)
    written = []
    for i, (tabulars, foot) in enumerate(zip(floats, feet, strict=True)):
        written.append(_float(table, tabulars, width, foot, is_continued=i > 0))
    return "\n".join(written)


def _print_columns(table: Table, footnotes: Footnotes, width: float) -> dict[str, PrintColumn]:
    """Format the columns of a table; text columns that are too long become footnotes of the first column."""
    first, *others = table.head
    in_footnotes = [name for name in others if _goes_into_footnotes(table, name)]
    printed = [name for name in others if name not in in_footnotes]

    # Footnote marks are assigned row by row.
    marks: dict[str, list[str]] = {name: [] for name in (first, *printed)}
    for (_, label, _), cells in table.cells.iterrows():
        note = _row_note(cells, in_footnotes)
        marks[first].append(footnotes.mark(note))
        for name in printed:
            # Rows with a label are ours: their notes are in the page only. Notes on published values are printed.
            note = "" if label else cells[name].note
            marks[name].append(footnotes.mark(note))

    columns = {}
    for name, column_marks in marks.items():
        cells = table.cells[name].tolist()
        is_text = name in table.words
        columns[name] = column(cells, column_marks, name, is_text)
    max_width = MAX_FIRST_COLUMN * width
    if columns[first].width > max_width:
        columns[first] = wrapped(columns[first], max_width)
    return columns


def _goes_into_footnotes(table: Table, name: str) -> bool:
    """Whether a column other than the first is printed as footnotes: text below the rows, or long text."""
    if name in table.below:
        return True
    longest = max((len(cell.text) for cell in table.cells[name]), default=0)
    return name in table.words and longest > MAX_TEXT


def _row_note(cells: Mapping[str, Cell], names: Sequence[str]) -> str:
    """Format the footnote of a row: "details: ...; published: ..."."""
    texts = []
    for name in names:
        lines = cells[name].text.splitlines()
        if lines:
            texts.append(f"{name}: {', '.join(lines)}")
    return "; ".join(texts)


def _paginate(columns: dict[str, PrintColumn], words: Sequence[str], width: float) -> tuple[list[list[str]], int]:
    """Distribute the tabulars of a table over floats of at most FLOAT_LINES lines.

    Returns:
        The tabulars of each float, and the lines of the last float.
    """
    floats: list[list[str]] = [[]]
    height = 0
    max_rows = FLOAT_LINES - HEAD_LINES
    for names in _blocks(columns, words, width):
        forms = "".join(columns[name].form for name in names)
        cells = pd.DataFrame({tex(name): columns[name].cells for name in names})
        num_rows = max(len(cells), 1)
        for start in range(0, num_rows, max_rows):
            rows = cells[start : start + max_rows]
            num_lines = HEAD_LINES + len(rows)
            # A tabular that does not fit begins another float.
            if height + num_lines > FLOAT_LINES and floats[-1]:
                floats.append([])
                height = 0
            style = rows.style.hide(axis="index")
            tabular = style.to_latex(column_format=forms, hrules=True, siunitx=True)
            floats[-1].append(tabular.rstrip())
            height += num_lines
    return floats, height


def _blocks(columns: dict[str, PrintColumn], words: Sequence[str], width: float) -> list[list[str]]:
    """Divide columns into blocks no wider than ``width``; each repeats the first column, and a second one of text."""
    names = list(columns)
    num_repeated = 1
    if len(names) > 2 and names[1] in words:
        num_repeated = 2
    repeated = names[:num_repeated]

    blocks = [list(repeated)]
    for name in names[num_repeated:]:
        block = blocks[-1]
        block_width = sum(columns[other].width + SPACE for other in (*block, name))
        # A column that is too wide for an empty block stands in it alone.
        if block_width > width and len(block) > num_repeated:
            block = list(repeated)
            blocks.append(block)
        block.append(name)
    return blocks


def _float(table: Table, tabulars: list[str], width: float, foot: str, *, is_continued: bool) -> str:
    """Format one float of a table: the first has the label, the last the legend and the footnotes."""
    title = tex(table.title)
    head = f"\\caption{{{title}.}}\\label{{tab:{table.name}}}"
    if is_continued:
        # A continued float repeats the number of the table.
        head = f"\\addtocounter{{table}}{{-1}}\n\\caption{{{title} (continued).}}"
    body = "\n\\par\\medskip\n".join(tabulars)
    kind = _environment("table", width)
    return FLOAT.substitute(kind=kind, head=head, body=body + foot)


def _foot(legend: str, footnotes: Footnotes) -> str:
    # Notes in the order of their marks.
    lines = [tex(legend)]
    for note, mark in footnotes.marks.items():
        lines.append(f"{superscript(mark)}~{tex(note)}.")
    text = "\n".join(lines)
    return f"\n\\par\\smallskip\n\\parbox{{\\linewidth}}{{\\scriptsize {text}}}"


def _environment(name: str, width: float) -> str:
    """Return the starred environment, over both columns, for a width beyond 1.25 columns."""
    return f"{name}*" if width > 1.25 * COLUMN_WIDTH else name


def document(tables: Sequence[str], figures: Mapping[Path, str], width: float) -> str:
    """Format the document that shows tables and figures.

    Args:
        tables: names of tables, whose files are ``tables/<name>.tex``.
        figures: captions of PDF files by their paths relative to the document.
        width: width of the figures in inches.
    """
    kind = _environment("figure", width)
    floats = [f"\\input{{tables/{name}.tex}}" for name in tables]
    for path, text in figures.items():
        lines = [
            f"\\begin{{{kind}}}[tbp]",
            "\\centering",
            f"\\includegraphics{{{path.as_posix()}}}",
            f"\\caption{{{tex(text)}.}}\\label{{fig:{path.stem}}}",
            f"\\end{{{kind}}}",
        ]
        floats.append("\n".join(lines))

    # LaTeX cannot hold many floats without a page break.
    pages = []
    for start in range(0, len(floats), FLOATS_PER_PAGE_BREAK):
        group = floats[start : start + FLOATS_PER_PAGE_BREAK]
        pages.append("\n".join(group))
    body = "\n\\clearpage\n".join(pages)
    return DOCUMENT.substitute(text=max(TEXT_WIDTH, width), body=body)
