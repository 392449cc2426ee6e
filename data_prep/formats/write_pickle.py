"""Write the pickles of Nystromformer and Skyformer, see ``lra_pickle`` for the format.

Their loaders pad nothing, so every sequence is cut to the length of the task and padded with zeros to a fixed width.
"""

import pickle
from pathlib import Path

import numpy as np

from lra.data.progress import Progress

from .lra_pickle import PARTS
from .writer import Export

# Protocol 3 is the first one with bytes, and numbers the entries of its memo explicitly.
PROTOCOL = 3
HEADER = b"\x80\x03]"
BATCH = 1000


def write(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``lra-<task>.{train,dev,test}.pickle`` and return their description.

    Raises:
        ValueError: the task has real numbers instead of tokens.
    """
    if task.kind == "series":
        raise ValueError(f"layout=pickle holds token ids, {task.source.name} has real numbers; use npz or parquet")
    stem = file_stem(task)
    for split in task.splits:
        _write_list(task, split, folder / f"lra-{stem}.{PARTS[split]}.pickle", progress)
    return (
        f"Pickled lists of dictionaries: `input_ids_0`, for pairs also `input_ids_1`, int32 ({task.length},), and "
        f"`label`. Ids are stored ids plus {task.shift}; sequences are cut to {task.limit} tokens and padded with 0."
    )


def file_stem(task: Export) -> str:
    """The task as its pickles are named."""
    if task.source.name != "pathfinder":
        return task.source.name
    # Imported here, since the generator imports the readers.
    from ..pathfinder.release import FOLDERS

    return f"pathfinder{task.source.size}-{FOLDERS[task.source.contour]}"


def _write_list(task: Export, split: str, path: Path, progress: Progress) -> None:
    """Write a pickled list item by item, in constant memory."""
    with open(path, "wb") as file:
        file.write(HEADER)
        for number, (texts, label) in enumerate(task.examples(split, progress)):
            if number % BATCH == 0:
                # Close the batch before with APPENDS, and open the next one with MARK.
                file.write(b"(" if number == 0 else b"e(")
            record = {f"input_ids_{place}": _padded(text, task) for place, text in enumerate(texts)}
            file.write(_body(record | {"label": label}))
        file.write(b"e.")


def _padded(tokens: np.ndarray, task: Export) -> np.ndarray:
    # Zeros after the last token are padding.
    ids = np.zeros(task.length, np.int32)
    real = tokens[: task.limit]
    ids[: len(real)] = real.astype(np.int32) + task.shift
    return ids


def _body(record: dict) -> bytes:
    """The opcodes of one dictionary, without the header and the STOP of a whole pickle."""
    body = pickle.dumps(record, protocol=PROTOCOL)[2:-1]
    # NumPy 1, which those repositories need, does not know the module by its new name.
    return body.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n", 1)
