"""python -m lra.sweep.gpu_window 25: use a GPU that is lent for 25 minutes, the most wanted first, and pack what came.

The tests marked gpu, the speed test at 4,096 tokens, a profile, then training at the paper's budget, which is
conf/sweep/window.yaml. Everything is below runs/gpu-window. A part that ended is not run again and a run goes on from
its last checkpoint, so the same command goes on, on another machine once runs/gpu-window.tar is unpacked in its runs.
"""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from ..bench.gpu_check import gpu_test_files, limited
from ..config import CONF
from ..config.compose import quoted
from ..disk import atomic
from ..runs import record

STUDY = "gpu-window"
AT_ONCE = 4  # runs that share the GPU: with the rows of ListOps and Text one alone leaves it idle
AROUND = 20.0  # seconds that a benchmark takes around what its budget counts
SPARE = 30.0  # seconds in which a sweep that has ended by itself is not interrupted
SWEEP = (
    *("sweep=window", "measure=20"),
    *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={AT_ONCE}"),
)


class Part(NamedTuple):
    """A command, with {seconds} for a budget of its own, and the largest share of the window that it may take."""

    name: str
    command: list[str]
    share: float


def parts(home: Path) -> list[Part]:
    """The parts before the training."""
    python = [sys.executable, "-m"]
    tests = [*python, "pytest", "-q", "-m", "gpu", f"--rootdir={CONF.parent}", *map(str, gpu_test_files())]
    figure4 = ["preset=figure4", "n=[4096]", "device=cuda", f"runs={quoted(home / 'parts')}", "budget_s={seconds}"]
    profile = ["what=profile", "mechanisms=cur_abs", "tasks=listops", "n=2048", "batch=32", "device=cuda"]
    return [
        Part("tests", tests, 0.2),
        Part("figure4", [*python, "lra.bench", *figure4], 0.2),
        Part("profile", [*python, "lra.bench", *profile], 0.1),
    ]


def window(minutes: float, runs: Path, before: list[Part], sweep: tuple[str, ...], env: dict[str, str]) -> Path:
    """Run the parts and the sweep within so many minutes; return the archive, which is made anew after each.

    Args:
        minutes: from now on.
        runs: folder of the results.
        before: parts that come before the sweep.
        sweep: overrides of ``lra.sweep``.
        env: of their processes.
    """
    end, home = time.monotonic() + 60 * minutes, runs / STUDY
    (home / "parts").mkdir(parents=True, exist_ok=True)
    try:
        for part in before:
            if not _done(home, part.name).exists():
                seconds = min(part.share * 60 * minutes, end - time.monotonic())
                print(f"gpu-window: {part.name}, {run_part(home, part, seconds, env)}", flush=True)
                pack(home)
        left = (end - time.monotonic()) / 60
        if left > 0:
            words = [f"study={STUDY}", f"runs={quoted(runs)}", f"minutes={left:.2f}", *sweep]
            limited([sys.executable, "-m", "lra.sweep", *words], 60 * left + SPARE, env=env)
    finally:
        path = pack(home)
    return path


def run_part(home: Path, part: Part, seconds: float, env: dict[str, str]) -> str:
    """Run a command, whose output goes to parts/<name>.log, and say how it ended; only what ends is done."""
    within = f"{max(1.0, seconds - AROUND):.0f}"
    command = [word.replace("{seconds}", within) for word in part.command]
    with open(home / "parts" / f"{part.name}.log", "ab") as log:
        status = limited(command, seconds, stdout=log, stderr=subprocess.STDOUT, cwd=CONF.parent, env=env)
    if status is None:
        return f"stopped after {seconds:.0f} s"
    atomic.write(_done(home, part.name), f"{status}\n")
    return f"exit status {status}"


def pack(home: Path) -> Path:
    """Write <home>.tar: all files of the window but the checkpoints of runs that have ended."""
    path = home.with_name(f"{home.name}.tar")
    with atomic.replacing(path) as work, tarfile.open(work, "w") as archive:
        for file in sorted(home.rglob("*")):
            ended = file.suffix == ".ckpt" and (file.parent / record.NAME).exists()
            if file.is_file() and not file.name.startswith(".") and not ended:
                with contextlib.suppress(FileNotFoundError), open(file, "rb") as read:  # a run may still be ending
                    content = read.read()
                    info = archive.gettarinfo(arcname=str(file.relative_to(home.parent)), fileobj=read)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return path


def _done(home: Path, name: str) -> Path:
    return home / "parts" / f"{name}.done"


def main() -> None:
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+(\.\d+)?", sys.argv[1]):
        sys.exit("lra: python -m lra.sweep.gpu_window MINUTES, a number such as 25")
    if not torch.cuda.is_available():
        print("gpu-window: torch sees no GPU here, nothing was run")
        return
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    env.setdefault("CUDA_VISIBLE_DEVICES", "0")
    env.pop("TRITON_INTERPRET", None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = Path("runs").absolute()
    path = window(float(sys.argv[1]), runs, parts(runs / STUDY), SWEEP, env)
    size = path.stat().st_size / 2**20
    print(f"gpu-window: {size:.1f} MB in {path}; tar xf {path.name} -C runs, and the same command goes on there")


if __name__ == "__main__":
    main()
