"""One run of a sweep: lra.train in its own process, so that its memory and a crash are its own."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from ..config.compose import config_dir_flags, overrides_of
from ..config.workers import killed_by
from ..io import atomic, lock
from ..io.atomic import explain_disk_errors
from ..runs import record

LOG = "train.log"
FAILED = "failed.txt"
# Seconds to finish the current step after SIGTERM; then the process exits.
PATIENCE = 60


def job(
    hydra_config: object, *, cwd: str, threads: int | None, gpus: list[str], sweep: int, latest: dict[str, float]
) -> None:
    """Run lra.train for a launcher, possibly on another host, with the overrides and the run directory of Hydra's job.

    The output of the run goes to train.log, and the reason of a failure to failed.txt.

    Args:
        hydra_config: configuration of the run, unused: everything is read from HydraConfig.
        cwd: working directory of the run.
        threads: CPU threads of the run, None for torch's default.
        gpus: GPUs that runs on this machine take in turn.
        sweep: pid of the sweep; if it is the parent of this process, the run ends with it.
        latest: latest start of each run, a timestamp by run directory; after it the run is not started.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    # Another process may have finished or started the run in the meantime.
    if (folder / record.NAME).exists() or lock.holder(folder / lock.NAME):
        return
    if time.time() > latest.get(str(folder), math.inf):
        return
    # Environment of the run: its threads and its GPU.
    env = dict(os.environ)
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = gpus[hydra.job.num % len(gpus)]
    (folder / FAILED).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOG, "ab+") as log:
        before = log.seek(0, os.SEEK_END)
        run = subprocess.Popen(
            [sys.executable, "-m", "lra.sweep.job", *config_dir_flags(), *overrides_of(hydra)],
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        # Wait for the run, or for the end of the sweep whose worker this process is.
        worker = os.getppid() == sweep
        try:
            while run.poll() is None and not (worker and os.getppid() != sweep):
                time.sleep(0.1)
        finally:
            # The run ends soon after its standard input is closed, see ``end_with_parent``.
            run.communicate()
            if worker and os.getppid() != sweep:
                # The sweep has ended, and no further job should begin.
                os._exit(1)
        if run.returncode:
            log.seek(before)
            fail(folder, reason(run.returncode, log.read().decode(errors="replace")))


def fail(folder: Path, explanation: str) -> None:
    """Write the reason of a failure into a run directory.

    Raises:
        ValueError: the file cannot be written.
    """
    with explain_disk_errors(folder):
        atomic.write(folder / FAILED, explanation + "\n")


def reason(status: int, output: str) -> str:
    """Explain an exit status other than 0: the signal, or the last line of the output.

    Args:
        status: exit status of the process, negative for a signal.
        output: output of the process.
    """
    if status < 0:
        return killed_by(-status)
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip().removeprefix("lra: ") if lines else f"exit status {status}, no output"


def end_with_parent() -> None:
    """End this process soon after its parent has closed its standard input or has ended."""
    # Returns when the other end is closed, for whatever reason.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    from ..train.__main__ import train

    train()
