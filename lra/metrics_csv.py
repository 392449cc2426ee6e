"""metrics.csv: one row per evaluation."""

import csv
import io
from pathlib import Path

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from .record import write


class MetricsCSV(Logger):
    """Rows with a step column, replaced as a whole at every evaluation so that a kill leaves no half row.

    first_step: rows after it belong to steps that a resumed run is about to repeat, and are dropped.
    """

    name, version = "csv", ""

    def __init__(self, *, folder: Path, first_step: int = 0, **_run):
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self.rows: list[dict] = []
        if first_step and self.path.exists():
            with open(self.path, newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["step"]) <= first_step]

    @rank_zero_only
    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        self.rows.append({"step": step, **metrics})
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[-1]), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write(self.path, text.getvalue())

    def log_hyperparams(self, *args, **kwargs) -> None:
        """config.yaml beside it holds them."""

    def log_record(self, record) -> None:
        """record.json beside it is the record."""
