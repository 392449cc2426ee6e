"""The chapter of the report on a board: its tasks and its mechanisms."""

from .admission import admission_table
from .agreement import agreement_table
from .standings import standing_table
from .summary import Row
from .table import Chapter

ABOUT = "Small tasks that need mixing of tokens, each mechanism at its own best rate."
RATES = "-rates"  # of the name of the study of a search


def chapters(studies: dict[str, list[Row]]) -> list[Chapter]:
    """Make a chapter of each board among studies: of each search over rates, with the seeds at the chosen rates.

    Args:
        studies: their rows by name.
    """
    made = []
    for name in (name.removesuffix(RATES) for name in studies if name.endswith(RATES)):
        rows = studies.get(name, [])
        tables = [admission_table(name, rows, studies[f"{name}{RATES}"])]
        if rows:
            tables += filter(None, (standing_table(name, rows), agreement_table(name, rows)))
        made.append(Chapter(f"Board {name}", ABOUT, tables))
    return made
