"""python -m lra.leaderboard: results on the Long Range Arena, printed, measured and submitted."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("leaderboard")  # before torch is imported

import sys
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ..config import CONF
from ..config.base import Section
from ..config.compose import compose
from ..config.entry import main
from ..config.options import Options
from ..config.schema import Name
from ..io import atomic
from ..options import Range
from ..results.paper_values import Protocol
from ..results.table import show
from . import cards, mechanism
from .lines import LeaderboardLine, Status, quoted_lines
from .measured import measured_lines
from .table import Order, page, select, table

Task = Literal["listops", "text", "retrieval", "image", "pathfinder", "pathfinder_x"]


class Filters(Section):
    """Properties that a line must have; None: any. ``since`` is the earliest year."""

    task: Task | None
    protocol: Protocol | None
    since: Annotated[int, Range(2000, 2100)] | None
    status: Status | None


class LeaderboardOptions(Options):
    """Options of ``python -m lra.leaderboard``, explained in conf/leaderboard.yaml."""

    conf: ClassVar[str] = "leaderboard"

    filters: Filters
    sort: Order | None
    write: bool
    card: Name | None


@main(LeaderboardOptions)
def leaderboard(options: LeaderboardOptions) -> None:
    """Print the leaderboard or a card, or write the pages.

    Raises:
        ValueError: no line is left, there is no such mechanism, or ``write`` is set outside a checkout.
    """
    if options.write:
        if not (CONF.parent / "docs").is_dir():
            raise ValueError("write=true needs a checkout of the repository, whose pages it writes")
        for path, text in pages().items():
            atomic.write(path, text)
            print(f"written: {path}")
        return
    if options.card:
        print(cards.card(options.card, all_lines(strict=False)))
        return
    lines = select(all_lines(strict=False), **dict(options.filters))
    if not lines:
        raise ValueError("no result has all of these properties; leave out task=, protocol=, since= or status=")
    show([table(lines, options.sort)], "The page docs/leaderboard.md explains protocols, statuses and remarks.")


def all_lines(root: Path = CONF.parent, *, strict: bool = True) -> list[LeaderboardLine]:
    """All lines of the leaderboard: measured, submitted and printed ones.

    Args:
        root: folder of the repository.
        strict: whether a damaged submission is an error; else it is logged and left out.
    """
    runs = root / "runs" / "published"
    return measured_lines(runs, root / "submissions", strict=strict) + quoted_lines()


def pages(root: Path = CONF.parent) -> dict[Path, str]:
    """Render the generated pages by their paths: the leaderboard and the index of mechanisms."""
    lines = all_lines(root)
    mechanisms = root / "docs" / "mechanisms.md"
    return {
        root / "docs" / "leaderboard.md": page(lines),
        mechanisms: mechanism.with_index(mechanisms.read_text(encoding="utf-8")),
    }


def qualify_filters(arguments: list[str]) -> list[str]:
    """Replace task=listops by filters.task=listops: for Hydra, task= and protocol= choose files of conf."""
    names = tuple(f"{name}=" for name in Filters.model_fields)
    return [f"filters.{argument}" if argument.startswith(names) else argument for argument in arguments]


def parse(arguments: list[str]) -> LeaderboardOptions:
    """Parse the arguments of the command."""
    return compose(LeaderboardOptions, qualify_filters(arguments))


if __name__ == "__main__":
    sys.argv[1:] = qualify_filters(sys.argv[1:])
    leaderboard()
