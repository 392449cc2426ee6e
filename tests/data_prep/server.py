"""A server on this machine, and what tests ask of downloads from it."""

import base64
import hashlib
import http.server
import importlib.util
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


def served(folder: Path, monkeypatch) -> Iterator[Server]:
    """For a fixture: a running server of folder/served, which holds DATA as file.tar.gz."""
    monkeypatch.setenv("NO_PROXY", "*")
    files = folder / "served"
    files.mkdir()
    (files / "file.tar.gz").write_bytes(DATA)
    with Server(files) as running:
        yield running
        running.shutdown()
