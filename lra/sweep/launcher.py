"""Starting the runs of a sweep by one of hydra's launchers, again until all have ended or the time is over."""

import functools
import math
import os
import signal
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, RunMode

from ..config.errors import explain
from ..config.quoting import escape, override
from ..console import log
from ..data.source import cores
from .estimate import START_SECONDS
from .job import FAILED, fail, job
from .options import SweepOptions
from .plan import PlannedRun, study
from .progress import ENDED, POLL_SECONDS, state, steps_done, steps_with_pretraining

# Number of runs that share a GPU, unless hydra.launcher.n_jobs is given.
RUNS_PER_GPU = 2
# Memory of Ray's object store, as in Hydra's launcher.
RAY_STORE_BYTES = 78_643_200
# Launches in a row without a run that begins, after which a cluster counts as failed. One lost job ends a launch while
# the others of its array are still in the queue.
IDLE_LAUNCHES = 3
# Time for runs to stop and to write their results: so many seconds, or this share of a short time limit.
ENDING_SECONDS = 15.0
ENDING_SHARE = 0.2


def workers() -> tuple[int | None, int | None]:
    """Decide how many runs there are at once.

    Returns:
        The number of runs at once, None if a cluster decides, and the threads of each, None for torch's default.
    """
    choices = HydraConfig.get()
    launcher = choices.runtime.choices["hydra/launcher"]
    if launcher == "basic":
        return 1, None
    if launcher != "joblib":
        return None, None
    # joblib: the number of processes, by default one per core or two per GPU.
    at_once = choices.launcher.n_jobs
    if at_once < 1:
        at_once = RUNS_PER_GPU * torch.cuda.device_count() or cores()
    return at_once, max(1, cores() // at_once)


def start_ray(launcher: Any) -> None:
    """Start Ray as its launcher does, but keep the handler of SIGTERM; Ray's handler prints a trace and exits.

    Args:
        launcher: Hydra's launcher for Ray.
    """
    handler = signal.getsignal(signal.SIGTERM)
    launcher.ray_cfg.init.setdefault("object_store_memory", RAY_STORE_BYTES)
    import_module("hydra_plugins.hydra_ray_launcher._launcher_util").start_ray(launcher.ray_cfg.init)
    signal.signal(signal.SIGTERM, handler)


class Launcher:
    """Launches runs. As a context manager it interrupts the sweep after ``minutes``, if given, as Ctrl-C does.

    A run resumes from its last checkpoint, which it writes at every evaluation, so it is worth starting if it reaches
    its next evaluation in time. Runs that also reach their end in time come first.

    Args:
        options: options of the sweep, in an entry point whose hydra configuration has a launcher; its ``minutes`` begin
            now.

    Raises:
        ValueError: there are ``minutes``, and a cluster decides.
    """

    def __init__(self, options: SweepOptions):
        self.options = options
        self.at_once, self.threads = workers()
        # The runs of a learning-rate search have one thread each (``lra.board.runs``), so a step is timed with one.
        if options.sweep.search:
            self.threads = 1
        if options.minutes and self.at_once is None:
            raise ValueError(
                "minutes is for runs on this machine, hydra/launcher=basic or joblib; a cluster has its own limits"
            )
        limit = 60 * (options.minutes or math.inf)
        self.end = time.time() + limit - min(ENDING_SECONDS, ENDING_SHARE * limit)
        # Runs that failed because their folder cannot be written, with the reason.
        self.unwritable: dict[PlannedRun, str] = {}
        # Whether the time limit has ended the sweep.
        self.time_is_over = False

    def __enter__(self) -> "Launcher":
        self.timer = threading.Timer(min(self.end - time.time(), threading.TIMEOUT_MAX), self._stop)
        self.timer.daemon = True
        self.timer.start()
        return self

    def __exit__(self, *error) -> None:
        self.timer.cancel()

    def _stop(self) -> None:
        self.time_is_over = True
        # ``run_rounds`` handles SIGTERM as Ctrl-C. A process in the background of a script ignores SIGINT.
        os.kill(os.getpid(), signal.SIGTERM)

    def wait_for_interrupted(self, runs: list[PlannedRun]) -> None:
        """Wait a short time for interrupted runs, which end after their step."""
        last = time.monotonic() + ENDING_SECONDS
        while any(state(run) == "running" for run in runs) and time.monotonic() < last:
            time.sleep(POLL_SECONDS)

    def latest_start(self, run: PlannedRun) -> float:
        """Compute the latest start at which a run still reaches its next checkpoint; an unknown time counts as zero."""
        seconds_to_checkpoint = (run.seconds or 0.0) * run.eval_every / run.steps
        return self.end - START_SECONDS - seconds_to_checkpoint

    def select_startable(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Select the runs that reach a checkpoint in time; those that also reach their end in time come first."""
        seconds_left = self.end - time.time()

        def exceeds_time(run: PlannedRun) -> bool:
            share_left = 1 - steps_done(run) / run.steps
            return START_SECONDS + (run.seconds or 0.0) * share_left > seconds_left

        in_time = [run for run in runs if time.time() <= self.latest_start(run)]
        return sorted(in_time, key=exceeds_time)

    def complete(self, runs: list[PlannedRun]) -> None:
        """Launch the remaining runs until all have ended, or none that is left is worth starting.

        Runs of another sweep are waited for, and launched if that sweep dies.
        """
        max_idle = 1 if self.at_once else IDLE_LAUNCHES
        idle = 0
        while True:
            # A run whose folder cannot be written has no state in it.
            states = {run: state(run) for run in runs if run not in self.unwritable}
            if all(run_state in ENDED for run_state in states.values()):
                return
            # Runs that no process is running: never started, or interrupted.
            not_running = [run for run, run_state in states.items() if run_state == "left"]
            if not not_running:
                time.sleep(POLL_SECONDS)
                continue
            startable = self.select_startable(not_running)
            if not startable:
                return
            self.make_folders(startable)
            startable = [run for run in startable if run not in self.unwritable]
            if not startable:
                continue
            steps_before = {run: steps_with_pretraining(run) for run in startable}
            reason = self.launch(startable)
            # Of several launches in a row without a run that begins, only the first logs why it stopped.
            if reason and not idle:
                log(f"lra: the launcher stopped: {reason}")
            began = any(
                state(run) in (*ENDED, "running") or steps_with_pretraining(run) > steps_before[run]
                for run in startable
            )
            idle = 0 if began else idle + 1
            # No run began although the time allows all of them: the launcher itself has failed, so launching again is
            # no help.
            if idle >= max_idle and len(self.select_startable(startable)) == len(startable):
                for run in startable:
                    if run not in self.unwritable:
                        self.record_failure(run, reason or "ended without a result and without a message")

    def launch(self, runs: list[PlannedRun]) -> str | None:
        """Hand runs to hydra's launcher, as hydra does for -m; returns the reason if it stopped before the end."""
        choices = HydraConfig.get()
        # The configuration of Hydra's launcher: its options of this command line, and the folders of the runs.
        # Hydra's own hydra.mode=RUN is dropped, and the launcher is named: the yaml of a sweep may have chosen it.
        name = choices.runtime.choices["hydra/launcher"]
        replaced = ("hydra.mode=", "hydra/launcher=")
        overrides = [line for line in choices.overrides.hydra if not line.startswith(replaced)]
        overrides.append(f"hydra/launcher={name}")
        overrides.append(override("hydra.job.name", study(self.options)))
        overrides.append(override("hydra.sweep.dir", os.path.abspath(self.options.runs)))
        if name == "joblib":
            overrides += [f"hydra.launcher.n_jobs={self.at_once}", "hydra.launcher.batch_size=1"]
        loader = GlobalHydra.instance().config_loader()
        # Several runs at once take the GPUs of this machine in turn. A single run sees all of them, for trainer=ddp; a
        # cluster assigns its own.
        gpus: list[str] = []
        count = torch.cuda.device_count()
        if self.at_once and self.at_once > 1 and count > 1:
            all_gpus = ",".join(str(gpu) for gpu in range(count))
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", all_gpus).split(",")
        # Each run is a process of lra train, which a worker of the launcher starts.
        task = functools.partial(
            job,
            cwd=str(Path.cwd()),
            threads=self.threads,
            gpus=gpus,
            sweep=os.getpid(),
            latest={os.path.abspath(run.folder): self.latest_start(run) for run in runs},
        )
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks()),
            task_function=task,
            config=loader.load_configuration("train", overrides, RunMode.MULTIRUN),
        )
        job_overrides = []
        for run in runs:
            subdir = override("hydra.sweep.subdir", run.folder.relative_to(self.options.runs))
            # Hydra's launchers parse the overrides, as ``compose`` does for the plan.
            run_overrides = [escape(line) for line in run.overrides]
            job_overrides.append([*run_overrides, subdir])
        steps_before = {run: steps_with_pretraining(run) for run in runs}
        # A scheduler may fail, or a worker be killed; the remaining runs are launched again.
        try:
            if name == "ray":
                start_ray(launcher)
            ended = launcher.launch(job_overrides, 0)
        except Exception as error:
            return explain(error)
        # A worker that could not start its run has raised an error; a run that a time limit interrupted resumes.
        for run, end in zip(runs, ended, strict=True):
            has_begun = steps_with_pretraining(run) > steps_before[run]
            if end.status is JobStatus.FAILED and state(run) == "left" and not has_begun:
                self.record_failure(run, explain(end._return_value))
        return None

    def forget_failure(self, run: PlannedRun) -> None:
        """Remove the reason of an earlier failure from the folder of a run."""
        try:
            (run.folder / FAILED).unlink(missing_ok=True)
        except OSError as error:
            self.mark_unwritable(run, explain(error))

    def make_folders(self, runs: list[PlannedRun]) -> None:
        """Create the folders of runs. A run without one fails, and the others start."""
        for run in runs:
            try:
                run.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.mark_unwritable(run, f"its folder cannot be created: {explain(error)}")

    def record_failure(self, run: PlannedRun, reason: str) -> None:
        """Write the reason of a failure into the folder of a run, or keep it here if that fails."""
        try:
            fail(run.folder, reason)
        except (OSError, ValueError) as error:
            self.mark_unwritable(run, f"{reason}; {explain(error)}")

    def mark_unwritable(self, run: PlannedRun, reason: str) -> None:
        """Log and keep the reason of a failure that cannot be written."""
        log(f"{run}: failed, {reason}")
        self.unwritable[run] = reason
