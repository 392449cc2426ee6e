"""python -m lra.studies.transfer.show: tables and figures of every transfer."""

import itertools
from pathlib import Path
from typing import ClassVar

from ...config.entry import main
from ...config.options import Options
from ...console import log
from ...disk import atomic
from ...report import table as report_table
from .record import scan
from .tables import GROUP, LEGEND, points, tables


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
    some, out = points(transfers), options.out or runs / "transfer"
    made = tables(some)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = [draw(group, rows, out) for group, rows in some.groupby(GROUP)]
        parts = [
            [table.section(2), *map("![{0}]({0})".format, shown)] for table, shown in zip(made, pictures, strict=True)
        ]
        atomic.write(out / "transfer.md", "\n\n".join(["# Transfers", LEGEND, *itertools.chain(*parts)]) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; name another folder with out=<folder>") from None
    report_table.show(made, LEGEND)
    files = sum(map(len, pictures))
    print(f"written to {out}: transfer.md and {files} picture{'s' if files != 1 else ''}")


if __name__ == "__main__":
    show()
