"""A grid as Markdown, CSV or LaTeX."""

import csv
import io
import re

from .grid import Cell, Grid

_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
}


def markdown(grid: Grid) -> str:
    """A table for GitHub: numbers to the right, the best in bold."""
    rule = ["---:" if number else "---" for number in grid.numeric]
    lines = [list(grid.head), rule]
    for entry in grid.entries:
        texts = [cell.text.replace("|", "\\|").replace("\n", "<br>") for cell in entry.cells]
        texts[0] = f"`{texts[0]}`" if entry.label else texts[0]
        lines.append([_marked(text, cell, "**{}**") for text, cell in zip(texts, entry.cells, strict=True)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def comma(grid: Grid) -> str:
    """Numbers in full: for each column of numbers its value and, where there are any, ``std`` and ``n``.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns: list[tuple[str, int, str]] = []
    for i, (name, number) in enumerate(zip(grid.head, grid.numeric, strict=True)):
        columns.append((name, i, "value" if number else "text"))
        for part in ("std", "n") if number else ():
            if any(getattr(entry.cells[i], part) is not None for entry in grid.entries):
                columns.append((f"{name} {part}", i, part))
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([_inert(name) for name, *_ in columns])
    for entry in grid.entries:
        table.writerow([_number(entry.cells[i], part) for _, i, part in columns])
    return out.getvalue()


def latex(grid: Grid) -> str:
    """A tabular of booktabs; notes and the caption are left to the paper it goes into."""
    lines = [
        f"% {' '.join(grid.title.split())}. Needs \\usepackage{{booktabs}}.",
        f"\\begin{{tabular}}{{{''.join('lr'[number] for number in grid.numeric)}}}",
        "\\toprule",
        " & ".join(map(_tex, grid.head)) + r" \\",
        "\\midrule",
    ]
    for entry in grid.entries:
        lines.append(
            " & ".join(_marked(_tex(cell.text), cell, "\\textbf{{{}}}", tied=r" $\approx$") for cell in entry.cells)
        )
        lines[-1] += r" \\"
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _marked(text: str, cell: Cell, bold: str, tied: str = " ≈") -> str:
    return bold.format(text) if cell.mark == "best" else text + tied * (cell.mark == "tied")


def _number(cell: Cell, part: str) -> str | float | int:
    value = getattr(cell, part)
    if part == "value" and value is None:
        return _inert(cell.text)  # FAIL of the leaderboard
    return "" if value is None else round(value, 6) if part != "text" else _inert(value)


def _inert(text: str) -> str:
    text = text.replace("\r", "\n")  # which the writer would not quote
    return "'" + text if re.match(r"[=+\-@\t\n].", text, re.DOTALL) else text


def _tex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^±≈]", lambda found: _TEX[found[0]], " ".join(text.split()))
