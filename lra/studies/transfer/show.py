"""python -m lra.studies.transfer.show: tables and figures of every transfer."""

from pathlib import Path
from typing import ClassVar

from rich import box
from rich.console import Console
from rich.table import Table

from ...config.entry import main
from ...config.options import Options
from ...console import log
from ...disk import atomic
from .record import scan
from .tables import HEAD, LEGEND, about, markdown, points


class TransferShowOptions(Options):
    conf: ClassVar[str] = "transfer_show"

    runs: Path
    out: Path | None


@main(TransferShowOptions)
def show(options: TransferShowOptions) -> None:
    """Print and write the tables and figures. Raises ValueError if there is no transfer."""
    from .figures import draw  # matplotlib takes a second to import

    runs = options.runs
    transfers, damaged = scan(runs)
    for line in damaged:
        log(f"skipped: {line}")
    if not transfers:
        raise ValueError(f"{runs} has no transfer; python -m lra.studies.transfer run=<folder> attn=<name> makes them")
    groups, out = points(transfers), options.out or runs / "transfer"
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = {group: draw(group, some, out) for group, some in groups.items()}
        atomic.write(out / "transfer.md", markdown(groups, pictures))
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; name another folder with out=<folder>") from None
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # no line is wrapped in a pipe
    for (study, task, source), some in groups.items():
        table = Table(*HEAD, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for point in some:
            table.add_row(*point.cells)
        console.print(f"{study}: {task}, {source}", style="bold underline")
        console.print(about(some), table, "", sep="\n")
    console.print(LEGEND)
    files = sum(map(len, pictures.values()))
    print(f"written to {out}: transfer.md and {files} picture{'s' if files != 1 else ''}")


if __name__ == "__main__":
    show()
