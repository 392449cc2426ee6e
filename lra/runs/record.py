"""The record of a run, the choices that decided its result, and its fingerprint."""

import csv
import functools
import hashlib
import io
import itertools
import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import AliasChoices, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ..config.label import flatten
from ..disk import checksums
from ..disk.atomic import Unreadable, replacing, write  # noqa: F401 every file in the folder of a run is written by them
from .canonical import canonical

T = TypeVar("T")
NAME, METRICS = "record.json", "metrics.csv"
PUBLISHED = "published"  # folder of runs/ with finished runs that belong to the repository
STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # of records that are read
Percent = Annotated[float, Field(ge=0, le=100)]
Status = Literal["done", "diverged"]


def renamed(field: str, before: str) -> FieldInfo:
    """Let an ``Annotated`` field of a record also be read under its former name."""
    return Field(validation_alias=AliasChoices(field, before))


Baseline = Annotated[Percent, renamed("constant_baseline", "majority")]
# Sections that decide a result; everything else (logger, device, compile, graph, threads, folders, other seeds) does not.
_CHOICES = ("task", "source", "model", "block", "attn", "protocol", "pretrain", "optim", "data", "trainer")
# Several devices share the same batches; only dropout and random selection draw other numbers on them.
_INDIFFERENT = (
    "task.display",
    "data.root",
    "data.eval_batch",
    "trainer.device",
    "trainer.devices",
    "trainer.compile",
    "trainer.graph",
    "trainer.threads",
    "trainer.force_bf16",  # trainer.precision is the one that was used
    "pretrain.from",
)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Phase one of a pretrained run: what it did and what it cost.

    Args:
        objective: masked | next.
        fingerprint: of the choices that decide it.
        loss: mean over the positions of dev that count, at ``best_step``, whose weights the fine-tuning starts from.
        steps: that were made.
        tokens: real ones in the batches of these steps.
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
    labels are real numbers; ``tokens`` are the real ones in the batches of ``steps``; ``step_ms`` and ``peak_bytes`` (of the device, or of the whole process on a CPU) are
    measurements and differ from run to run; ``pretrain`` is the phase before, whose cost is not in the other fields.
    """

    __pydantic_config__ = STRICT
    kind: str = "train"
    study: str
    task: str
    protocol: str
    budget: str
    label: str
    seed: NonNegativeInt
    fingerprint: str
    git: str | None
    params: NonNegativeInt
    metric: str
    val: Percent | None
    test: Percent | None
    constant_baseline: Baseline
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


def choices(config: DictConfig, provenance: dict) -> dict:
    """The choices of a configuration that decide the result of a seed, resolved and flat.

    Args:
        config: of ``lra.train``.
        provenance: of the data.
    """
    plain = OmegaConf.to_container(config, resolve=True)
    flat = flatten({key: plain[key] for key in _CHOICES} | {"provenance": provenance})
    return {key: value for key, value in flat.items() if key not in _INDIFFERENT}


def home(config: DictConfig) -> Path:
    """The folder of the seeds of a configuration."""
    return Path(config.runs) / config.study / config.task.name / config.label


def disk_bytes(params: int) -> int:
    """The size of a seed on the disk in bytes: weights, two moments of AdamW and the best weights, all in 32 bits."""
    return 16 * params


def digest(values: dict) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a mapping's JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(choices: dict) -> str:
    """Identify a run by its choices and its seed: the digest of their canonical form."""
    return digest(canonical(choices))


def fingerprints(choices: dict) -> tuple[str, str]:
    """The fingerprint of a run, and the one that versions without a canonical form gave it.

    Args:
        choices: with the seed; for the second fingerprint exactly those of the run's own ``config.yaml``.
    """
    return fingerprint(choices), digest(choices)


def check_choices(choices: dict, record: RunRecord, folder: Path) -> None:
    """Raise ValueError if the choices in a folder's ``config.yaml`` are not those of its record."""
    if record.fingerprint not in fingerprints(choices | {"seed": record.seed}):
        raise ValueError(f"{folder}: config.yaml and {NAME} are not of one run; delete it to run that seed again")


