"""Fresh examples: the generator of a run's task with another random seed, without examples that the run has seen."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..runs.restore import check_data, configuration
from ..runs.run_dir import RunDir

# Random seed of all fresh data. Tasks use seeds 0 and 1, searches 100.
FRESH_SEED = 20_261_127
# Examples whose tokens are hashed at a time.
CHUNK = 2048


class RowHashes:
    """Hashes of the examples of data sets, each computed once for all runs of a command."""

    def __init__(self):
        self._by_split: dict[tuple[str, int, str], list[bytes]] = {}

    def of_split(self, data: TaskData, split: str) -> list[bytes]:
        """Hash the tokens of each example of a split that the model reads.

        Args:
            data: data that was set up.
            split: name of the split.

        Returns:
            One hash of 128 bits per example.
        """
        key = (str(data.source.provenance), data.limit, split)
        if key not in self._by_split:
            self._by_split[key] = list(_hash_rows(data, split))
        return self._by_split[key]


def _hash_rows(data: TaskData, split: str) -> Iterator[bytes]:
    """Yield a 128-bit hash of the tokens of each example that the model reads."""
    rows = data.splits[split]
    for index in torch.arange(len(rows)).split(CHUNK):
        tokens, mask = rows.gather(index, data.limit, data.limit)
        lengths = mask.sum(-1).to(torch.int32).cpu().numpy()
        contents = tokens.cpu().numpy()
        for row, length in zip(contents, lengths, strict=True):
            # The length tells a token 0 from padding.
            yield hashlib.blake2b(row.tobytes() + length.tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class FreshData:
    """Fresh examples of the task of a run.

    Args:
        data: the examples, as the test split of the task.
        index: positions (n,) in that split of the examples that the run has not seen.
        seen: number of examples that were left out.
        digest: sha256 of the examples and their labels.
    """

    data: TaskData
    index: np.ndarray
    seen: int
    digest: str


def generator_experiment(run: RunDir, root: str, examples: int) -> tuple[Experiment, Experiment]:
    """Restore the experiment of a run, and the same experiment on fresh examples.

    Args:
        run: a finished run.
        root: folder of the data sets.
        examples: number of fresh examples.

    Returns:
        The experiment as it was trained, and the one whose test split is fresh.

    Raises:
        ValueError: the task is downloaded or reads files, or its metric is not a mean over examples.
    """
    experiment = configuration(run, root)
    # Padding decides how sequences are packed into batches; evaluate as the training did.
    experiment = experiment.replace(data=experiment.data.replace(pad=run.choices["data.pad"]))
    source = experiment.source
    task = experiment.task.name
    if not experiment.data_source().generated or "seed" not in source.options:
        raise ValueError(f"{run.path}: {task} is downloaded and has no generator; only generated tasks can be scored")
    if source.get("release") is not None:
        raise ValueError(f"{run.path}: {task} was read from files (source.release), which have no random seed")
    if experiment.task.metric not in ("accuracy", "within_tolerance"):
        raise ValueError(f"{run.path}: {experiment.task.metric} of {task} is not a mean over examples")
    if source.options["seed"] == FRESH_SEED:
        raise ValueError(f"{run.path} was trained on data of seed {FRESH_SEED}, which is reserved for fresh examples")
    # One training and one validation example, since no source takes none.
    fresh_source = source.replace(seed=FRESH_SEED, train=1, val=1, test=examples)
    return experiment, experiment.replace(source=fresh_source)


def fresh_data(run: RunDir, trained: Experiment, fresh: Experiment, hashes: RowHashes) -> FreshData:
    """Make the fresh examples of a run's task and leave out the examples that the run has seen.

    Args:
        run: a finished run.
        trained: experiment of the run.
        fresh: the same experiment on fresh examples.
        hashes: hashes of the examples, kept between runs.

    Raises:
        ValueError: the data differs from the data of the run, or more than half of the examples are in it.
    """
    own_data = trained.task_data()
    own_data.setup()
    check_data(run, own_data.source.provenance)
    data = fresh.task_data()
    data.setup()
    # Training, validation and test examples of the run all count as seen.
    seen_hashes = set()
    for split in own_data.splits:
        seen_hashes.update(hashes.of_split(own_data, split))
    fresh_hashes = hashes.of_split(data, "test")
    is_new = np.array([row not in seen_hashes for row in fresh_hashes])
    num_seen = int((~is_new).sum())
    if num_seen > len(is_new) / 2:
        raise ValueError(
            f"{run.path}: {num_seen} of {len(is_new)} fresh examples of {trained.task.name} are in the data of the "
            "run; the task has too few different examples for a fresh test"
        )

    # The digest of the new examples and their labels.
    index = np.flatnonzero(is_new)
    summary = hashlib.sha256()
    for position in index:
        summary.update(fresh_hashes[position])
    labels = data.splits["test"].labels[torch.from_numpy(index)]
    summary.update(labels.cpu().numpy().tobytes())
    return FreshData(data, index, num_seen, summary.hexdigest())
