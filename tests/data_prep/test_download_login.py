"""User and password of an address: they open it, and nothing prints or stores them."""

import base64
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from server import DATA, SHA256, Server, basic, dripping, imdb, needs_tfds, refused, served, silent

from data_prep.download import Download
from data_prep.text import Text
from lra.data.store import StoreError
from lra.train.__main__ import train


@pytest.fixture
def server(tmp_path, monkeypatch):
    yield from served(tmp_path, monkeypatch)


LOGIN, WRITTEN = "me@work:p/s:\u20acret", "me%40work:p%2Fs%3A%E2%82%ACret@"  # as a server sees it and in an address
SECRETS = ("me@work", "me%40work", "p/s:", "p%2Fs", "cret", base64.b64encode(LOGIN.encode()).decode())


def no_secret(text: str | bytes) -> bool:
    text = text if isinstance(text, bytes) else text.encode()
    return not any(secret.encode() in text for secret in SECRETS)


def command_lines() -> list[bytes]:
    """Those of all processes, none where the system has no /proc."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            lines.append(path.read_bytes())
    return lines


@needs_tfds
@pytest.mark.parametrize("checked", [True, False])
def test_a_login_in_the_address_opens_it_and_is_nowhere_else(server, tmp_path, capfd, checked):
    server.login = LOGIN
    plain = Download(url=server.url("file.tar.gz"), sha256=SHA256 if checked else None)
    request = plain.but(url=server.url("file.tar.gz", WRITTEN))
    assert request.url == plain.url and request.identity == plain.identity
    said = []
    path = request.fetch(tmp_path / "downloads", lambda *words: said.append(words))
    assert path.read_bytes() == DATA and server.brought == [basic(LOGIN)]
    assert path == plain.fetch(tmp_path / "downloads", silent)  # it is there already
    printed = "".join(capfd.readouterr())
    assert (f"{path} is not checked, since no checksum of it is published" in printed) == (not checked)
    assert no_secret(f"{request!r} {request.identity} {request.file} {said} {printed} {path}")
    assert all(no_secret(f.name) and no_secret(f.read_bytes()) for f in tmp_path.rglob("*") if f.is_file())


@needs_tfds
def test_a_wrong_login_is_one_line_without_it(server, tmp_path, capfd):
    server.login = "somebody:else"
    message = refused(Download(url=server.url("file.tar.gz", WRITTEN), sha256=SHA256), tmp_path / "downloads")
    assert f"from {server.url('file.tar.gz')}: HTTP code 401" in message and no_secret(message)
    assert no_secret(f"{capfd.readouterr()}") and server.brought[-1] == basic(LOGIN)
    other = Download(url=server.url("file.tar.gz", WRITTEN), sha256=SHA256).but(url=server.url("file.tar.gz"))
    refused(other, tmp_path / "downloads")
    assert server.brought[-1] is None  # another address does not take the login over


@needs_tfds
def test_a_killed_download_leaves_no_login(server, tmp_path):
    folder, request = tmp_path / "downloads", Download(url=server.url("drip", WRITTEN), sha256=SHA256)
    process, lines = dripping(request, folder), command_lines()
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert all(map(no_secret, lines)) and (not lines or any(b"tfds_download" in line for line in lines))
    assert server.left.wait(20) and server.brought == [basic(LOGIN)]
    assert all(no_secret(str(f)) and no_secret(f.read_bytes()) for f in folder.rglob("*") if f.is_file())


@needs_tfds
def test_another_server_is_not_sent_the_login(server, tmp_path):
    with Server(server.folder) as other:
        address = other.url("file.tar.gz").replace("127.0.0.1", "localhost")
        request = Download(url=server.url(f"moved/{address}", WRITTEN), sha256=SHA256)
        assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA
        other.shutdown()
    assert server.brought == [basic(LOGIN)] and other.brought == [None]


@needs_tfds
def test_netrc_serves_an_address_without_login(server, tmp_path, monkeypatch):
    server.login = "me:secret"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA


@needs_tfds
def test_what_a_data_set_and_a_run_keep_and_say(server, tmp_path):
    sha256 = imdb(server.folder / "aclImdb_v1.tar.gz")
    server.login = LOGIN
    source = Text(url=server.url("aclImdb_v1.tar.gz", WRITTEN), sha256=sha256)
    source.command = f"python -m data_prep task=text source.url={server.url('aclImdb_v1.tar.gz', WRITTEN)}"
    with pytest.raises(StoreError, match=f"source.url={server.url('aclImdb_v1.tar.gz')}") as caught:
        source.load(tmp_path / "data")
    source.prepare(tmp_path / "data")
    assert len(source.load(tmp_path / "data")["train"]) == 40 and no_secret(str(caught.value))
    assert all(no_secret(f.read_bytes()) for f in (tmp_path / "data").rglob("*.json"))
    with pytest.raises(ValueError, match=f"leave it out: source.url={server.url('aclImdb_v1.tar.gz')}") as caught:
        source.open(tmp_path / "data")  # what training asks for, before it writes anything
    assert no_secret(str(caught.value))
    assert len(Text(url=server.url("aclImdb_v1.tar.gz"), sha256=sha256).open(tmp_path / "data")["train"]) == 40


def test_a_command_that_is_refused_is_repeated_without_login(monkeypatch, capfd, tmp_path):
    """With -m the overrides of a run that failed are listed, the address among them."""
    monkeypatch.chdir(tmp_path)
    address = f"http://{WRITTEN}127.0.0.1:1/a.gz"
    argv = ["lra.train", "-m", "task=text", "attn=sdpa", f"source.url={address}", "optim.steps=7"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as stop:
        train()
    said = f"{stop.value} {capfd.readouterr()}"
    assert no_secret(said) and "127.0.0.1" in said
