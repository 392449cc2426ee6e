"""Reading the tables of ListOps and Retrieval: content, accepted variations and errors for damaged files."""

import gzip
import os
import re
import tarfile
from unittest.mock import Mock

import pytest
from server import HEAD, LISTOPS, assert_error, assert_rejected, prepared, write_folder, write_release, write_tar

from data_prep import lines
from data_prep.expressions import decode
from data_prep.genome import Genome
from data_prep.listops import ListOps
from data_prep.retrieval import Retrieval

PAIRS = {
    "train": [
        (0, "first paper", "second paper"), (1, '"He said, ""no"" once', "naïve café ☕"),
        (1, "x" * 10_001, "tab-free, 'quoted'"), (0, "b is a letter", "b' is an unfinished literal"),
        (1, "", "an empty first text" * 600), (0, "b'", "it's both ' and \""),
    ],
    "val": [(1, "c", "d"), (0, "e", "f")],
    "test": [(0, "g", "h"), (1, "i", "j"), (1, "k", "l")],
}  # fmt: skip
TRAIN, EVAL, TEST = (f"new_aan_pairs.{part}.tsv" for part in ("train", "eval", "test"))


def written_pairs(split, literal):
    """(label, text, text) of a split as written in its file: the texts as Python bytes literals or as UTF-8."""
    encode = lambda text: repr(text.encode()).encode() if literal else text.encode()
    return [(label, encode(a), encode(b)) for label, a, b in PAIRS[split]]


def expected_pairs(literal=False):
    """The expected (label, text, text) of each split: texts are truncated to 10,000 bytes."""
    cut = lambda label, a, b: (label, a[:10_000], b[:10_000])
    return {split: [cut(*pair) for pair in written_pairs(split, literal)] for split in PAIRS}


def pair_files(literal=False):
    """Content of the three official files by name."""
    lines = lambda split: b"".join(b"%d.0\tP0\tP1\t%s\t%s\n" % pair for pair in written_pairs(split, literal))
    return {TRAIN: lines("train"), EVAL: lines("val"), TEST: lines("test")}


def write_archive(path, files):
    """Write files in the layout of the official archive: test, train, eval, among the files of other tasks."""
    members = {f"listops-1000/{name}": data for name, data in LISTOPS.items()}
    members |= {f"pathfinder32/imgs/{i}.png": bytes(i) for i in range(5)}
    members |= {f"tsv_data/{name}": files[name] for name in (TEST, TRAIN, EVAL) if name in files}
    write_tar(path, {f"./lra_release/{name}": data for name, data in members.items()} | {"zz/last": b"last"})
    return path


def test_listops_drops_round_brackets(tmp_path):
    splits = ListOps(release=write_folder(tmp_path / "release", LISTOPS)).open(tmp_path / "data")
    train = splits["train"]
    assert [len(split) for split in splits.values()] == [2, 1, 1]
    assert decode(train.tokens.tolist()) == "[MAX 2 9 ] [SM [MED 4 7 ] 6 ]"
    assert train.labels.tolist() == [9, 1] and train.lengths.tolist() == [[4], [7]]


@pytest.mark.parametrize(("written", "option"), [(False, False), (False, True), (True, True), (True, False)])
def test_only_literals_option_decodes_python_bytes_literals(tmp_path, written, option):
    release = write_folder(tmp_path / "release", pair_files(literal=written))
    source = Retrieval(release=release, literals=option)
    assert prepared(source, tmp_path / "data") == expected_pairs(literal=written and not option)
    assert source.folder("data") != Retrieval(release=release, literals=not option).folder("data")


@pytest.mark.parametrize("key", ["release", "archive"])
def test_archive_is_read_in_one_pass_without_unpacking(tmp_path, monkeypatch, key):
    path = write_archive(tmp_path / "lra_release.gz", pair_files())
    open_archive = Mock(wraps=tarfile.open)
    monkeypatch.setattr(tarfile, "open", open_archive)
    assert prepared(Retrieval(**{key: path}), tmp_path / "data") == expected_pairs()
    assert open_archive.call_count == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"data", "lra_release.gz"}


