"""Reads .wandb files without W&B's own reader."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

BLOCK, HEADER = 1 << 15, 7
FULL, LAST = 1, 4


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: 32 KiB blocks, each record in parts with checksum, length and type."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    offset, record = HEADER, b""
    while offset + HEADER <= len(data):
        if BLOCK - offset % BLOCK < HEADER:
            offset += BLOCK - offset % BLOCK
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        record += data[offset + HEADER : offset + HEADER + length]
        offset += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def insert(items, tree: dict) -> dict:
    """Set the value of each item at its key, or at its nested path of keys."""
    for item in items:
        *path, key = item.nested_key or [item.key]
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[key] = json.loads(item.value_json)
    return tree


def read(folder: Path) -> SimpleNamespace:
    """Read the last message of each kind, the merged config and summary, and the history of the run in folder/wandb."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    # W&B's process writes the file asynchronously.
    wandb.teardown()
    (path,) = (folder / "wandb").glob("*run-*/*.wandb")
    messages, config, summary, history = {}, {}, {}, []
    for record in map(Record.FromString, chunks(path)):
        kind = record.WhichOneof("record_type")
        message = messages[kind] = getattr(record, kind)
        if kind == "run":
            insert(message.config.update, config)
        elif kind == "summary":
            insert(message.update, summary)
        elif kind == "history":
            history.append(insert(message.item, {}))
    return SimpleNamespace(messages=messages, config=config, summary=summary, history=history)
