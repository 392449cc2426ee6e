"""A reader of W&B's files that does not use W&B's own."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK, HEADER = 1 << 15, 7
FULL, LAST = 1, 4


class Contents(NamedTuple):
    """The messages of a .wandb file by kind, the last of each kind, and what its rows and updates add up to."""

    messages: dict[str, Any]
    config: dict
    summary: dict
    history: list[dict]


def chunks(path: Path) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, a record in one or more parts, each with checksum, length, type."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def insert(items, into: dict) -> dict:
    """Each item's value at its key, or at its path of keys."""
    for item in items:
        *path, key = item.nested_key or [item.key]
        place = into
        for name in path:
            place = place.setdefault(name, {})
        place[key] = json.loads(item.value_json)
    return into


def read(folder: Path) -> Contents:
    """The one run whose files are below folder/wandb; ends W&B's process first, which writes behind."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

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
    return Contents(messages, config, summary, history)
