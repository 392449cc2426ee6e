"""Downloads from a server on this machine, damaged and hostile archives, and what identifies a file."""

import hashlib
import importlib.util
import os
import signal
import tarfile
from pathlib import Path

import pytest
from conftest import small_disk
from server import DATA, SHA256, dripping, imdb, partial, refused, served, silent, start, write_tar

from data_prep import download
from data_prep.archive import fingerprint, members, reading
from data_prep.download import Download
from data_prep.image import OFFICIAL as CIFAR
from data_prep.release import OFFICIAL as RELEASE
from data_prep.text import OFFICIAL as IMDB
from data_prep.text import Text


@pytest.fixture
def server(tmp_path, monkeypatch):
    if importlib.util.find_spec("tensorflow_datasets") is None:
        pytest.skip("needs tensorflow-datasets")
    yield from served(tmp_path, monkeypatch)


def test_a_download_is_checked_kept_and_not_repeated(server, tmp_path, capsys):
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=len(DATA))
    path = request.fetch(tmp_path / "downloads", silent)
    assert path.read_bytes() == DATA and partial(tmp_path / "downloads") == [f"{SHA256[:8]}-file.tar.gz"]
    assert request.fetch(tmp_path / "downloads", silent) == path and len(server.asked) == 1
    path.write_bytes(DATA[:-1])
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA and len(server.asked) == 2
    assert "has changed since it was downloaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file.tar.gz", rf"200,000 bytes with sha256 {SHA256} instead of {'0' * 64}"),
        pytest.param("short", "100,000 bytes with sha256", marks=pytest.mark.slow),
        pytest.param("cut", "the connection broke off", marks=pytest.mark.slow),
        pytest.param("none", ": HTTP code 404; try another way: source.archive=", marks=pytest.mark.slow),
        ("http://127.0.0.1:1/closed", "no connection to 127.0.0.1:1"),
        ("http://no-such-host.invalid/file", "no connection to no-such-host.invalid"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_nothing(server, tmp_path, name, reason):
    url = name if "://" in name else server.url(name)
    message = refused(Download(url=url, sha256="0" * 64), tmp_path / "downloads")
    assert message.startswith(f"cannot download {Path(name).name} from {url}: ") and reason in message
    assert message.endswith("copied from elsewhere>; source.url=<address of a mirror>")


def test_a_stalled_download_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "STALL", 1)
    message = refused(Download(url=server.url("stall"), sha256=SHA256), tmp_path / "downloads")
    assert "nothing has come for 1 s after" in message


def test_netrc_opens_an_address(server, tmp_path, monkeypatch):
    server.login = "me:secret"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA


def test_a_full_disk(server, tmp_path):
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    with small_disk():
        assert "cannot be written (File too large), make room or" in refused(request, tmp_path / "downloads")
    huge = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=10**18)
    asked = len(server.asked)
    assert "it has 1,000,000,000,000 MB" in refused(huge, tmp_path / "downloads") and len(server.asked) == asked


def test_an_interrupted_download_leaves_nothing(server, tmp_path):
    process = dripping(Download(url=server.url("drip")), tmp_path / "downloads")
    os.kill(process.pid, signal.SIGINT)
    assert server.left.wait(20)
    process.join(20)
    assert process.exitcode and partial(tmp_path / "downloads") == []


