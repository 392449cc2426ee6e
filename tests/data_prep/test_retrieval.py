"""Retrieval: the official pairs from folders, packed files and the release archive; what is not a pair."""

import os
import tarfile

import pytest
from server import official, prepared, write_folder, write_tar

from data_prep.retrieval import Retrieval

QUOTED = '"He said, ""no"" once'
PAIRS = {
    "train": [
        (0, "first paper", "second paper"),
        (1, QUOTED, "naïve café ☕"),
        (1, "x" * 10_001, "tab-free, 'quoted'"),
        (0, "b is a letter", "b' is an unfinished literal"),
        (1, "", "an empty first text"),
        (0, "b", "it's both ' and \""),
    ],
    "val": [(1, "c", "d"), (0, "e", "f")],
    "test": [(0, "g", "h"), (1, "i", "j"), (1, "k", "l")],
}
NAMES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
LISTOPS = {split: f"basic_{split}.tsv" for split in ("train", "val", "test")}


def lines(pairs, literal=False):
    say = (lambda text: repr(text.encode())) if literal else str
    return "".join(f"{label:.1f}\tP0{i}\tP1{i}\t{say(a)}\t{say(b)}\n" for i, (label, a, b) in enumerate(pairs)).encode()


def files(literal=False, **changes):
    """Name and content of the three files; `changes` replace or, being None, leave out."""
    contents = {split: lines(pairs, literal) for split, pairs in PAIRS.items()} | changes
    return {NAMES[split]: content for split, content in contents.items() if content is not None}


def write_archive(path, contents, top="lra_release/lra_release/"):
    """In the layout of the official archive, test before train before eval, among files of other tasks."""
    inside = {f"{top}listops-1000/{name}": b"Source\tTarget\n[MAX 2 9 ]\t9\n" for name in LISTOPS.values()}
    inside |= {f"{top}pathfinder32/imgs/{i}.png": bytes(i) for i in range(5)}
    order = (NAMES["test"], NAMES["train"], NAMES["val"])
    inside |= {f"{top}tsv_data/{name}": contents[name] for name in order if name in contents}
    write_tar(path, inside | {f"{top}zz/last": b"last"})
    return path


def written(folder, kind, contents):
    """Path of a release: an archive, a folder or one of packed files."""
    if kind == "archive":
        return write_archive(folder / "lra_release.gz", contents)
    return write_folder(folder / "release", contents, packed=kind == "packed")


KEPT = slice(10_000)
EXPECTED = {split: [(n, a.encode()[KEPT], b.encode()[KEPT]) for n, a, b in pairs] for split, pairs in PAIRS.items()}


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inner", ["", "tsv_data"])
def test_folders(tmp_path, packed, literal, inner):
    write_folder(tmp_path / "release" / inner, files(literal), packed=packed)
    assert prepared(Retrieval(release=tmp_path / "release", literals=literal), tmp_path / "data") == EXPECTED


def test_texts_are_read_as_they_are_written(tmp_path):
    """Also where they are cut: the official pipeline's 10,000 bytes are bytes of the field."""
    release = write_folder(tmp_path / "release", files(literal=True))
    literals = {
        split: [(n, repr(a.encode()).encode()[KEPT], repr(b.encode()).encode()[KEPT]) for n, a, b in pairs]
        for split, pairs in PAIRS.items()
    }
    assert prepared(Retrieval(release=release), tmp_path / "data") == literals
    broken = write_folder(tmp_path / "broken", files(train=b"1.0\ta\tb\tb'\\xq'\td\n"))
    assert prepared(Retrieval(release=broken), tmp_path / "data")["train"] == [(1, rb"b'\xq'", b"d")]
    folders = [Retrieval(release=release, literals=literals).folder("data") for literals in (False, True)]
    assert folders[0] != folders[1]


@pytest.mark.parametrize("top", ["lra_release/lra_release/", "./lra_release/", ""])
@pytest.mark.parametrize("key", ["release", "archive"])
def test_the_release_archive(tmp_path, key, top):
    path = write_archive(tmp_path / "lra_release.gz", files(), top)
    assert prepared(Retrieval(**{key: path}), tmp_path / "data") == EXPECTED
    assert {entry.name for entry in tmp_path.iterdir()} == {"data", "lra_release.gz"}  # nothing was unpacked


def test_one_pass_over_the_archive(tmp_path, monkeypatch):
    """To its end: another copy of the files may follow."""
    path = write_archive(tmp_path / "lra_release.gz", files())
    read = []
    following = tarfile.TarFile.next
    monkeypatch.setattr(tarfile.TarFile, "next", lambda tar: (read.append(following(tar)), read[-1])[1])
    prepared(Retrieval(release=path), tmp_path / "data")
    names = [member.name.rsplit("/", 1)[-1] for member in read if member]
    assert set(names) == {*NAMES.values(), *LISTOPS.values(), *(f"{i}.png" for i in range(5)), "last"}
    assert len(names) - len(set(names)) <= 1 and names[-1] == "last"  # tarfile looks at the first one twice


