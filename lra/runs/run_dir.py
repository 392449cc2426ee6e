"""The run directory of one seed: opened and locked, resumed, saved at every evaluation, finished, and read again."""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ..console import log
from ..io import atomic, lock
from ..io.typed_json import FORM
from ..ranks import on_rank_zero, rank
from . import checkpoint, config_file, published, record
from .checkpoint import BEST, LAST, REMEDY
from .config_file import TrustedModules
from .record import RunRecord

# Files that a killed process leaves, see lra.io.atomic.
TEMPORARY = ".*.part"
# Files that show that a run has begun.
RESULTS = (checkpoint.METRICS, LAST, BEST, "*.json", f"pretrain/{LAST}", f"pretrain/{BEST}")
# Choices that may differ between seeds of a label: a transfer starts from the weights of its seed.
SEED_CHOICES = ("weights",)
# Value of ``RunDir.code`` if other code resumed the training.
MIXED = "mixed"


@dataclass(kw_only=True)
class RunDir:
    """One seed and its files. Training writes them by this class only.

    config.yaml    choices that decide the result; written first
    last.ckpt      state of the training at the last evaluation, with the evaluations so far
    best.ckpt      weights with the best validation score; next-best.ckpt until the last.ckpt of their step is written
    metrics.csv    one line per evaluation
    record.json    the result, written last, with the checksums of the other files

    Args:
        path: ``runs/<study>/<task>/<label>/seed-<k>``.
        choices: flat choices as in ``config.yaml``.
        seed: random seed of the weights, the order of the data, dropout and random selection.
        record: result; None before the end of the run.
        is_published: whether the run was read from the tables of a study; its directory has at most the weights.
        title: title of its log messages during training.
        curve: evaluations so far, during training.
        digest: sha256 of the best weights, on rank 0; None before the first evaluation and on other ranks.
        code: digest of the code of all steps before a resume, on rank 0, or ``MIXED``; None without a resume.
    """

    path: Path
    choices: dict[str, Any]
    seed: int
    record: RunRecord | None = None
    is_published: bool = False
    title: str = ""
    curve: list[dict[str, float]] = field(default_factory=list)
    digest: str | None = None
    code: str | None = None

    @classmethod
    def read(cls, path: Path, trust: TrustedModules = None) -> Self:
        """Read the configuration and the record of a seed.

        Args:
            path: path of the run directory.
            trust: modules outside the suite whose classes its configuration may name.

        Raises:
            ValueError: the path is not a run directory, its files are damaged or do not belong together, or its
                configuration names a class that is not allowed.
        """
        config_path = path / config_file.NAME
        record_path = path / record.NAME
        published_run = published.find(path)
        if published_run:
            choices = published_run.choices
            result: RunRecord | None = published_run.record
        elif config_path.exists() or record_path.exists():
            result = record.load(record_path) if record_path.exists() else None
            choices = config_file.read(config_path)
        else:
            reason = "has no config.yaml" if path.is_dir() else "is not a folder"
            raise ValueError(f"{path} {reason}; name a run directory: run=runs/<study>/<task>/<label>/seed-<k>")
        seed = result.seed if result else _seed_of_name(path)
        run_dir = cls(path=path, choices=choices, seed=seed, record=result, is_published=published_run is not None)
        if result and result.fingerprint != run_dir.fingerprint:
            reason = f"config.yaml and {record.NAME} belong to different runs"
            raise ValueError(f"{path}: {reason}; delete that folder to run the seed again")
        config_file.check_trust(choices, config_path, trust)
        return run_dir

    @contextlib.contextmanager
    def open(self) -> Iterator[bool]:
        """Create the directory if there is none, lock it and write ``config.yaml``.

        All ranks call it; rank 0 holds the lock. In the block ``record`` is the result if the seed is finished, else
        None. At the end ``config.yaml`` is removed if the run wrote nothing else, because it may have been rejected.

        Yields:
            True; False, after a log message, if another process holds the lock.

        Raises:
            ValueError: the directory belongs to other choices, is damaged or can no longer be written.
        """
        with atomic.explain_disk_errors(self.path), contextlib.ExitStack() as stack:
            is_open, self.record = on_rank_zero(lambda: self._open(stack))
            yield is_open

    def _open(self, stack: contextlib.ExitStack) -> tuple[bool, RunRecord | None]:
        """Open the directory on rank 0, to be closed by ``stack``. Returns whether it is open, and the record."""
        # 1. Lock.
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.hold(self.path / lock.NAME))
        except lock.Held as owner:
            log(f"{self.title}: skipped, {owner} is running it")
            return False, None
        except OSError as error:
            reason = f"{error.strerror}; choose another folder with runs=..."
            raise ValueError(f"cannot write to {self.path}: {reason}") from None

        # 2. Check that the files in it belong to this run, and remove what a killed process left.
        check_choices(self.path, self.choices)
        stack.callback(_remove_unused_config, self.path)
        for pattern in (TEMPORARY, f"pretrain/{TEMPORARY}"):
            for part in self.path.glob(pattern):
                part.unlink(missing_ok=True)

        # 3. Read the result if the run has ended. Write the configuration if the run has not begun or has lost it.
        record_path = self.path / record.NAME
        result = record.load(record_path, self.fingerprint) if record_path.exists() else None
        config_path = self.path / config_file.NAME
        if not has_begun(self.path) or not config_path.exists():
            # Raises ValueError if the checkpoint belongs to another run. The fingerprint of a record was checked above.
            if result is None:
                checkpoint.read_state(self.last, self.fingerprint)
            atomic.write(config_path, config_file.dump(self.choices))
        # Check again: another seed may have begun before this configuration was written, and so not have seen it.
        _check_siblings(self.path, self.choices)
        return True, result

    @property
    def result(self) -> RunRecord:
        """The record of a finished run. Raises ValueError if there is none."""
        if self.record is None:
            raise ValueError(f"{self.path} has no {record.NAME}; train its seeds with lra train")
        return self.record

    @property
    def fingerprint(self) -> str:
        return config_file.fingerprint(self.choices | {"seed": self.seed})

    @property
    def weights(self) -> Path:
        """Path of the weights with the best validation score, whether the file exists or not."""
        return self.path / BEST

    @property
    def last(self) -> Path:
        """Path of the state of the training, whether the file exists or not."""
        return self.path / LAST

    def saved_step(self) -> int:
        """The step from which the same command resumes; 0 without a checkpoint."""
        state = checkpoint.read_state(self.last)
        return state["global_step"] if state else 0

    def resume(self, model: torch.nn.Module) -> int:
        """Restore the evaluations of the last checkpoint, and check that it fits the model of the run.

        Returns:
            The step from which training resumes, 0 without a checkpoint.

        Raises:
            ValueError: a checkpoint cannot be read or belongs to another run or model.
        """
        shapes = {name: value.shape for name, value in model.state_dict().items()}
        return on_rank_zero(lambda: self._resume(shapes))

    def _resume(self, shapes: dict[str, torch.Size]) -> int:
        state = checkpoint.read_state(self.last, self.fingerprint)
        if state is None:
            return 0
        callback = state["callbacks"][checkpoint.CALLBACK]
        config_file.check_custom_code(self.last, self.choices, callback.get("sources"), remedy=REMEDY)

        # A kill may have left a next best.ckpt. It is valid if last.ckpt has its digest; else last.ckpt is older.
        self.digest = callback["digest"]
        next_best = self.path / checkpoint.NEXT_BEST
        if next_best.exists() and atomic.digest(next_best) != self.digest:
            next_best.unlink()
        self.commit_best()

        # Both checkpoints must hold the parameters of this model; the last line then checks the digest of best.ckpt.
        last_weights = {name.removeprefix("model."): value for name, value in state["state_dict"].items()}
        checkpoint.check_shapes(self.last, last_weights, shapes)
        checkpoint.check_shapes(self.weights, checkpoint.read_weights(self.weights), shapes)
        self.best_weights()

        # Checkpoints of early versions do not name their code.
        self.code = callback.get("code", config_file.code_digest())
        if self.code != config_file.code_digest():
            self.code = MIXED
            log(f"{self.title}: warning: the code of lra has changed since this training began")
        # Rewrite metrics.csv, which may be damaged or newer than last.ckpt.
        self.curve[:] = callback["curve"]
        self._write_curve()
        return state["global_step"]

    def save_metrics(self, evaluation: dict[str, float]) -> None:
        """Add an evaluation to ``metrics.csv``. The file is replaced as a whole, so a kill leaves no partial line."""
        self.curve.append(evaluation)
        self._write_curve()

    def _write_curve(self) -> None:
        atomic.write(self.path / checkpoint.METRICS, checkpoint.format_metrics(self.curve))

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights with the best validation score so far to a file that ``commit_best`` renames."""
        data = checkpoint.serialise(weights)
        with atomic.replacing(self.path / checkpoint.NEXT_BEST) as part:
            part.write_bytes(data)
        self.digest = hashlib.sha256(data).hexdigest()

    def commit_best(self) -> None:
        """Rename the file of ``save_best``, if there is one, to ``best.ckpt``, after the ``last.ckpt`` of its step.

        The old best.ckpt is kept until then, because the old last.ckpt has its digest.
        """
        next_best = self.path / checkpoint.NEXT_BEST
        if next_best.exists():
            next_best.replace(self.weights)
            atomic.sync(self.path)

    def best_weights(self) -> dict[str, Tensor]:
        """Read the best weights. Raises ValueError if the file cannot be read or was replaced."""
        return checkpoint.read_weights(self.weights, self.digest)

    def state(self) -> dict[str, Any]:
        """Return what ``last.ckpt`` stores of this object: identity of the run and its code, evaluations so far."""
        sources = config_file.custom_code_digests(self.choices)
        code = self.code or config_file.code_digest()
        return {"form": FORM, "fingerprint": self.fingerprint, "sources": sources, "code": code, "curve": self.curve}

    def save_last(self) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager that yields a temporary path and, at its end, renames the file to ``last.ckpt``."""
        return atomic.replacing(self.last)

    def finish(self) -> None:
        """Write the record to ``record.json``."""
        if self.record and rank() == 0:
            record.save(self.record, self.path)