def test_without_tfds(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refused(IMDB, tmp_path / "downloads")
    assert "tensorflow-datasets is not installed: pip install '.[tfds]'" in message
    assert "source.archive=<path of aclImdb_v1.tar.gz" in message and "stanfordnlp/imdb" in message
    assert "source.release=<a copy of the release" in refused(RELEASE, tmp_path / "downloads")


def test_an_archive_that_is_there_already(tmp_path):
    path = tmp_path / "mine.gz"
    path.write_bytes(DATA)
    mine = IMDB.but(archive=path, sha256=SHA256)
    assert mine.fetch(tmp_path / "downloads", silent) == path
    assert (mine.substitute, IMDB.but(archive=path, sha256=IMDB.sha256).substitute) == (f"sha256 {SHA256[:12]}", None)
    message = refused(IMDB.but(archive=path), tmp_path / "downloads")
    assert f"{path} has sha256 {SHA256} instead of {IMDB.sha256}: get aclImdb_v1.tar.gz from http://ai." in message
    assert "is not a file" in refused(IMDB.but(archive=tmp_path), tmp_path / "downloads")
    unchecked = Download(url="http://127.0.0.1/file", archive=path)
    assert unchecked.fetch(tmp_path, silent) == path
    assert unchecked.identity == {"archive": {"bytes": 200_000, "sha256": SHA256}}


WRONG = ["c0ffee", "Z" * 64, "ftp://host/f", "https:///f", "https://me:secret@host/f", "https://me:se/cret@host/f"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_keys_are_named_without_the_password(wrong):
    key = "url" if "/" in wrong else "sha256"
    with pytest.raises(ValueError, match=rf"source\.{key} must") as caught:
        IMDB.but(**{key: wrong})
    assert "cret" not in str(caught.value)


def test_the_official_files_are_those_of_tfds():
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    from tensorflow_datasets.core.download.checksums import load_url_infos

    home = Path(tfds.__file__).parent
    for official, table in ((IMDB, "datasets/imdb_reviews/checksums.tsv"), (CIFAR, "url_checksums/cifar10.txt")):
        info = load_url_infos(home / table)[official.url]
        assert (official.sha256, official.size) == (info.checksum, int(info.size))


def test_two_processes_download_once(server, tmp_path):
    sha256 = imdb(server.folder / "aclImdb_v1.tar.gz")["sha256"]
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
    arguments = imdb(tmp_path / "imdb.tar.gz", hostile=HOSTILE[name])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"not to be trusted: its member '{name}' (lies outside|is a link|is not a)"):
        Text(**arguments).prepare(tmp_path / "data")
    assert {path for path in tmp_path.rglob("*") if path.suffix != ".lock"} <= {*before, tmp_path / "data"}


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz", "w:bz2"])
def test_members_in_order_whatever_the_compression(tmp_path, mode):
    files = {"./a/2": b"two" * 999, "a/1": b"", "b/3": b"three", "a/4": bytes(512)}
    write_tar(tmp_path / "some.tar", files, mode=mode)
    wanted = lambda name: name.startswith("a/")
    found = [(name, file.read()) for name, file in members(tmp_path / "some.tar", wanted, silent)]
    assert found == [("a/2", b"two" * 999), ("a/1", b""), ("a/4", bytes(512))]


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, "changed"])
@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_an_archive_that_is_cut_or_changed_never_ends_quietly(tmp_path, mode, share):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": os.urandom(3000) for i in range(20)}, mode=mode)
    data = bytearray(path.read_bytes())
    if share == "changed":
        data[30_000] ^= 4
    else:
        del data[int(share * len(data)) :]
    path.write_bytes(data)
    with (
        pytest.raises(ValueError, match=r"some.tar is damaged or not an archive \(.*\): get it again") as caught,
        reading(path),
    ):
        [file.read() for _, file in members(path, lambda name: True, silent)]
    assert "\n" not in str(caught.value)


def test_fingerprint(tmp_path, monkeypatch):
    """Of the whole content: a byte in the middle counts, also when a file is rewritten in place."""
    monkeypatch.setattr("data_prep.archive.LARGE", 150)
    path = tmp_path / "file"
    seen = set()
    for data in (DATA[:0], DATA[:50], DATA[:150], DATA[:1000], DATA[:499] + b"x" + DATA[500:1000], DATA):
        path.write_bytes(data)
        assert fingerprint(path) == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seen.add(str(fingerprint(path)))
    assert len(seen) == 6
    with pytest.raises(ValueError, match="nothing cannot be read: No such file"):
        fingerprint(tmp_path / "nothing")
