"""load_dataset: a task as a torch dataset for your own training loop, without a configuration.

from torch.utils.data import DataLoader
from lra import load_dataset

train = load_dataset("listops", split="train", budget="quick")
for tokens, mask, label in DataLoader(train, batch_size=32, shuffle=True, collate_fn=train.collate):
    ...
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException

from lra.config.compose import compose
from lra.config.errors import explain
from lra.config.quoting import quote
from lra.data.dataset import SequenceDataset, TaskMetadata
from lra.data.source import Source
from lra.data.store import StoreError

from .__main__ import TASKS, PrepareOptions

SPLITS = ("train", "val", "test")


def load_dataset(
    task: str,
    split: str = "train",
    *,
    budget: str = "paper",
    root: Path | str | None = None,
    download: bool = False,
    overrides: Iterable[str] = (),
) -> SequenceDataset:
    """Open one split of a task, and generate its data on first use.

    ListOps and Pathfinder are generated on the first call, with a progress bar, and stored in ``root``. If several
    processes ask at once, one of them prepares the data and the others wait. Examples of the synthetic tasks are
    generated when they are read, and nothing is stored.

    Args:
        task: name of the task, such as ``listops``, ``text`` or ``pathfinder``.
        split: ``train``, ``val`` or ``test``. The validation set of Text is its test set, as in the papers, unless
            ``overrides`` has ``protocol=clean``.
        budget: ``paper`` for the published sizes and lengths; ``quick`` and ``smoke`` are smaller. ListOps also has
            ``quickstart``.
        root: folder of all data; None for ``$LRA_DATA``, or ``data`` if that is not set.
        download: whether to prepare a task that is not generated: from the files that ``overrides`` name, otherwise by
            a download.
        overrides: further options of the task as on the command line, such as ``source.seed=1``.

    Returns:
        The dataset. ``dataset.collate`` pads and masks, ``dataset.metadata`` has vocabulary, classes and length.

    Raises:
        ValueError: there is no such task, split or budget, or the data cannot be prepared.
    """
    # A wrong task or split is reported with the valid ones.
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    # Compose the options of the task as the command line does.
    arguments = [f"task={task}", f"budget={budget}", *overrides]
    if root is not None:
        arguments.append(f"data.root={quote(root)}")
    with _own_hydra():
        try:
            options = compose(PrepareOptions, arguments)
        except HydraException as error:
            raise ValueError(explain(error)) from error
    source = options.data_source()
    _prepare(source, options.data.root, download)
    return SequenceDataset(
        source=source,
        root=options.data.root,
        split=split,
        metadata=_metadata(options, source),
        limit=min(options.task.limit, options.task.length),
        shift=options.task.shift,
    )


def _prepare(source: Source, root: Path, download: bool) -> None:
    """Prepare the data unless they are there; raises ValueError if they need a download that was not asked for."""
    if download and source.stored:
        source.prepare(root)
        return
    # Generates what can be generated; for the rest the error names the command that prepares it.
    try:
        source.open(root)
    except StoreError as error:
        if source.download is None or source.folder(root).exists():
            raise
        raise StoreError(f"{error}; or call load_dataset with download=True") from None


def _metadata(options: PrepareOptions, source: Source) -> TaskMetadata:
    task = options.task
    return TaskMetadata(
        name=task.name,
        metric=task.metric,
        vocab_size=task.vocab,
        num_features=task.features,
        num_outputs=task.outputs,
        is_regression=task.loss == "mse",
        max_length=task.length,
        num_texts=task.towers,
        token_names=tuple(source.alphabet),
        class_names=tuple(source.classes),
        provenance=source.provenance,
    )


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Set aside a Hydra application of the caller, whose search path does not have this package's files."""
    caller = GlobalHydra.instance().hydra
    GlobalHydra.instance().hydra = None
    try:
        yield
    finally:
        # Composing replaces the instance, so it is looked up again.
        GlobalHydra.instance().hydra = caller