def has_begun(path: Path) -> bool:
    """Whether a run has written evaluations, weights or a result; other files, such as logs, do not count."""
    return any(any(path.glob(pattern)) for pattern in RESULTS)


def check_choices(path: Path, choices: dict[str, Any]) -> None:
    """Check that a run with these choices may use a directory.

    All seeds of a label must have the same choices, because tables average them.

    Raises:
        ValueError: a run with other choices has begun in it or in the directory of another seed.
    """
    if has_begun(path):
        config_file.check(path, choices, remedy="start a new study with study=<name> or delete that folder")
    _check_siblings(path, choices)


def _check_siblings(path: Path, choices: dict[str, Any]) -> None:
    """Check the choices of the other seeds that have begun or are open in another process, see ``check_choices``."""
    remedy = "seeds are averaged: start a new study with study=<name>, or add label_keys=[<option>]"
    for folder in sorted(path.parent.glob("seed-*")):
        # An open run counts once its configuration is written.
        is_open = (folder / config_file.NAME).exists() and lock.holder(folder / lock.NAME) is not None
        if folder != path and (has_begun(folder) or is_open):
            config_file.check(folder, choices, remedy=remedy, ignored=SEED_CHOICES)


def _seed_of_name(path: Path) -> int:
    """The k of seed-<k>; 0 for a directory with another name."""
    match = re.fullmatch(r"seed-([0-9]+)", path.absolute().name)
    return int(match[1]) if match else 0


def _remove_unused_config(path: Path) -> None:
    """Remove the configuration of a run that wrote nothing else, since it may have been rejected."""
    if not has_begun(path):
        (path / config_file.NAME).unlink(missing_ok=True)
