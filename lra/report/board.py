"""The chapter of the report on a board: its tasks and its mechanisms."""

from .admission import admission_table
from .standings import standing_table
from .summary import Row
from .table import Chapter

RATES = "-rates"  # of the name of the study of a search


def chapters(studies: dict[str, list[Row]]) -> list[Chapter]:
    """Make a chapter of each board among studies: of each search over rates, with the seeds at the chosen rates.

    Args:
        studies: their rows by name.
    """
    boards = {name.removesuffix(RATES): rows for name, rows in studies.items() if name.endswith(RATES)}
    return [
        Chapter(
            f"Board {name}",
            "Small tasks that need mixing of tokens, each mechanism at its own best rate.",
            [admission_table(name, studies.get(name, []), search)]
            + [standing_table(name, studies[name]) for _ in range(name in studies)],
        )
        for name, search in boards.items()
    ]