def test_smaller_sizes_take_first_examples_of_each_label(tmp_path):
    release = write_folder(tmp_path / "release", pair_files())
    subsets = prepared(Retrieval(release=release, train=3, val=2, test=2), tmp_path / "data")
    full = expected_pairs()
    train = [full["train"][index] for index in (0, 1, 3)]
    assert subsets == {"train": train, "val": full["val"], "test": full["test"][:2]}
    message = r"test.tsv: 3 examples requested, 1 of label 0 and 0 of label 1 are missing"
    assert_rejected(Retrieval(release=release, test=3), tmp_path / "none", message)
    assert_error("at least one example", Retrieval, release=release, test=0)
    assert_error("url, sha256 and archive must be left out", Retrieval, release=release, archive=release)


VAL = "basic_val.tsv"
# File, its content and the expected message.
DAMAGED_TABLES = {
    "empty": (VAL, b"", "basic_val.tsv is empty"),
    "HTML": (VAL, b"<!DOCTYPE html>\n<html>", r"basic_val.tsv is a web page \(HTML\)"),
    "Git LFS": (VAL, b"version https://git-lfs.github.com/spec/v1\n", "basic_val.tsv is a pointer of Git LFS"),
    "gzip": (VAL, gzip.compress(b"Source", mtime=0), "basic_val.tsv is compressed by gzip"),
    "UTF-16": (VAL, HEAD.decode().encode("utf-16"), "basic_val.tsv is UTF-16 text"),
    "no example": (VAL, HEAD, "basic_val.tsv.*holds no example"),
    "blank line": (VAL, HEAD + b"1\t1\n\n1\t1\n", "basic_val.tsv, line 3: not an expression"),
    "wrong head": (VAL, b"Target\tSource\n1\t1\n", "basic_val.tsv: the first line must be Source, a tab, Target"),
    "no tab": (VAL, HEAD + b"1\t1\n1 1\n", "basic_val.tsv, line 3: not an expression, a tab and a digit"),
    "answer": (VAL, HEAD + b"[MAX 2 9 ]\t3\n", "basic_val.tsv, line 2: the answer is 9, not 3"),
    "brackets": (VAL, HEAD + b"[MAX 2 9\t9\n", "basic_val.tsv, line 2: not an expression$"),
    "operator": ("basic_test.tsv", HEAD + b"[FIRST 1 2 ]\t1\n", r"basic_test.tsv, line 2: unknown token '\[FIRST'"),
    "4 fields": (EVAL, b"1.0\ta\tb\tc\td\n1.0\ta\tb\tc\n", "eval.tsv, line 2: 4 fields instead of label, id, id, te"),
    "label 2": (TEST, b"2.0\ta\tb\tc\td\n", "test.tsv, line 1: the label is '2.0', not 0.0 or 1.0"),
    "literal": (TRAIN, b"1.0\ta\tb\tb'\\xq'\td\n", "train.tsv, line 1: a text looks like a Python bytes literal"),
}


@pytest.mark.parametrize("case", DAMAGED_TABLES)
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_damaged_table_error_names_file_and_line(tmp_path, kind, case):
    name, content, message = DAMAGED_TABLES[case]
    path = write_release(tmp_path / "release", kind, LISTOPS | pair_files() | {name: content})
    source = ListOps(release=path) if name in LISTOPS else Retrieval(release=path, literals=True)
    assert_rejected(source, tmp_path / "data", message)


def test_missing_table_error_names_file(tmp_path):
    files = pair_files()
    del files[EVAL]
    folder = write_folder(tmp_path / "release", files)
    message = r"new_aan_pairs.eval.tsv is missing: source.release must be the folder of new_aan_pairs.train"
    assert_rejected(Retrieval(release=folder), tmp_path / "data", message)
    archive = write_archive(tmp_path / "lra_release.gz", files)
    message = r"lra_release/tsv_data is not the release archive or is damaged: new_aan_pairs.eval.tsv is missing"
    assert_rejected(Retrieval(release=archive), tmp_path / "data", message)


