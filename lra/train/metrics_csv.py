"""metrics.csv: one row per evaluation."""

import csv
import io
from pathlib import Path

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from ..console import log
from ..disk import checksums
from ..runs import evaluations, record


class MetricsCSV(Logger):
    """Rows with a step column, replaced as a whole at every evaluation so that a kill leaves no half row.

    Args:
        folder: of the run.
        first_step: that a resumed run goes on from; rows after it are of steps that it is about to repeat, and dropped.

    Raises:
        ValueError: the rows up to ``first_step`` cannot be read.
    """

    name, version = "csv", ""

    def __init__(self, *, folder: Path, first_step: int = 0, **_run):
        super().__init__()
        self.path = Path(folder) / evaluations.NAME
        self.rows: list[dict] = []
        if first_step:
            self._read(first_step)

    @rank_zero_only
    def _read(self, first_step: int) -> None:
        if not self.path.exists():
            log(f"{self.path} is missing: the curve begins after step {first_step}")
            return
        remedy = "delete it to go on with a curve that begins here"
        try:
            self.rows = [row for row in evaluations.read(self.path.parent) if row["step"] <= first_step]
        except ValueError as error:
            raise ValueError(f"{error}; {remedy}") from None
        if not self.rows or self.rows[-1]["step"] != first_step:
            raise ValueError(f"{self.path} has no row of step {first_step}; {remedy}")

    @rank_zero_only
    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        self.rows.append({"step": step, **metrics})
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[-1]), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        checksums.save(self.path, text.getvalue())

    def log_hyperparams(self, *args, **kwargs) -> None:
        """config.yaml beside it holds them."""

    def log_record(self, made: record.RunRecord) -> None:
        """record.json beside it is the record."""