def test_smaller_sizes_are_the_first_of_either_label(tmp_path):
    release = write_folder(tmp_path / "release", files())
    few = prepared(Retrieval(release=release, train=3, val=2, test=2), tmp_path / "data")
    train = EXPECTED["train"]
    assert few == {"train": [train[0], train[1], train[3]], "val": EXPECTED["val"], "test": EXPECTED["test"][:2]}
    with pytest.raises(ValueError, match=r"test.tsv: 3 examples asked for, 1 of label 0 and 0 of label 1 are missing"):
        Retrieval(release=release, test=3).prepare(tmp_path / "data")
    with pytest.raises(ValueError, match="at least one example"):
        Retrieval(release=release, test=0)
    with pytest.raises(ValueError, match="url, sha256 and archive must be left out"):
        Retrieval(release=release, archive=release)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val": None}, r"new_aan_pairs.eval.tsv is missing: source.release must be the folder of new_aan_pairs.train"),
        ({"val": b"1.0\ta\tb\tc\td\n1.0\ta\tb\tc\n"}, r"eval.tsv, line 2: 4 fields instead of label, id, id, te"),
        ({"val": b"1.0\ta\tb\tc\td\te\n"}, r"eval.tsv, line 1: 6 fields"),
        ({"val": b"1.0\ta\tb\tc\td\n\n1.0\ta\tb\tc\td\n"}, r"eval.tsv, line 2: 1 fields"),
        ({"test": b"2.0\ta\tb\tc\td\n"}, r"test.tsv, line 1: the label is '2.0', not 0.0 or 1.0"),
        ({"test": b"label\tid1\tid2\ttext1\ttext2\n"}, r"test.tsv, line 1: the label is 'label'"),
        ({"train": b"1.0\ta\tb\tb'\\xq'\td\n"}, r"train.tsv, line 1: a text looks like a Python bytes literal but is"),
        ({"train": b"1.0\ta\tb\tb'\0'\td\n"}, r"train.tsv, line 1: a text looks like a Python bytes literal but is"),
        ({"train": b"1.0\ta\tb\tb'1' + exit() + b'2'\td\n"}, r"train.tsv, line 1: a text looks like a Python bytes"),
        ({"train": b""}, "train.tsv is empty"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_damaged_releases(tmp_path, kind, changes, message):
    if kind == "archive" and "is missing" in message:
        message = r"lra_release/tsv_data is not the release archive or is damaged: new_aan_pairs.eval.tsv is missing"
    with pytest.raises(ValueError, match=message) as caught:
        Retrieval(release=written(tmp_path, kind, files(**changes)), literals=True).prepare(tmp_path / "data")
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("data/*/"))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("folder", "release/new_aan_pairs.train.tsv", r"train.tsv, line 1: 4 fields"),
        ("packed", "release/new_aan_pairs.train.tsv.gz", r"train.tsv.gz is damaged"),
        ("archive", "lra_release.gz", r"lra_release.gz is damaged"),
    ],
)
def test_cut_files(tmp_path, kind, name, message):
    noise = os.urandom(30_000).hex()
    release = written(tmp_path, kind, files(train=f"1.0\ta\tb\t{noise}\t{noise[::-1]}\n".encode()))
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 3)
    with pytest.raises(ValueError, match=message):
        Retrieval(release=release).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))


def test_the_data_set_is_told_by_the_files_or_the_address(tmp_path):
    plain = write_folder(tmp_path / "a", files())
    same = write_folder(tmp_path / "b" / "tsv_data", files()).parent
    other = write_folder(tmp_path / "c", files(val=lines([(1, "y", "z")])))
    folders = [Retrieval(release=path).folder("data") for path in (plain, same, other)]
    assert folders[0] == folders[1] != folders[2]
    assert Retrieval().arguments["release"] == {"url": "https://storage.googleapis.com/long-range-arena/lra_release.gz"}
    pinned = [Retrieval(sha256="0" * 64, url=url).folder("data") for url in (None, "http://127.0.0.1/mirror.gz")]
    assert pinned[0] == pinned[1] != Retrieval().folder("data")


@pytest.mark.slow
def test_thousands_of_pairs(tmp_path):
    splits = prepared(Retrieval(release=official("tsv_data", "aan_standin")), tmp_path)
    assert min(len(pairs) for pairs in splits.values()) > 500
    for pairs in splits.values():
        assert 0.4 < sum(label for label, _, _ in pairs) / len(pairs) < 0.6
        assert all(max(len(a), len(b)) <= 10_000 for _, a, b in pairs)
