"""Helpers for tests of sources: tiny archives in the official layouts, contents of splits."""

import functools
import gzip
import hashlib
import io
import multiprocessing
import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from conftest import assert_error, experiment
from PIL import Image

from data_prep.download import Download
from data_prep.image import TRAIN
from data_prep.pathfinder.generator import generate
from data_prep.pathfinder.listing import FOLDERS
from lra.data.store import Split, verify
from lra.runs import record
from lra.train.__main__ import train

DATA = os.urandom(200_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
# The files of a release of ListOps; the round brackets have no meaning.
HEAD = b"Source\tTarget\n"
LISTOPS = {
    "basic_train.tsv": HEAD + b"( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM ( ( ( [MED 4 ) 7 ) ] ) ) 6 ) ] )\t1\n",
    "basic_val.tsv": HEAD + b"[MIN 3 1 ]\t1\n",
    "basic_test.tsv": HEAD + b"( ( ( [MIN 8 ) 4 ) ] )\t4\n",
}
# Options of Registers: writes to distinct registers, as the pairs of recall.
DISTINCT = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


def silent(title, done, total):
    pass


def files_in(folder: Path) -> list[str]:
    """Names of all files in a download folder except locks."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"] if folder.exists() else []


def assert_rejected(source, root: Path, message: str) -> str:
    """Assert that preparing is rejected and leaves no data set in `root`; return the message."""
    text = assert_error(message, source.prepare, root)
    assert not list(root.glob("*/"))
    return text


def refused(request: Download, folder: Path) -> str:
    """Assert that a download is rejected and leaves no file; return the message."""
    message = assert_error(".", request.fetch, folder, silent)
    assert files_in(folder) == []
    return message


def start(work, *arguments):
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write_tar(path: Path, files: dict | list, *, mode: str = "w:gz") -> dict:
    """Write an archive; return the options of a source that reads it.

    files: content by name, or a list of (name, content), which may repeat a name.
    """
    with tarfile.open(path, mode) as tar:
        for name, data in files.items() if isinstance(files, dict) else files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return {"archive": path, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def write_folder(folder: Path, files: dict[str, bytes], *, packed: bool = False) -> Path:
    """Write the files, gzipped if `packed`, and return the folder."""
    for name, data in files.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder


def write_release(path: Path, kind: str, *copies: dict[str, bytes]) -> Path:
    """Write each copy into a folder or an archive. kind="packed" gzips the files of all copies but the first."""
    if kind == "archive":
        write_tar(path, [member for files in copies for member in files.items()])
    else:
        for number, files in enumerate(copies):
            write_folder(path, files, packed=kind == "packed" and number > 0)
    return path


def nest(folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}".lstrip("/"): data for name, data in files.items()}


def examples(split: Split) -> list[tuple]:
    """Label, and bytes of the sequence of each tower, for each example of a split."""
    sequences = [split.tokens[a:b].numpy().tobytes() for a, b in split.offsets.unfold(0, 2, 1).tolist()]
    towers = [sequences[tower :: split.towers] for tower in range(split.towers)]
    return list(zip(split.labels.tolist(), *towers, strict=True))


def gathered(source, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Full sequences (n, L) int64 or (n, L, F) float and labels (n,) of a split that is generated on the fly."""
    split_data = source.open("nowhere")[split]
    tokens, mask = split_data.gather(torch.arange(len(split_data)), source.length)
    sequences = tokens[:, 0].numpy()
    assert mask.all() and tokens.shape[1:3] == (1, source.length) and sequences.dtype == source.dtype
    return sequences if tokens.is_floating_point() else sequences.astype(np.int64), split_data.labels.numpy()


def prepared(source, root: Path) -> dict[str, list[tuple]]:
    """Prepare a source in `root`, verify its checksums and return the examples of each split."""
    verify(source.prepare(root))
    return {name: examples(split) for name, split in source.load(root).items()}


def trained(folder: Path, *args: str) -> record.RunRecord:
    """Train with the smoke budget on data prepared in folder/data; return the run record."""
    folders = [f"runs={folder / 'runs'}", f"data.root={folder / 'data'}"]
    config = experiment(*args, "budget=smoke", "seeds=[0]", "data.eval_batch=64", *folders)
    if (source := config.task_data().source).stored:
        source.prepare(folder / "data")
    train.__wrapped__(config)
    (record_path,) = (folder / "runs").rglob("record.json")
    return record.load(record_path)


def imdb(path: Path, n: int = 20) -> dict:
    """Write an archive with n reviews per split and label, in mixed order and among other files.

    A review is "<split> <label> <id>: " and then all byte values. Some reviews have white space at their ends.
    """
    # bytes.strip removes all of these but the last pair, which is white space in Unicode only.
    affixes = [(b"", b""), (b" \t", b"\n"), (b"", b"\x0b\x0c\r\n "), (b"", b"\x85\xa0")]
    files = {"aclImdb/README": b"read me", "aclImdb/train/unsup/0_0.txt": b"unlabelled", "aclImdb/imdb.vocab": b"the"}
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            files[f"aclImdb/{split}/urls_{label}.txt"] = b"http"
            for i in reversed(range(n)):
                text = f"{split} {label} {i}: ".encode() + bytes(range(256))[i:]
                files[f"aclImdb/{split}/{label}/{i}_{7 if label == 'pos' else 3}.txt"] = text.join(affixes[i % 4])
    return write_tar(path, files)


# Random records of CIFAR-10's binary layout by batch, (6, 3073) uint8: a label, then the pixels. The batches are not in
# numerical order, as in the official archive.
RECORDS = dict.fromkeys(["data_batch_4", "data_batch_1", "test_batch", "data_batch_3", "data_batch_2", "data_batch_5"])
for seed, name in enumerate(RECORDS):
    rng = np.random.default_rng(seed)
    labels, pixels = rng.integers(0, 10, (6, 1)), rng.integers(0, 256, (6, 3072))
    RECORDS[name] = np.concatenate([labels, pixels], axis=1).astype(np.uint8)
CIFAR = {"train": np.concatenate([RECORDS[name] for name in TRAIN]), "test": RECORDS["test_batch"]}


def cifar(path: Path) -> dict:
    files = {f"cifar-10-batches-bin/{name}.bin": batch.tobytes() for name, batch in RECORDS.items()}
    return write_tar(path, {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"} | files)


INNER = f"pathfinder32/{FOLDERS[14]}"


@functools.cache
def labelled_images(contour: int = 14) -> list[tuple[int, bytes]]:
    """(label, pixels) of each of 60 generated images."""
    images, labels = generate(size=32, count=60, seed=3, contour=contour)
    return [(int(label), image.tobytes()) for image, label in zip(images, labels, strict=True)]


def image_files(contour: int = 14, **changes: bytes | None) -> dict[str, bytes]:
    """Files of the release folder of a contour length; ``changes`` replaces or adds files, None removes one."""
    files, lines = {}, {}
    for i, (label, pixels) in enumerate(labelled_images(contour)):
        # Batches 8, 9 and 10 of up to 25 images: their alphabetical order differs from their numerical order.
        batch = 8 + i // 25
        files[f"imgs/{batch}/sample_{i}.png"] = png(np.frombuffer(pixels, np.uint8).reshape(32, 32))
        lines.setdefault(batch, []).append(f"imgs/{batch} sample_{i}.png {i} {label} 1.8 4 14 0.3 5 3.5 4 2")
    files |= {f"metadata/{batch}.npy": "\n".join(text).encode() + b"\n" for batch, text in lines.items()}
    return {name: data for name, data in (files | changes).items() if data is not None}


# Changes of ``image_files``: 40 equal images, and no metadata.
EYE = png(np.eye(32, dtype=np.uint8))
EQUAL_IMAGES = {f"imgs/{8 + i // 25}/sample_{i}.png": EYE for i in range(40)}
NO_METADATA = dict.fromkeys(["metadata/8.npy", "metadata/9.npy", "metadata/10.npy"])
