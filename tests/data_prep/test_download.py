"""Downloads over a server on this machine, what fails on the way, and archives that are not to be trusted."""

import hashlib
import http.server
import importlib.util
import multiprocessing
import os
import resource
import signal
import socket
import tarfile
import threading
import time
from pathlib import Path

import pytest
from archives import imdb, write_tar

from data_prep import download
from data_prep.archive import fingerprint, members, reading
from data_prep.download import Download
from data_prep.image import OFFICIAL as CIFAR
from data_prep.text import OFFICIAL as IMDB
from data_prep.text import Text
from lra.data.store import StoreError

DATA = os.urandom(200_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
needs_tfds = pytest.mark.skipif(not importlib.util.find_spec("tensorflow_datasets"), reason="needs tensorflow-datasets")


class Server(http.server.ThreadingHTTPServer):
    """Serves `folder`; /cut ends in the middle, /short too but without a length, /stall and /drip never end."""

    daemon_threads = True

    def __init__(self, folder):
        self.folder, self.asked, self.left = folder, [], threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
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


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.tar.gz").write_bytes(DATA)
    with Server(folder) as running:
        yield running
        running.shutdown()


def silent(what, done, total):
    pass


def partial(folder: Path) -> list[str]:
    """What a download left that is neither a lock nor a finished file."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"] if folder.exists() else []


def refused(request: Download, folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        request.fetch(folder, silent)
    message = str(caught.value)
    assert "\n" not in message and not isinstance(caught.value, StoreError) and partial(folder) == []
    return message


@needs_tfds
def test_a_download_is_checked_kept_and_not_repeated(server, tmp_path, capsys):
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=len(DATA))
    path = request.fetch(tmp_path / "downloads", silent)
    assert path.read_bytes() == DATA and partial(tmp_path / "downloads") == [f"{SHA256[:8]}-file.tar.gz"]
    assert request.fetch(tmp_path / "downloads", silent) == path and len(server.asked) == 1
    path.write_bytes(DATA[:-1])
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA and len(server.asked) == 2
    assert "has changed since it was downloaded" in capsys.readouterr().err


@needs_tfds
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file.tar.gz", rf"200,000 bytes with sha256 {SHA256} instead of {'0' * 64}"),
        ("short", "100,000 bytes with sha256"),
        ("cut", "the connection broke off"),
        ("none", ": HTTP code 404; get the file another way"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_nothing(server, tmp_path, name, reason):
    message = refused(Download(url=server.url(name), sha256="0" * 64), tmp_path / "downloads")
    assert message.startswith(f"cannot download {name} from {server.url(name)}: ") and reason in message
    assert message.endswith("add source.archive=<path>, or name a mirror by source.url=")


@needs_tfds
def test_without_a_checksum_it_says_so(server, tmp_path, capsys):
    request = Download(url=server.url("file.tar.gz"))
    path = request.fetch(tmp_path / "downloads", silent)
    assert path.read_bytes() == DATA and request.identity == {"url": request.url}
    assert f"{path} is not checked, as nobody publishes a checksum of it" in capsys.readouterr().err


@needs_tfds
def test_no_server_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for host in (f"127.0.0.1:{port}", "no-such-host.invalid"):
        message = refused(Download(url=f"http://{host}/file", sha256=SHA256), tmp_path / "downloads")
        assert f"no connection to {host}" in message


@needs_tfds
def test_a_stalled_download_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "STALL", 4)
    message = refused(Download(url=server.url("stall"), sha256=SHA256), tmp_path / "downloads")
    assert "nothing has come for 4 s after" in message


@needs_tfds
def test_a_full_disk(server, tmp_path, monkeypatch):
    """A file size limit stands in for the full disk: the system refuses the write in the same place."""
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        assert "cannot be written (File too large), make room or" in refused(request, tmp_path / "downloads")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    huge = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=10**18)
    asked = len(server.asked)
    assert "it has 1,000,000,000,000 MB" in refused(huge, tmp_path / "downloads") and len(server.asked) == asked


def start(work, *arguments):
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


@needs_tfds
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_the_download_ends_with_the_process_that_asked_for_it(server, tmp_path, stop):
    folder = tmp_path / "downloads"
    process = start(Download(url=server.url("drip")).fetch, folder, silent)
    end = time.monotonic() + 60
    while not list(folder.glob("*.tmp-*/*.tmp.*/drip")):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(process.pid, stop)
    assert server.left.wait(20)
    process.join(20)
    assert process.exitcode and (stop == signal.SIGKILL or partial(folder) == [])


def test_without_tfds(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refused(IMDB, tmp_path / "downloads")
    assert "tensorflow-datasets is not installed: pip install '.[tfds]'" in message


def test_an_archive_that_is_there_already(tmp_path):
    path = tmp_path / "mine.gz"
    path.write_bytes(DATA)
    assert IMDB.but(archive=path, sha256=SHA256).fetch(tmp_path / "downloads", silent) == path
    message = refused(IMDB.but(archive=path), tmp_path / "downloads")
    assert f"{path} has sha256 {SHA256} instead of {IMDB.sha256}: get aclImdb_v1.tar.gz from http://ai." in message
    assert "is not a file" in refused(IMDB.but(archive=tmp_path), tmp_path / "downloads")
    unchecked = Download(url="http://127.0.0.1/file", archive=path)
    assert unchecked.fetch(tmp_path, silent) == path
    assert unchecked.identity == {"archive": {"bytes": 200_000, "sha256": SHA256}}


@pytest.mark.parametrize("wrong", [{"url": "ftp://host/file"}, {"sha256": "c0ffee"}, {"sha256": "Z" * 64}])
def test_wrong_keys(wrong):
    with pytest.raises(ValueError, match=f"source.{next(iter(wrong))} must"):
        IMDB.but(**wrong)


def test_the_official_files_are_those_of_tfds():
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    from tensorflow_datasets.core.download.checksums import load_url_infos

    home = Path(tfds.__file__).parent
    for official, table in ((IMDB, "datasets/imdb_reviews/checksums.tsv"), (CIFAR, "url_checksums/cifar10.txt")):
        info = load_url_infos(home / table)[official.url]
        assert (official.sha256, official.size) == (info.checksum, int(info.size))


@needs_tfds
def test_two_processes_download_once(server, tmp_path):
    sha256 = imdb(server.folder / "aclImdb_v1.tar.gz")
    # Different data sets of one file: the lock of the data set does not keep them apart.
    made = [Text(url=server.url("aclImdb_v1.tar.gz"), sha256=sha256, hold_out=n) for n in (0, 5)]
    started = [start(source.prepare, tmp_path / "data") for source in made]
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0]
    assert server.asked == ["/aclImdb_v1.tar.gz"]
    assert [len(source.load(tmp_path / "data")["train"]) for source in made] == [40, 35]


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


HOSTILE = {
    "../outside": member("../outside"),
    "a/../../outside": member("a/../../outside"),
    "/etc/passwd": member("/etc/passwd"),
    "symlink": member("symlink", tarfile.SYMTYPE, "/etc/passwd"),
    "hardlink": member("hardlink", tarfile.LNKTYPE, "a"),
    "device": member("device", tarfile.CHRTYPE),
    "pipe": member("pipe", tarfile.FIFOTYPE),
    "sparse": member("sparse", tarfile.GNUTYPE_SPARSE),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_by_the_name_of_its_member(tmp_path, name):
    sha256 = imdb(tmp_path / "imdb.tar.gz", hostile=HOSTILE[name])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"not to be trusted: its member '{name}' (lies outside|is a link|is not a)"):
        Text(archive=tmp_path / "imdb.tar.gz", sha256=sha256).prepare(tmp_path / "data")
    left = {path for path in tmp_path.rglob("*") if path.suffix != ".lock"} - {*before, tmp_path / "data"}
    assert not left


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz", "w:bz2"])
def test_members_in_order_whatever_the_compression(tmp_path, mode):
    files = {"./a/2": b"two" * 999, "a/1": b"", "b/3": b"three", "a/4": bytes(512)}
    write_tar(tmp_path / "some.tar", files, mode=mode)
    wanted = lambda name: name.startswith("a/")
    found = [(name, file.read()) for name, file in members(tmp_path / "some.tar", wanted, silent)]
    assert found == [("a/2", b"two" * 999), ("a/1", b""), ("a/4", bytes(512))]


def read_all(path):
    with reading(path):
        return [file.read() for _, file in members(path, lambda name: True, silent)]


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_cut_archive_never_ends_quietly(tmp_path, mode, share):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": os.urandom(3000) for i in range(20)}, mode=mode)
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(ValueError, match=r"some.tar is damaged or not an archive \(.*\): get it again") as caught:
        read_all(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_changed_byte_is_noticed(tmp_path, mode):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": os.urandom(3000) for i in range(20)}, mode=mode)
    data = bytearray(path.read_bytes())
    data[30_000] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"some.tar is damaged"):
        read_all(path)


def test_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.archive.ENDS", 100)
    path = tmp_path / "file"
    seen = set()
    for n in (0, 50, 150, 200, 201, 1000):
        path.write_bytes(DATA[:n])
        expected = DATA[:n] if n <= 200 else DATA[:100] + DATA[n - 100 : n]
        assert fingerprint(path) == {"bytes": n, "sha256": hashlib.sha256(expected).hexdigest()}
        seen.add(str(fingerprint(path)))
    assert len(seen) == 6
    with pytest.raises(ValueError, match="nothing cannot be read: No such file"):
        fingerprint(tmp_path / "nothing")
