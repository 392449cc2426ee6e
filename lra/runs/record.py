"""The record of a run: its result, its cost and its provenance."""

import functools
import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from ..io import typed_json
from ..io.typed_json import STRICT, FolderName, Percent
from ..ops.metrics import Metric
from ..options import Share

NAME = "record.json"
PRETRAIN_NAME = "pretrain.json"
# Result of lra evaluate, which scores finished runs.
FRESH_TEST_NAME = "fresh_test.json"
# Files in the same directory whose checksums the record holds.
FILES = ("config.yaml", "metrics.csv", "best.ckpt", "last.ckpt")
Status = Literal["done", "diverged"]
# Overrides that do not affect any result.
_MACHINE_OVERRIDES = ("runs=", "data.root=", "data.release=", "hydra.", "hydra/")
# An absolute path, alone or in a list or mapping; the two slashes of a URL do not begin one.
_ABSOLUTE_PATH = re.compile(r"""(?<![\w./])(/(?!/)|~)[^][{},'"]*""")


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """The result and the cost of pretraining, the first phase of a run.

    Args:
        objective: masked | next.
        fingerprint: digest of the choices that decide it.
        loss: validation loss at ``best_step``, whose weights the fine-tuning starts from: the mean over the predicted
            positions. None if it diverged.
        best_step: step of the lowest validation loss; None if it diverged.
        steps: number of training steps; if it diverged, the step at which it did.
        tokens: tokens in the batches of these steps, masked pixels included.
        step_ms: milliseconds per step, the median over the intervals between evaluations, a measurement.
        status: done | diverged.
        sources: sha256 of the files of custom classes, by module; None if every class belongs to the suite.
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
    sources: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The result of one seed. Scores are in percent, times in milliseconds.

    The diagnostics of the training (``lra.train.diagnostics``) are None for a run that diverged: ``train_loss``,
    ``val_loss``, ``output_std``, ``live_units`` and ``collapsed``.

    Args:
        val: best validation score.
        test: test score of the weights with the best validation score.
        constant_baseline: test score of the best constant answer: the most frequent class, or the mean label if labels
            are real numbers.
        best_step: step of the best validation score.
        steps: number of training steps; for a run that diverged, the step at which it did.
        step_ms: time per step, the median over the intervals between evaluations since the last start of the run, a
            measurement; None if no step was left.
        peak_bytes: peak memory of the device since the last start of the run, evaluations included, or of the whole
            process on a CPU, a measurement.
        status: done | diverged.
        tokens: tokens in the batches of ``steps``.
        pretrain: pretraining, whose steps, tokens and time are not in the other fields.
        data: start of a checksum of the file or copy that was read instead of the official file.
        train_loss: mean training loss between the last two evaluations.
        val_loss: validation loss at ``best_step``.
        output_std: root of the mean, over the outputs, of their variance over the validation set, at ``best_step``.
        live_units: share of the hidden units of the head whose value varies over the validation set, at ``best_step``;
            None for a head without hidden units, ``MegaHead`` and a custom head.
        collapsed: whether the model of ``best_step`` gives every validation example the same answer, see ``diagnose``;
            None if an output is not finite.
        lr: learning rate of the configuration, the highest of the schedule.
        date: end of the run in UTC, ISO 8601.
        command: command line of the run, without the folders of the machine.
        torch, suite: versions.
        processor: model of the CPU, also if the device is a GPU.
        floor: chance level: ``constant_baseline``, or the analytic chance level of the source if that is higher.
        bag: test score of the bag-of-tokens baseline (``lra.data.token_baselines``); None if it had not been fitted.
        sources: sha256 of the files of custom classes, by module; None if every class belongs to the suite.
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
    sources: dict[str, str] | None = None

    @property
    def device_name(self) -> str:
        """The device for tables. The recorded text, by which runs are compared, says "1 threads" for one thread."""
        return self.device.replace(" 1 threads", " 1 thread")

    @property
    def outcome(self) -> str:
        """The scores of the seed, or the step at which it diverged."""
        if self.status == "diverged":
            return f"diverged at step {self.steps:,}"
        return f"test {self.test:.2f}, validation {self.val:.2f} at step {self.best_step:,}"


def save(record: RunRecord, folder: Path) -> None:
    """Write ``record.json``, with the checksums of the other files of the run."""
    typed_json.save(record, folder / NAME, FILES)


def load(path: Path, fingerprint: str | None = None) -> RunRecord:
    """Read a record.

    Args:
        path: path of the file.
        fingerprint: fingerprint that the record must have; None for any.

    Raises:
        ValueError: the file is not a record, or belongs to another run.
    """
    remedy = "delete it to run that seed again, or publish it with the version that made it"
    run_record = typed_json.parse(RunRecord, path, "a record of a run", remedy)
    # What the types of the fields do not express.
    scores = (run_record.val, run_record.test)
    if run_record.status == "done" and None in scores:
        raise ValueError(f"{path} is not a record of a run (done without a score); {remedy}")
    typed_json.check_seed(path, run_record.seed)
    if fingerprint is not None and run_record.fingerprint != fingerprint:
        raise ValueError(
            f"{path} is the record of another run, seed {run_record.seed}; delete it to run that seed again"
        )
    return run_record


def save_pretraining(pretraining: Pretraining, folder: Path) -> None:
    """Write ``pretrain.json``, with the checksums of the other files in its folder."""
    typed_json.save(pretraining, folder / PRETRAIN_NAME, FILES)


def load_pretraining(path: Path, fingerprint: str | None = None) -> Pretraining:
    """Read a record of pretraining.

    Args:
        path: path of the file.
        fingerprint: fingerprint that the record must have; None for any.

    Raises:
        ValueError: the file is not a record of pretraining, or has another fingerprint.
    """
    remedy = "delete its folder to pretrain again"
    pretraining = typed_json.parse(Pretraining, path, "a record of pretraining", remedy)
    if fingerprint is not None and pretraining.fingerprint != fingerprint:
        raise ValueError(f"{path} is the record of another pretraining; {remedy}")
    return pretraining


def on_cpu(device: str) -> bool:
    """Whether the ``device`` of a record is a CPU: "x86_64 CPU, 2 threads"."""
    return " CPU, " in device


def command(overrides: Iterable[str]) -> str:
    """The command line of a training, quoted for a shell.

    Folders of runs and data and options of Hydra are left out. An absolute path becomes its last name.

    Args:
        overrides: overrides of the command line.
    """
    arguments = []
    for override in overrides:
        if override.lstrip("+~").startswith(_MACHINE_OVERRIDES):
            continue
        key, equals, value = override.partition("=")
        value = _ABSOLUTE_PATH.sub(lambda path: Path(path[0]).name, value)
        arguments.append(f"{key}{equals}{value}")
    return shlex.join(["python", "-m", "lra.train", *arguments])


def processor() -> str | None:
    """The model of the processor as Linux names it; None on another system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.startswith("model name"):
            return value.strip()
    return None


@functools.cache
def git_commit() -> str | None:
    """The commit of the checkout that the code runs from; None outside one.

    It ends in ``-dirty`` if tracked files differ, or if the folders of the code hold files that are not committed. It
    is cached; ``lra train`` reads it again for each job of -m, which imports its mechanism only then.
    """
    package = Path(__file__).parent
    root = package.parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=package, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        # Fails if the package is installed below another project's checkout.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        commit = git("rev-parse", "--short=12", "HEAD")
        has_changes = bool(git("status", "--porcelain", "-uno"))
        # A new mechanism is a file of these folders that git does not track yet.
        folders = [str(root / name) for name in ("lra", "conf", "data_prep")]
        has_changes = has_changes or bool(git("ls-files", "--others", "--exclude-standard", "--", *folders))
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if has_changes else commit
