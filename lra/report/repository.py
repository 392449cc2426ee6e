"""docs/results.md, its figures and the table of README.md, made from the runs in runs/published."""

import json
from pathlib import Path

from ..config import CONF
from ..disk.atomic import write
from ..runs import open as runs_on_disk
from ..runs.tables import HOME, About, about
from . import board, figures, plots, results
from .export import LEGEND, overall
from .palette import Palette
from .rates import rates
from .summary import Row, collect

BEGIN, END = "<!-- results: python -m lra.report published=true -->", "<!-- end of results -->"
INTRO = """# Results of this repository

Runs of the suite itself, made by the commands that stand below and kept in `runs/published`. This page and the table in
the README are written by

```sh
python -m lra.report published=true
```

and a test fails if they differ from the records. `attn=mean` is a control: every query gets the mean of the values,
whatever the query.

The results of adding, recall and temporal order, of pretraining, and of further mechanisms on quick ListOps were
removed: that board measured heads whose ReLU units no row activates, one learning rate for all mechanisms, and tasks
that need no mixing of tokens. It is built again as `sweep=board`."""


def pages(root: Path = CONF.parent, home: Path = HOME) -> dict[Path, str]:
    """Render the files that show the runs of the repository.

    Args:
        root: folder of README.md and docs.
        home: folder of the runs.

    Returns:
        Path -> text.

    Raises:
        ValueError: there are no runs, a record is damaged, or README.md lacks the marks between which the table goes.
    """
    studies, damaged = collect(home)
    if damaged:
        raise ValueError("; ".join(damaged))
    readme = (root / "README.md").read_text(encoding="utf-8")
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md must have the lines {BEGIN} and {END}, between which the table goes")
    abouts = {name: about(home / name) for name in studies}
    table = "\n\n".join(_short(name, rows, tasks) for name, rows in studies.items() if (tasks := abouts[name].readme))
    long = lambda name: _searched if name.endswith(board.RATES) else _long
    texts = [INTRO, *(long(name)(name, studies, abouts[name]) for name in studies), LEGEND]
    return {
        root / "docs" / "results.md": "\n\n".join(texts) + "\n",
        root / "README.md": f"{before}{begin}\n{table}\n{end}{after}",
    }


def curves(root: Path = CONF.parent, home: Path = HOME) -> dict[Path, dict[str, list[plots.Curve]]]:
    """Compute the figures that docs/results.md shows: dev scores over steps, a chart for each task.

    A study with more mechanisms than lines can be told apart names those of its figure in ``about.json``.

    Args:
        root: folder of docs.
        home: folder of the runs.

    Returns:
        Path of a study's figure -> task -> curves.
    """
    studies, _ = collect(home)
    drawn = {}
    for name, rows in studies.items():
        if name.endswith(board.RATES):  # a search shows its best rates alone
            continue
        if labels := about(home / name).figure:
            rows = [row for row in rows if row.label in labels]
        runs = {folder: runs_on_disk.curves(folder) for row in rows for folder in row.runs}
        drawn[root / "docs" / _figure(name)] = plots.by_task(rows, runs)
    return drawn


def about_figure(panels: dict[str, list[plots.Curve]]) -> str:
    """Render the numbers of a figure as the description in its file, by which it is compared with the records."""
    return json.dumps({task: [curve._asdict() for curve in lines] for task, lines in panels.items()})


def save() -> list[Path]:
    """Write the files. Raises ValueError as ``pages`` does, OSError if one cannot be written."""
    texts, drawn = pages(), curves()
    for path, text in texts.items():
        write(path, text)
    for path, panels in drawn.items():
        palette = Palette(sorted({curve.label for lines in panels.values() for curve in lines}))
        figures.save(path.with_suffix(""), panels, plots.learning, palette, ["svg"], about=about_figure(panels))
    return [*texts, *drawn]


def _figure(study: str) -> str:
    return f"results-{study}.svg"


def _short(name: str, rows: list[Row], tasks: list[str]) -> str:
    table = results.results(name, [row for row in rows if row.task in tasks])
    about = table.about.partition(". ")[0]
    return f"{about}.\n\n{table.markdown()}"


def _head(name: str, about: About) -> list[str]:
    notes = "\n".join(f"* {note}" for note in about.notes)
    return [f"## {name}", notes, f"Hardware: {about.hardware}.", f"```text\n{about.command}\n```"]


def _searched(name: str, studies: dict[str, list[Row]], about: About) -> str:
    """Render a search over rates: the tables of its board, and the best rates."""
    tables = [*board.tables(name.removesuffix(board.RATES), studies), rates(name, studies[name])]
    return "\n\n".join([*_head(name, about), *(table.section() for table in tables if table)])


def _long(name: str, studies: dict[str, list[Row]], about: About) -> str:
    parts, rows = _head(name, about), studies[name]
    some = ", of some mechanisms" if about.figure else ""
    spread = "mean ± sample standard deviation over seeds"
    parts.append(f"![dev scores of {name} over steps{some}, {spread}]({_figure(name)})")
    tables = *overall(name, rows), *results.details(name, rows)
    return "\n\n".join([*parts, *(table.section() for table in tables)])