def difference(old: dict, new: dict) -> str:
    """List every choice that differs in canonical form as ``key: old -> new``; empty if none does."""
    old, new = canonical(old), canonical(new)
    keys = sorted(key for key in old | new if old.get(key, ...) != new.get(key, ...))
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys)


def save(record: RunRecord, folder: Path) -> None:
    """Write ``record.json`` with its checksum."""
    checksums.save(folder / NAME, json.dumps(asdict(record), indent=2) + "\n")


def load(path: Path, fingerprints: tuple[str, ...] | None = None) -> RunRecord:
    """Read a record.

    Args:
        path: of the file.
        fingerprints: of which the record must have one, if any are given.

    Raises:
        ValueError: the file is not a record, or it is that of another run.
    """
    remedy = "delete it to run that seed again"
    run_record = parse(RunRecord, path, "a record of a run", remedy)
    if run_record.status == "done" and None in (run_record.val, run_record.test):
        raise ValueError(f"{path} is not a record of a run (done without a score); {remedy}")
    if fingerprints is not None and run_record.fingerprint not in fingerprints:
        raise ValueError(f"{path} is the record of another run, seed {run_record.seed}; {remedy}")
    return run_record


def parse(kind: type[T], path: Path, name: str, remedy: str) -> T:
    """Read a dataclass from a JSON file.

    Args:
        kind: the dataclass.
        path: of the file.
        name: of the kind of file, for the message.
        remedy: for the message.

    Raises:
        ValueError: the file cannot be read, or a value does not have the type of its field; the first one is named.
    """
    try:
        return _adapter(kind).validate_json(checksums.read(path))
    except Unreadable as error:
        reason = str(error)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
    raise ValueError(f"{path} is not {name} ({reason}); {remedy}")


@functools.cache
def _adapter(kind: type) -> TypeAdapter:
    return TypeAdapter(kind)


def evaluations(folder: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv. Raises ValueError if it is not a table of evaluations."""
    path = folder / METRICS
    try:
        table = csv.DictReader(io.StringIO(checksums.read(path).decode(), newline=""), strict=True)
        rows = [{name: float(cell) for name, cell in row.items()} for row in table]
        if not all(math.isfinite(value) for row in rows for value in row.values()):
            raise Unreadable("a cell is no finite number")
        if not rows or not {"train_loss", "val"} <= rows[0].keys():
            raise Unreadable("it has no scores")
        if any(row["step"] % 1 for row in rows) or any(b["step"] <= a["step"] for a, b in itertools.pairwise(rows)):
            raise Unreadable("its steps are no whole numbers that rise")
        return [row | {"step": int(row["step"])} for row in rows]
    except checksums.Damaged:
        raise
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        reason = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a table of evaluations ({reason})") from None


def scan_files(runs: Path, name: str, load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load every file of a name below a folder.

    Runs of the repository itself, in ``runs/published``, are left out of the folders above it.

    Args:
        runs: the folder.
        name: of the files.
        load: reads one; raises ValueError or OSError for a file that it refuses.

    Returns:
        The loaded files by their folders, and one line for each that ``load`` refused or that is missing although the
        list of checksums has it.
    """
    records, damaged = {}, []
    for path in sorted({path.with_name(name) for kind in (name, checksums.NAME) for path in runs.rglob(kind)}):
        if PUBLISHED in path.relative_to(runs).parts:
            continue
        try:
            if os.path.lexists(path):
                records[path.parent] = load(path)
            elif checksums.expected(path):
                damaged.append(f"{path} is missing, {checksums.NAME} beside it has it")
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    return records, damaged


def on_cpu(device: str) -> bool:
    """Whether the ``device`` of a record is a CPU: "x86_64 CPU, 2 threads"."""
    return " CPU, " in device


def git_commit() -> str | None:
    """The commit of the checkout that the code runs from, with ``-dirty`` if it has changes; None outside one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
