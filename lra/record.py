"""What a run leaves behind: its configuration, its record, and what tells one run from another."""

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf

from .config import flatten

T = TypeVar("T")
NAME = "record.json"
# What makes a result; everything else (logger, device, compile, threads, folders, other seeds) does not.
_CHOICES = ("task", "source", "model", "block", "attn", "protocol", "optim", "data", "trainer")
# Several devices share the same batches, and only dropout and random selection draw other numbers there.
_INDIFFERENT = (
    "task.display",
    "data.root",
    "data.eval_batch",
    "trainer.device",
    "trainer.devices",
    "trainer.compile",
    "trainer.threads",
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One seed's result. Scores in percent; times in milliseconds; status is ``done`` or ``diverged``.

    ``majority`` is what a constant answer scores on the test set: the most frequent class, or the mean label where
    labels are real numbers; ``step_ms`` and ``peak_bytes`` (of the device, or of the whole process on a CPU) are
    measurements and differ from run to run.
    """

    kind: str = "train"
    study: str
    task: str
    protocol: str
    budget: str
    label: str
    seed: int
    fingerprint: str
    git: str | None
    params: int
    metric: str
    val: float | None
    test: float | None
    majority: float
    n_val: int
    n_test: int
    best_step: int | None
    steps: int
    step_ms: float | None
    peak_bytes: int | None
    device: str
    status: str


def choices(config: DictConfig, provenance: dict) -> dict:
    """The resolved part of a configuration that decides the result of a seed, flat."""
    plain = OmegaConf.to_container(config, resolve=True)
    flat = flatten({key: plain[key] for key in _CHOICES} | {"provenance": provenance})
    return {key: value for key, value in flat.items() if key not in _INDIFFERENT}


def home(config: DictConfig) -> Path:
    """Where the seeds of a configuration are."""
    return Path(config.runs) / config.study / config.task.name / config.label


def disk_bytes(params: int) -> int:
    """What a seed leaves behind: weights, two moments of AdamW, and the best weights, in 32 bits."""
    return 16 * params


def fingerprint(choices: dict) -> str:
    return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:16]


def difference(old: dict, new: dict) -> str:
    """``key: old -> new`` for every choice that differs."""
    keys = sorted(key for key in old | new if old.get(key) != new.get(key))
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys)


def write(path: Path, text: str) -> None:
    """Replace a file as a whole: after a crash or on a full disk the old one is still there."""
    with replacing(path) as part:
        part.write_text(text)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; what was written to it is synced and renamed to ``path`` at the end.

    An OSError of the block that names no file, as on a full disk, names ``path``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def save(record: RunRecord, folder: Path) -> None:
    write(folder / NAME, json.dumps(asdict(record), indent=2) + "\n")


def load(path: Path) -> RunRecord:
    """Raises ValueError where the file is not a record."""
    try:
        values = json.loads(path.read_text())
        return RunRecord(**{f.name: values[f.name] for f in fields(RunRecord)})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a record of a run ({error!r}); delete it to run that seed again") from None


def scan(runs: Path) -> tuple[dict[Path, RunRecord], list[str]]:
    """Every training record below a folder, by its own folder, and one line for each that could not be read."""
    return scan_files(runs, NAME, load)


def scan_files(runs: Path, name: str, load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """What ``load`` makes of every file of a name below a folder, by the file's folder, and what it refuses."""
    records, damaged = {}, []
    for path in sorted(runs.rglob(name)):
        try:
            records[path.parent] = load(path)
        except ValueError as error:
            damaged.append(str(error))
    return records, damaged


def on_cpu(device: str) -> bool:
    """Whether the ``device`` of a record is a CPU: "x86_64 CPU, 2 threads"."""
    return " CPU, " in device


def git_commit() -> str | None:
    """Commit of the checkout that the code runs from, with ``-dirty`` where it has changes; None outside one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
