"""Write arrays (npz) and columns (parquet), see ``arrays`` and ``columns`` for the formats."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.progress import Progress

from .columns import NAMES, import_pyarrow
from .writer import CHUNK, Export


def write_npz(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``{train,val,test}.npz`` in constant memory, and return their description."""
    for name, split in task.splits.items():
        lengths = split.lengths.reshape(-1).numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Offsets and labels fit into memory.
        arrays = {"offsets": offsets, "labels": split.labels.numpy()}
        # One example shows the type and the features of the tokens.
        first, _ = next(task.examples(name, lambda *_: None))
        with zipfile.ZipFile(folder / f"{name}.npz", "w", zipfile.ZIP_STORED) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w") as file:
                    np.lib.format.write_array(file, array)
            # The tokens follow their header one sequence after the other.
            with archive.open("tokens.npy", "w", force_zip64=True) as file:
                shape = (int(offsets[-1]), *first[0].shape[1:])
                header = {"descr": first[0].dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for texts, _ in task.examples(name, progress):
                    for tokens in texts:
                        file.write(np.ascontiguousarray(tokens).tobytes())
    return (
        "Arrays `tokens` (all sequences one after the other), `offsets` and `labels`. Sequence i is "
        f"`tokens[offsets[i]:offsets[i + 1]]`; an example has {task.source.towers}. Tokens are stored ids; the model "
        f"reads the first {task.limit} of a sequence, plus {task.shift}."
    )


def write_parquet(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``{train,validation,test}.parquet`` in constant memory, and return their description."""
    arrow = import_pyarrow()
    count = task.source.towers
    inputs = ["input_ids"] if count == 1 else [f"input_ids_{number}" for number in range(count)]
    for name in task.splits:
        writer = None
        try:
            for batch in _batches(task, name, progress):
                # One column per text, then the labels.
                texts_of_examples, labels = zip(*batch, strict=True)
                columns = list(map(list, zip(*texts_of_examples, strict=True)))
                arrays = [_list_column(arrow, sequences) for sequences in columns]
                arrays.append(arrow.array(labels))
                table = arrow.table(arrays, names=[*inputs, "label"])
                writer = writer or arrow.parquet.ParquetWriter(folder / f"{NAMES[name][0]}.parquet", table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
    return (
        f"Columns {', '.join(inputs)}, lists of stored ids, and label. The model reads the first {task.limit} ids of a "
        f"sequence, plus {task.shift}."
    )


def _list_column(arrow: Any, sequences: list[np.ndarray]) -> Any:
    """A column of lists, from one array of all numbers."""
    offsets = np.cumsum([0, *map(len, sequences)])
    return arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), arrow.array(np.concatenate(sequences)))


def _batches(task: Export, name: str, progress: Progress) -> Iterator[list[tuple[list[np.ndarray], int | float]]]:
    batch: list[tuple[list[np.ndarray], int | float]] = []
    for texts, label in task.examples(name, progress):
        # Features of a position follow each other.
        batch.append(([tokens.reshape(-1) for tokens in texts], label))
        if len(batch) == CHUNK:
            yield batch
            batch = []
    if batch:
        yield batch
