"""Archives that are damaged or not to be trusted, and what identifies a file."""

import hashlib
import os
import tarfile

import pytest
from server import DATA, imdb, silent, write_tar

from data_prep.archive import fingerprint, members, reading
from data_prep.text import Text


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
    monkeypatch.setattr("data_prep.archive.SLOW", 150)
    path = tmp_path / "file"
    seen = set()
    for data in (DATA[:0], DATA[:50], DATA[:150], DATA[:1000], DATA[:499] + b"x" + DATA[500:1000], DATA):
        path.write_bytes(data)
        assert fingerprint(path) == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seen.add(str(fingerprint(path)))
    assert len(seen) == 6
    with pytest.raises(ValueError, match="nothing cannot be read: No such file"):
        fingerprint(tmp_path / "nothing")
