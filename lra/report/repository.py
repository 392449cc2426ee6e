"""docs/results.md and the table of README.md, made from the runs of the repository in runs/published."""

import json
from pathlib import Path

from ..config import CONF
from ..disk.atomic import write
from ..runs import record
from . import results
from .export import LEGEND
from .pretraining import pretraining
from .summary import Row, collect

HOME = CONF.parent / "runs" / record.PUBLISHED
ABOUT = "about.json"  # of a study: the command of its runs, the hardware, and a note
BEGIN, END = "<!-- results: python -m lra.report published=true -->", "<!-- end of results -->"
INTRO = """# Results of this repository

Runs of the suite itself, made by the commands that stand below and kept in `runs/published`. This page and the table in
the README are written by

```sh
python -m lra.report published=true
```

and a test fails if they differ from the records. `attn=mean` is the control: every query gets the mean of the values,
so no token looks at another. The gain of a mechanism over it is the worth of its attention on that task and budget."""


def pages(root: Path = CONF.parent, home: Path = HOME) -> dict[Path, str]:
    """Render the files that show the runs of the repository.

    Args:
        root: folder of README.md and docs.
        home: of the runs.

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
    table = "\n\n".join(_short(name, rows) for name, rows in studies.items())
    texts = [INTRO, *(_long(name, rows, home / name) for name, rows in studies.items()), LEGEND]
    return {
        root / "docs" / "results.md": "\n\n".join(texts) + "\n",
        root / "README.md": f"{before}{begin}\n{table}\n{end}{after}",
    }


def save() -> list[Path]:
    """Write the files. Raises ValueError as ``pages`` does, OSError if one cannot be written."""
    texts = pages()
    for path, text in texts.items():
        write(path, text)
    return list(texts)


def _short(name: str, rows: list[Row]) -> str:
    table = results.results(name, rows)
    about = table.about.partition(". ")[0]
    return f"{about}.\n\n{table.markdown()}"


def _long(name: str, rows: list[Row], folder: Path) -> str:
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    parts = [f"## {name}", about["note"], f"Hardware: {about['hardware']}.", f"```text\n{about['command']}\n```"]
    shown = (results.results(name, rows), results.over_control(name, rows), pretraining(name, rows))
    for table in filter(None, shown):
        parts += [f"### {table.title}", table.about, table.markdown()]
    for table in results.details(name, rows):
        parts += [f"### {table.title}", table.about, table.markdown()]
    return "\n\n".join(parts)
