"""logger=wandb: each seed as a run of Weights & Biases. A failure of W&B never stops training."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from lightning.pytorch.loggers import WandbLogger

from ...config.experiment import Experiment
from ...options import Range
from ...ranks import rank
from ...runs import checkpoint
from ...runs.record import RunRecord, git_commit
from . import Mode, check_installed, close_service, open_run, reason, tell

# Options that do not describe the run.
MACHINERY = ("budgets", "masking", "data_overrides", "multirun", "logger", "runs", "seeds")


class WandB(WandbLogger):
    """The logger of one seed: configuration at the start, metrics at each evaluation, record as summary at the end.

    The run's id is computed from study, task, label and fingerprint, so a killed seed continues the same run. On
    resume, evaluations in metrics.csv that the run lacks are sent first. If W&B fails, a warning is logged, training
    continues, and the whole seed is sent once more at its end.

    Args:
        folder: run directory.
        first_step: step from which the seed resumes.
        experiment: experiment of the run.
        seed: random seed of the run.
        fingerprint: fingerprint of the run.
        project, entity, mode: options of W&B.
        tags: tags in addition to study, task, label, protocol and budget.
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
        project: str = "lra",
        entity: str | None = None,
        mode: Mode | None = None,
        tags: Sequence[str] = (),
        timeout: Annotated[int | float, Range(0)] = 20,
    ):
        check_installed()
        group = f"{experiment.study}/{experiment.task.name}/{experiment.label}"
        config = {key: value for key, value in experiment.to_dict().items() if key not in MACHINERY}
        run_tags = [experiment.study, experiment.task.name, experiment.label]
        run_tags += [experiment.protocol.name, experiment.budget]
        self._about: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "id": hashlib.sha256(f"{group}/{fingerprint}".encode()).hexdigest()[:16],
            "name": f"{experiment.task.name} {experiment.label} seed {seed}",
            "group": group,
            "job_type": "train",
            "tags": list(dict.fromkeys((*run_tags, *tags))),
            "config": config | {"seed": seed, "fingerprint": fingerprint, "git": git_commit()},
        }
        super().__init__(save_dir=folder, **self._about)
        self._folder = Path(folder)
        self._mode = mode
        self._timeout = timeout
        self._open(first_step)

    @property
    def experiment(self):
        """The run; None without one. Lightning's property would open one and raise its errors."""
        return self._experiment

    def _open(self, last_step: int) -> None:
        """On rank 0, start or resume the run and send the evaluations up to ``last_step`` that it lacks."""
        # Lightning's rank_zero_only takes SLURM_PROCID for the rank, which independent tasks of one srun have too.
        if rank():
            return
        self._experiment = open_run(
            self._about, folder=self._folder, mode=self._mode, timeout=self._timeout, resume=last_step > 0
        )
        if not last_step or not (self._folder / checkpoint.METRICS).exists():
            return
        for metrics in checkpoint.read_metrics(self._folder):
            step = int(metrics.pop("step"))
            if step <= last_step:
                self.log_metrics(metrics, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send the metrics of an evaluation, unless the run has them."""
        if self._experiment is None:
            return
        try:
            # W&B's step prevents that a resumed run sends an evaluation twice.
            if step is None or self._experiment.step <= step:
                self._experiment.log(dict(metrics), step=step, commit=True)
        except Exception as error:
            tell(f"{reason(error)}; {self._name} is not logged until it ends, then sent whole")
            self._experiment = None
            close_service()

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
            tell(f"{reason(error)}; wandb sync --include-online {self._folder / 'wandb'} sends the rest")
        self._experiment = None
