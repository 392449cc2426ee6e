"""Tiny archives in the layout of the official ones."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np


def write_tar(
    path: Path, files: dict[str, bytes], *, hostile: tarfile.TarInfo | None = None, mode: str = "w:gz"
) -> str:
    """Writes the archive, its `hostile` member first, and returns its sha256."""
    with tarfile.open(path, mode) as tar:
        if hostile is not None:
            tar.addfile(hostile)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def imdb(path: Path, n: int = 20, **options) -> str:
    """n reviews of each kind, "<split> <label> <id>" and then bytes of every value; in no order, beside other files.

    Some have white space around them, all of them have it inside.
    """
    around = [(b"", b""), (b" \t", b"\n"), (b"", b"\x0b\x0c\r\n "), (b"", b"\x85\xa0")]  # the last is none in bytes
    files = {"aclImdb/README": b"read me", "aclImdb/train/unsup/0_0.txt": b"unlabelled", "aclImdb/imdb.vocab": b"the"}
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            files[f"aclImdb/{split}/urls_{label}.txt"] = b"http"
            for i in reversed(range(n)):
                text = f"{split} {label} {i}: ".encode() + bytes(range(256))[i:]
                files[f"aclImdb/{split}/{label}/{i}_{7 if label == 'pos' else 3}.txt"] = text.join(around[i % 4])
    return write_tar(path, files, **options)


def records(n: int, seed: int) -> np.ndarray:
    """n images of CIFAR-10's binary layout, (n, 3073) uint8."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.integers(0, 10, (n, 1)), rng.integers(0, 256, (n, 3072))], axis=1).astype(np.uint8)


def cifar(path: Path, n: int = 6, **options) -> str:
    """Batches of n images, not in the order of their numbers, as in the official archive."""
    names = ["data_batch_4", "data_batch_1", "test_batch", "data_batch_3", "data_batch_2", "data_batch_5"]
    files = {f"cifar-10-batches-bin/{name}.bin": records(n, seed).tobytes() for seed, name in enumerate(names)}
    return write_tar(path, {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"} | files, **options)