# Kind of the release, and the path and message of its damaged file.
TRUNCATED = [("folder", TRAIN, "line 1: 4 fields"), ("packed", f"{TRAIN}.gz", "damaged"), ("archive", "", "damaged")]


@pytest.mark.parametrize(("kind", "name", "message"), TRUNCATED)
def test_truncated_file_error_names_file(tmp_path, kind, name, message):
    noise = os.urandom(30_000).hex()
    files = pair_files() | {TRAIN: f"1.0\ta\tb\t{noise}\t{noise[::-1]}\n".encode()}
    # write_release gzips all copies but the first.
    release = write_release(tmp_path / "release", kind, {}, files)
    os.truncate(release / name, (release / name).stat().st_size // 3)
    assert_rejected(Retrieval(release=release), tmp_path / "data", rf"{release / name}( is|,) {message}")


def test_data_set_folder_depends_on_content_checksum_or_url(tmp_path):
    unmodified = write_folder(tmp_path / "a", pair_files())
    same_content = write_folder(tmp_path / "b" / "tsv_data", pair_files()).parent
    other_content = write_folder(tmp_path / "c", pair_files() | {EVAL: b"1.0\ta\tb\ty\tz\n"})
    folders = [Retrieval(release=path).folder("data") for path in (unmodified, same_content, other_content)]
    assert folders[0] == folders[1] != folders[2]
    assert Retrieval().arguments["release"] == {"url": "https://storage.googleapis.com/long-range-arena/lra_release.gz"}
    with_sha256 = [Retrieval(sha256="0" * 64, url=url).folder("data") for url in (None, "http://127.0.0.1/mirror.gz")]
    assert with_sha256[0] == with_sha256[1] != Retrieval().folder("data")


TOLERATED = {
    "no last line end": lambda data: data.rstrip(b"\r\n"),
    "all others": lambda data: lines.BYTE_ORDER_MARK + data.replace(b"\n", b"\r\n", 1) + b"\r\n\n \n",
}


@pytest.mark.parametrize("change", TOLERATED)
def test_byte_order_marks_line_ends_and_blank_last_lines_are_accepted(tmp_path, change):
    transform = TOLERATED[change]
    files = LISTOPS | dict.fromkeys((TRAIN, EVAL, TEST), b"1.0\ta\tb\tc\td\n0.0\te\tf\tg\th\n")
    root = write_folder(tmp_path / "root", {name: transform(data) for name, data in files.items()})
    unmodified = write_folder(tmp_path / "plain", files)
    for kind in (ListOps, Retrieval):
        assert prepared(kind(release=root), tmp_path / "data") == prepared(kind(release=unmodified), tmp_path / "data")
    (tmp_path / "dog.fa").write_bytes(transform(b">a\nACGT\n"))
    (tmp_path / "donkey.fa").write_bytes(transform(b">a\nACG\nT\n>b\nACGT\n"))
    genome = Genome(dog=tmp_path / "dog.fa", donkey=tmp_path / "donkey.fa", longer_than=1)
    assert sum(map(len, prepared(genome, tmp_path / "data").values())) == 3


@pytest.mark.parametrize(("kind", "names"), [("folder", [TRAIN, EVAL, TEST]), ("archive", ["root"])])
def test_slow_reading_logs_rate_per_file(tmp_path, capfd, monkeypatch, kind, names):
    root = write_release(tmp_path / "root", kind, {}, pair_files())
    for seconds in (1e3, 0):
        monkeypatch.setattr("lra.data.progress.SLOW", seconds)
        Retrieval(release=root).prepare(tmp_path / f"data{seconds}")
        rates = re.findall(r"(.*): [\d.]+ MB read at [\d,.]+ MB/s$", capfd.readouterr().err, re.MULTILINE)
        assert len(rates) == (0 if seconds else len(names))
    assert all(name in rate for name, rate in zip(names, rates, strict=True))
