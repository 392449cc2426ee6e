"""Tiny archives in the layout of the official ones, and a server on this machine with what tests ask of it."""

import base64
import hashlib
import http.server
import importlib.util
import io
import multiprocessing
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_prep.download import Download
from lra.data.store import StoreError

DATA = os.urandom(200_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
needs_tfds = pytest.mark.skipif(not importlib.util.find_spec("tensorflow_datasets"), reason="needs tensorflow-datasets")


class Server(http.server.ThreadingHTTPServer):
    """Serves `folder`; /cut ends in the middle, /short too but without a length, /stall and /drip never end.

    login: "user:password" that every request must bring, None for none. /moved/<url> leads elsewhere.
    """

    daemon_threads = True
    login = None

    def __init__(self, folder):
        self.folder, self.asked, self.brought, self.left = folder, [], [], threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, name, login=""):
        return f"http://{login}127.0.0.1:{self.server_port}/{name}"


def basic(login):
    return f"Basic {base64.b64encode(login.encode()).decode()}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.brought.append(self.headers["Authorization"])
        if self.server.login is not None and self.server.brought[-1] != basic(self.server.login):
            return self.send_error(401)
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved/"))
            return self.end_headers()
        name = self.path.lstrip("/")
        path = self.server.folder / name
        if name not in ("cut", "short", "stall", "drip") and not path.exists():
            return self.send_error(404)
        data = DATA if not path.exists() else path.read_bytes()
        self.send_response(200)
        if name != "short":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        if name == "stall":
            time.sleep(60)
        try:
            while name == "drip":
                self.wfile.write(b"x")
                time.sleep(0.02)
        except OSError:
            self.server.left.set()
        if path.exists():
            self.wfile.write(data[len(data) // 2 :])


def silent(what, done, total):
    pass


def partial(folder: Path) -> list[str]:
    """Files that a download left, other than locks and finished files."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"] if folder.exists() else []


def refused(request: Download, folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        request.fetch(folder, silent)
    message = str(caught.value)
    assert "\n" not in message and not isinstance(caught.value, StoreError) and partial(folder) == []
    return message


def start(work, *arguments):
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def dripping(request, folder: Path):
    """A process whose download has begun and does not end."""
    process, end = start(request.fetch, folder, silent), time.monotonic() + 60
    while not list(folder.glob("*.tmp-*/*.tmp.*/drip")):
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def served(folder: Path, monkeypatch) -> Iterator[Server]:
    """For a fixture: a running server of folder/served, which holds DATA as file.tar.gz."""
    monkeypatch.setenv("NO_PROXY", "*")
    files = folder / "served"
    files.mkdir()
    (files / "file.tar.gz").write_bytes(DATA)
    with Server(files) as running:
        yield running
        running.shutdown()


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
