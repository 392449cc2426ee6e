"""logger=wandb: each seed as a run of Weights & Biases, besides metrics.csv; a failure of W&B never stops training."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from ...config.experiment import Experiment
from ...options import Range
from ...runs import metrics_file
from ...runs.record import RunRecord, git_commit
from .run import Mode, check_installed, close_service, first_line, open_run, tell

# Left out of the run's config.
MACHINERY = ("budgets", "masking", "data_overrides", "multirun", "logger", "runs", "seeds")


class WandB(WandbLogger):
    """The logger of one seed: its config at the start, a row for each evaluation, its record as the summary at the end.

    The run's id is a function of study, task, label and fingerprint, so that a killed seed continues the same run. Rows
    of metrics.csv up to ``first_step`` that the run lacks are sent first; rows that it has are not sent again. If W&B
    fails, a line is logged and the training continues; the whole seed is sent once more at its end.

    Args:
        folder: folder of the seed.
        first_step: step from which the seed resumes.
        experiment: experiment of the run.
        seed: seed of the run.
        fingerprint: fingerprint of the run.
        project, entity, mode: options of W&B.
        tags: besides those of the run.
        timeout: seconds to wait for the service.
    """

    def __init__(
        self,
        *,
        folder: Path,
        first_step: int,
        experiment: Experiment,
        seed: int,
        fingerprint: str,
        project: str,
        entity: str | None = None,
        mode: Mode | None = None,
        tags: Sequence[str] = (),
        timeout: Annotated[int | float, Range(0)] = 20,
    ):
        check_installed()
        group = f"{experiment.study}/{experiment.task.name}/{experiment.label}"
        shown = {k: v for k, v in experiment.to_dict().items() if k not in MACHINERY}
        words = (experiment.study, experiment.task.name, experiment.label, experiment.protocol.name, experiment.budget)
        self._about = {
            "project": project,
            "entity": entity,
            "id": hashlib.sha256(f"{group}/{fingerprint}".encode()).hexdigest()[:16],
            "name": f"{experiment.task.name} {experiment.label} seed {seed}",
            "group": group,
            "job_type": "train",
            "tags": list(dict.fromkeys((*words, *tags))),
            "config": shown | {"seed": seed, "fingerprint": fingerprint, "git": git_commit()},
        }
        super().__init__(save_dir=folder, **self._about)
        self._folder, self._mode, self._timeout = Path(folder), mode, timeout
        self._open(first_step)

    @property
    def experiment(self):
        """The run, None without one; Lightning's property would open one and let its errors through."""
        return self._experiment

    @rank_zero_only
    def _open(self, last_step: int) -> None:
        """Start or resume the run and send what it lacks of the evaluations up to ``last_step``."""
        self._experiment = open_run(
            self._about, folder=self._folder, mode=self._mode, timeout=self._timeout, resume=last_step > 0
        )
        if last_step and (self._folder / metrics_file.NAME).exists():
            for row in metrics_file.read(self._folder):
                if (step := row.pop("step")) <= last_step:
                    self.log_metrics(row, step)

    @rank_zero_only
    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        if self._experiment is None:
            return
        try:
            if self._experiment.step <= step:  # Lightning would count rows, and send those of a resumed run twice
                self._experiment.log(metrics, step=step, commit=True)
        except Exception as error:
            tell(f"{first_line(error)}; {self._name} is not logged until it ends, then sent whole")
            self._experiment = None
            close_service()

    @rank_zero_only
    def log_record(self, record: RunRecord) -> None:
        """Send the record and finish the run."""
        if self._experiment is None:
            self._open(record.steps)
        if self._experiment is None:
            return
        try:
            self._experiment.summary.update({"test": record.test, "record": asdict(record)})
            self._experiment.finish(exit_code=int(record.status != "done"))
        except Exception as error:
            tell(f"{first_line(error)}; wandb sync --include-online {self._folder / 'wandb'} sends the rest")
        self._experiment = None
