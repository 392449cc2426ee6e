"""The record of a run: its result, what it cost and what made it."""

import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from ..ops.metrics import Metric
from ..options import Share
from . import typed_json
from .typed_json import STRICT, FolderName, Percent

NAME = "record.json"
FILES = ("config.yaml", "metrics.csv", "best.ckpt", "last.ckpt")  # beside it
Status = Literal["done", "diverged"]
_OF_THE_MACHINE = ("runs=", "data.root=", "hydra.", "hydra/")  # overrides that no result depends on
_PATH = re.compile(r"(?<![\w.:/])(/|~)")  # the start of an absolute path, which in a URL does not stand here


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Phase one of a pretrained run: what it did and what it cost.

    Args:
        objective: masked | next.
        fingerprint: digest of the choices that decide it.
        loss: mean over the positions of dev that count, at ``best_step``, whose weights the fine-tuning starts from.
        steps: number of steps that were made.
        tokens: tokens of the rows in the batches of these steps, masked pixels among them.
        step_ms: median, a measurement.
        status: done | diverged.
    """

    __pydantic_config__ = STRICT
    kind: str = "pretrain"
    objective: Literal["masked", "next"]
    fingerprint: str
    loss: float | None
    best_step: NonNegativeInt | None
    steps: NonNegativeInt
    tokens: NonNegativeInt
    step_ms: NonNegativeFloat | None
    status: Status


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One seed's result. Scores in percent; times in milliseconds; status is ``done`` or ``diverged``.

    ``constant_baseline`` is the test score of the best constant answer: the most frequent class, or the mean label if
    labels are real numbers; ``tokens`` are those of the rows in the batches of ``steps``; ``step_ms`` and
    ``peak_bytes`` (of the device, or of the whole process on a CPU) are measurements and differ from run to run;
    ``pretrain`` is the phase before, whose cost is not in the other fields; ``data`` names a file that was read in
    place of the official one, by the start of its sha256.

    Fields about the training say whether it took place (``lra.train.diagnostics``) and are None for a run that
    diverged.

    Args:
        train_loss: mean loss of the training since the evaluation before the last one, that is at the end.
        val_loss: mean loss over dev, with the weights of ``best_step``.
        output_std: root of the mean, over the outputs, of their variance over the dev rows, at ``best_step``.
        live_units: share of the hidden units of the head whose value varies over the dev rows, at ``best_step``; None
            for a head without hidden units and for a class of the user.
        collapsed: whether the model of ``best_step`` gives every dev row the same answer.
        lr: learning rate of the configuration, the highest of the schedule.
        date: end of the run in UTC, ISO 8601.
        command: command line of the run, without folders of the machine.
        torch, suite: versions.
        processor: model of the CPU, also if the device is a GPU.
        floor: test score that needs nothing of what the task asks for: ``constant_baseline``, or the score that is
            known for the source if that is higher.
        bag: test score of a classifier on the counts of tokens (``lra.data.bag``); None if it was not fitted before.
    """

    __pydantic_config__ = STRICT
    kind: str = "train"
    study: FolderName
    task: FolderName
    protocol: FolderName
    budget: FolderName
    label: FolderName
    seed: NonNegativeInt
    fingerprint: str
    git: str | None
    params: NonNegativeInt
    metric: Metric
    val: Percent | None
    test: Percent | None
    constant_baseline: Percent
    n_val: NonNegativeInt
    n_test: NonNegativeInt
    best_step: NonNegativeInt | None
    steps: NonNegativeInt
    step_ms: NonNegativeFloat | None
    peak_bytes: NonNegativeInt | None
    device: str
    status: Status
    tokens: NonNegativeInt | None = None
    pretrain: Pretraining | None = None
    data: str | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    output_std: NonNegativeFloat | None = None
    live_units: Share | None = None
    collapsed: bool | None = None
    lr: NonNegativeFloat | None = None
    date: str | None = None
    command: str | None = None
    torch: str | None = None
    suite: str | None = None
    processor: str | None = None
    floor: Percent | None = None
    bag: Percent | None = None

    @property
    def outcome(self) -> str:
        """The scores of the seed, or the step at which it diverged."""
        if self.status == "diverged":
            return f"diverged at step {self.steps:,}"
        return f"test {self.test:.2f}, dev {self.val:.2f} at step {self.best_step:,}"


def save(record: RunRecord, folder: Path) -> None:
    """Write ``record.json``, with the sums of the files beside it."""
    typed_json.save(record, folder / NAME, FILES)


def load(path: Path, fingerprint: str | None = None) -> RunRecord:
    """Read a record.

    Args:
        path: path of the file.
        fingerprint: fingerprint that the record must have, if one is given.

    Raises:
        ValueError: the file is not a record, or it is that of another run.
    """
    remedy = "run that seed again, or publish it with the version that made it"
    run_record = typed_json.parse(RunRecord, path, "a record of a run", f"delete it to {remedy}")
    if run_record.status == "done" and None in (run_record.val, run_record.test):
        raise ValueError(f"{path} is not a record of a run (done without a score); delete it to {remedy}")
    typed_json.check_seed(path, run_record.seed)
    if fingerprint is not None and run_record.fingerprint != fingerprint:
        raise ValueError(
            f"{path} is the record of another run, seed {run_record.seed}; delete it to run that seed again"
        )
    return run_record


def on_cpu(device: str) -> bool:
    """Whether the ``device`` of a record is a CPU: "x86_64 CPU, 2 threads"."""
    return " CPU, " in device


def command(overrides: Iterable[str]) -> str:
    """The command line of a training, as a shell takes it.

    Folders of runs and data are left out. A value with an absolute path becomes the name of the file.

    Args:
        overrides: words of the command line.
    """
    words = []
    for override in overrides:
        key, _, value = override.partition("=")
        if not override.lstrip("+~").startswith(_OF_THE_MACHINE):
            words.append(f"{key}={value.rpartition('/')[2]}" if _PATH.search(value) else override)
    return shlex.join(["python", "-m", "lra.train", *words])


def processor() -> str | None:
    """The model of the processor as Linux names it; None on another system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def git_commit() -> str | None:
    """The commit of the checkout that the code runs from, with ``-dirty`` if it has changes; None outside one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not installed below another project's checkout
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
