"""The folder of a seed, and the only reader and writer of its files."""

import contextlib
import errno
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from torch import Tensor

from ..console import log
from ..disk import atomic, lock
from ..disk.atomic import NO_ROOM
from . import checkpoint, config_file, evaluations, identity, record, tables
from .checkpoint import AGAIN, BEST, LAST
from .record import RunRecord

TEMPORARY = ".*.part"
MADE = (evaluations.NAME, LAST, BEST, "*.json", f"pretrain/{BEST}")
# Errors of a disk that can be mended without loss, so that the same command can be repeated.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
Trust = str | Iterable[str] | None  # modules besides the suite's whose classes a config.yaml may name


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One seed and its files.

    config.yaml    choices that decide the result, from the start
    last.ckpt      state of the training at the last evaluation, with the rows of metrics.csv
    best.ckpt      weights with the best dev score
    metrics.csv    a row for each evaluation
    record.json    the result, written last, with the sums of the other files

    Args:
        path: ``runs/<study>/<task>/<label>/seed-<k>``.
        choices: choices as ``config.yaml`` has them, flat.
        seed: seed of the weights, the order of the data, dropout and random selection.
        record: result; None before the end of the run.
        published: whether the tables of its study hold the run, and its folder at most the weights.
        title: title of its log lines while the run is trained.
        curve: rows of ``metrics.csv`` while the run is trained.
    """

    path: Path
    choices: dict[str, Any]
    seed: int
    record: RunRecord | None = None
    published: bool = False
    title: str = ""
    curve: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, trust: Trust = None) -> Self:
        """Read the configuration and the record of a seed.

        Args:
            path: path of the folder.
            trust: modules outside the suite whose classes its configuration may name.

        Raises:
            ValueError: the folder is not that of a seed, its files are damaged or do not belong together, or its
                configuration names a class that is not allowed.
        """
        config, result = path / config_file.NAME, path / record.NAME
        if published := tables.find(path):
            choices, made = published.choices, published.record
        elif config.exists() or result.exists():
            made = record.load(result) if result.exists() else None
            choices = config_file.read(config)
        else:
            reason = "has no config.yaml" if path.is_dir() else "is not a folder"
            raise ValueError(f"{path} {reason}; run must be the folder of a seed, runs/<study>/<task>/<label>/seed-<k>")
        number = path.absolute().name.partition("-")[2][:9]
        seed = made.seed if made else int(number) if number.isdecimal() else 0
        run = cls(path=path, choices=choices, seed=seed, record=made, published=published is not None)
        if made and made.fingerprint != run.fingerprint:
            reason = f"config.yaml and {record.NAME} are not of one run"
            raise ValueError(f"{path}: {reason}; delete it to run that seed again")
        config_file.check_trust(choices, config, trust)
        return run

    @classmethod
    @contextlib.contextmanager
    def claim(cls, path: Path, title: str, choices: dict[str, Any], seed: int) -> Iterator[Self | None]:
        """Make the folder of a seed, lock it and write ``config.yaml``.

        At the end ``config.yaml`` is removed if the run wrote nothing else.

        Args:
            path: path of the folder.
            title: title of the seed, for the log line about another process.
            choices: choices, flat, see ``Experiment.choices``.
            seed: the seed.

        Yields:
            The folder; None, after a log line, if another process holds it.

        Raises:
            ValueError: the folder was made by other choices, is damaged or cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock.hold(path / lock.NAME))
            except lock.Held as other:
                log(f"{title}: skipped, {other} is running it")
                yield None
                return
            except OSError as error:
                reason = f"{error.strerror}; choose another folder with runs=..."
                raise ValueError(f"cannot write to {path}: {reason}") from None
            settle(path, choices)
            stack.callback(_leave_nothing, path)
            for part in (*path.glob(TEMPORARY), *path.glob(f"pretrain/{TEMPORARY}")):
                part.unlink()
            if not begun(path) or not (path / config_file.NAME).exists():
                apart = json.loads(json.dumps(choices))  # no list twice, of which YAML would make an alias
                with writing(path):
                    atomic.write(path / config_file.NAME, yaml.safe_dump(apart))
            yield cls(path=path, choices=choices, seed=seed, title=title)

    @property
    def fingerprint(self) -> str:
        return identity.fingerprint(self.choices | {"seed": self.seed})

    @property
    def weights(self) -> Path:
        """Path of the weights with the best dev score, if they are there."""
        return self.path / BEST

    def done(self) -> RunRecord | None:
        """Read the record; None without one. Raises ValueError if it is damaged or of another run."""
        path = self.path / record.NAME
        return record.load(path, self.fingerprint) if path.exists() else None

    def resume(self, model: torch.nn.Module) -> int:
        """Restore the curve of the last checkpoint.

        Args:
            model: model of the run.

        Returns:
            The step from which training goes on, 0 without a checkpoint.

        Raises:
            ValueError: a checkpoint cannot be read or is of another run or model, so that the result would not be that
                of an uninterrupted seed.
        """
        if (last := checkpoint.state(self.path / LAST)) is None:
            return 0
        ours = last["callbacks"][checkpoint.CALLBACK]
        if ours["fingerprint"] != self.fingerprint:
            raise ValueError(f"{self.path / LAST} was written by another run; {AGAIN}")
        shapes = {name: value.shape for name, value in model.state_dict().items()}
        last_weights = {name.removeprefix("model."): value for name, value in last["state_dict"].items()}
        for path, held in ((self.path / LAST, last_weights), (self.weights, checkpoint.weights(self.weights))):
            if shapes != {name: value.shape for name, value in held.items()}:
                raise ValueError(f"{path} does not hold the weights of this model; {AGAIN}")
        self.curve[:] = ours["curve"]
        atomic.write(self.path / evaluations.NAME, evaluations.text(self.curve))
        return last["global_step"]

    def append_metrics(self, row: dict[str, float]) -> None:
        """Add a row to ``metrics.csv``, which is replaced as a whole, so that a kill leaves no half row."""
        self.curve.append(row)
        atomic.write(self.path / evaluations.NAME, evaluations.text(self.curve))

    def save_best(self, weights: Mapping[str, Tensor]) -> str:
        """Write ``best.ckpt``, before the ``last.ckpt`` of the same step, and return its sha256.

        A kill between the two repeats the steps since the older last.ckpt and writes best.ckpt again.

        Args:
            weights: weights with the best dev score so far.
        """
        buffer = io.BytesIO()  # torch's own file raises no OSError on a full disk
        torch.save(weights, buffer)
        with atomic.replacing(self.path / BEST) as part:
            part.write_bytes(buffer.getbuffer())
        return hashlib.sha256(buffer.getbuffer()).hexdigest()

    def save_last(self) -> contextlib.AbstractContextManager[Path]:
        """Yield a path for the state of the training, which becomes ``last.ckpt`` at the end of the block."""
        return atomic.replacing(self.path / LAST)

    def finish(self, result: RunRecord) -> None:
        """Write ``record.json``."""
        record.save(result, self.path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of a folder that can no longer be written into a ValueError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        room = "make room, then " if error.errno in NO_ROOM else ""
        reason = f"{error.strerror}; {room}the same command goes on from the last checkpoint"
        raise ValueError(f"{path} cannot be written: {reason}") from error


def begun(path: Path) -> bool:
    """Whether a run has written anything besides its configuration and its log."""
    return any(any(path.glob(name)) for name in MADE)


def settle(path: Path, choices: dict[str, Any]) -> None:
    """Raise ValueError if a run began in a folder with other choices, or its ``config.yaml`` cannot be read."""
    config = path / config_file.NAME
    if not begun(path) or not (config.exists() or config.is_symlink()):
        return
    before = config_file.read(config)
    if difference := identity.difference(before, choices):
        raise ValueError(
            f"{path} was made by another configuration ({difference}); start a new study with study=<name> or delete "
            f"that folder, whose {config_file.NAME} says so"
        )


def _leave_nothing(path: Path) -> None:
    """Remove the configuration of a run that wrote nothing else, since it may have been refused."""
    if not begun(path):
        (path / config_file.NAME).unlink(missing_ok=True)
