"""logger=wandb: each seed as a run of Weights & Biases, beside metrics.csv and never in the way of training."""

import csv
import hashlib
import importlib.util
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

import requests
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from .record import RunRecord, git_commit

MODES = ("online", "offline", "disabled")
MACHINERY = ("budgets", "data_words", "multirun", "logger", "runs", "seeds")  # of no interest in one run's config


def tell(line: str) -> None:
    print(f"W&B: {line}", file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def open_run(
    *,
    folder: Path,
    id: str,
    project: str,
    entity: str | None,
    mode: str | None,
    timeout: float,
    name: str,
    group: str,
    job_type: str,
    tags: list[str],
    config: dict,
    resume: bool,
):
    """The W&B run ``id``, its files in folder/wandb; None where not even an offline one can be had.

    mode None: what WANDB_MODE says, else online. Where the service cannot be used the run is an offline one, and a line
    says why. resume: go on in a run with this id where the service has one, else such a run starts over. An earlier
    local copy of the run is replaced: two of them brought up one after the other would overwrite each other.
    timeout: seconds to wait for the service at the start, and again for uploads at the end.

    Raises ValueError for an unknown mode and where wandb is not installed.
    """
    if mode not in (None, *MODES):
        raise ValueError(f"logger.wandb.mode must be one of {', '.join(MODES)}, not {mode!r}")
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder of that name, such as other programs leave, has no origin
        raise ValueError("logger=wandb needs a package that is not installed: pip install '.[wandb]'")
    import wandb

    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        mode = mode or settings.mode
        later = f"kept offline in {folder / 'wandb'}; wandb sync brings it up"
        if mode == "online" and (reason := _unusable(settings, timeout)):
            tell(f"{reason}; {later}")
            mode = "offline"
        for attempt in dict.fromkeys((mode, "offline")):
            for old in (folder / "wandb").glob(f"*run-*-{id}"):
                shutil.rmtree(old, ignore_errors=True)
            try:
                return wandb.init(
                    project=project,
                    entity=entity,
                    id=id,
                    name=name,
                    group=group[:128],
                    job_type=job_type,
                    tags=[tag[:64] for tag in tags],
                    config=config,
                    dir=folder,
                    mode=attempt,
                    resume="allow" if resume and attempt == "online" else None,
                    reinit="create_new",
                    settings=wandb.Settings(
                        silent=True,
                        console="off",
                        init_timeout=timeout,
                        finish_timeout=timeout,
                        finish_timeout_raises=True,
                    ),
                )
            except Exception as error:
                tell(f"{first_line(error)}; {later if attempt == 'online' else 'this run is not logged'}")
                wandb.teardown()  # its process still holds the id
    except Exception as error:
        tell(f"{first_line(error)}; this run is not logged")
    return None


def _unusable(settings, timeout: float) -> str | None:
    """Why the service cannot be used, without waiting for W&B's own retries."""
    url = settings.base_url
    if not (settings.api_key or settings.identity_token_file or requests.utils.get_netrc_auth(url)):
        return "no key (wandb login, or WANDB_API_KEY)"
    try:
        urllib.request.urlopen(url, timeout=min(timeout, 5)).close()
    except urllib.error.HTTPError:
        return None  # an answer
    except OSError as error:
        cause = getattr(error, "reason", error)
        return None if isinstance(cause, ssl.SSLError) else f"{url} cannot be reached ({first_line(cause)})"
    return None


class WandB(Logger):
    """One seed: config and machine at the start, one row an evaluation, its record in the summary at the end.

    The run's id is a function of study, task, label and fingerprint, so that a killed seed goes on in the same run.
    Rows of metrics.csv up to ``first_step`` that the run lacks are sent first, rows that it has are not sent again.
    Whatever fails is told in one line and ends the logging, not the training.
    """

    name, version = "wandb", ""

    def __init__(
        self,
        *,
        folder: Path,
        first_step: int,
        config: DictConfig,
        seed: int,
        fingerprint: str,
        project: str,
        entity: str | None = None,
        mode: str | None = None,
        tags: list[str] = (),
        timeout: float = 20,
    ):
        super().__init__()
        self.folder, self.run = Path(folder), None
        group = f"{config.study}/{config.task.name}/{config.label}"
        protocol = config.protocol.name
        plain = {k: v for k, v in OmegaConf.to_container(config, resolve=True).items() if k not in MACHINERY}
        self._open(
            first_step,
            folder=self.folder,
            id=hashlib.sha256(f"{group}/{fingerprint}".encode()).hexdigest()[:16],
            project=project,
            entity=entity,
            mode=mode,
            timeout=timeout,
            name=f"{config.task.name} {config.label} seed {seed}",
            group=group,
            job_type="train",
            tags=list(dict.fromkeys((config.study, config.task.name, config.label, protocol, config.budget, *tags))),
            config=plain | {"seed": seed, "fingerprint": fingerprint, "git": git_commit()},
            resume=first_step > 0,
        )

    @rank_zero_only
    def _open(self, first_step: int, **about) -> None:
        self.run = open_run(**about)
        path = self.folder / "metrics.csv"
        if self.run and first_step and path.exists():
            with open(path, newline="") as file:
                rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
            for row in rows:
                if row["step"] <= first_step:
                    self.log_metrics(row, int(row.pop("step")))

    @rank_zero_only
    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        self._send(lambda run: run.step > step or run.log(metrics, step=step, commit=True))

    @rank_zero_only
    def log_record(self, record: RunRecord) -> None:
        """The final scores, and the end of the run."""
        self._send(lambda run: run.summary.update({"test": record.test, "record": asdict(record)}))
        self._send(lambda run: run.finish(exit_code=int(record.status != "done")))
        self.run = None

    def _send(self, call) -> None:
        if self.run is None:
            return
        try:
            call(self.run)
        except Exception as error:
            tell(f"{first_line(error)}; {self.run.name} is no longer logged; wandb sync {self.folder / 'wandb'} later")
            self.run = None

    def log_hyperparams(self, *args, **kwargs) -> None:
        """The run has its configuration from the start."""
