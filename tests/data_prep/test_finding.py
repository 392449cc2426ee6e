"""The files of a task in the layouts that people have, and text files with harmless or harmful differences."""

import gzip
import re

import pytest
from server import prepared, silent, write_folder, write_tar

from data_prep import lines
from data_prep.genome import Genome
from data_prep.listops import FILES, ListOps
from data_prep.release import Release
from data_prep.retrieval import FILES as PAIR_FILES
from data_prep.retrieval import Retrieval
from data_prep.text import Text

LISTOPS = {
    "basic_train.tsv": b"Source\tTarget\n( [MAX 2 ) 9 ]\t9\n[SM 5 6 ]\t1\n",
    "basic_val.tsv": b"Source\tTarget\n[MIN 3 1 ]\t1\n",
    "basic_test.tsv": b"Source\tTarget\n[MIN 8 4 ]\t4\n",
}
OTHER = LISTOPS | {"basic_val.tsv": b"Source\tTarget\n[MIN 3 2 ]\t2\n"}
REVIEWS = {f"{part}/{kind}/0_3.txt": b"x" for part in ("train", "test") for kind in ("pos", "neg")}
FASTA = {"d.fa": b">a\nACGT\n>b\nAAAC\n>c\nCCCG\n", "e.fa": b">d\nCCGA\n>e\nACAC\n"}
PAIRS = dict.fromkeys(PAIR_FILES.values(), b"1.0\ta\tb\tc\td\n0.0\te\tf\tg\th\n")
LAYOUTS = {  # where ListOps and Retrieval are below the folder that the user names
    "flat": ("", ""),
    "official": ("lra_release/listops-1000", "lra_release/tsv_data"),
    "unpacked archive": ("lra_release/lra_release/listops-1000", "lra_release/lra_release/tsv_data"),
    "S4": ("listops", "aan"),
    "S4, data": ("data/listops", "data/aan"),
    "Kaggle": ("listops/listops", "aan/aan"),
    "four levels": ("a/b/c/d", "a/b/c/e"),
}


def inside(folder, files):
    return {f"{folder}/{name}".lstrip("/"): data for name, data in files.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["folder", "packed", "archive"])
def test_both_tasks_are_found_in_every_layout(tmp_path, layout, kind):
    listops, pairs = LAYOUTS[layout]
    files = inside(listops, LISTOPS) | inside(pairs, PAIRS) | {"a/unrelated.txt": b"", "x/._basic_val.tsv": b""}
    if kind == "archive":
        root = tmp_path / "lra.gz"
        write_tar(root, files)
    else:
        root = write_folder(tmp_path / "root", files, packed=kind == "packed")
    splits = prepared(ListOps(release=root), tmp_path / "data")
    labels = {name: [label for label, _ in examples] for name, examples in splits.items()}
    assert labels == {"train": [9, 1], "val": [1], "test": [4]}
    assert prepared(Retrieval(release=root), tmp_path / "data")["test"] == [(1, b"c", b"d"), (0, b"g", b"h")]


def test_deeper_folders_and_folders_of_images_are_not_searched(tmp_path):
    root = write_folder(tmp_path / "root", inside("a/b/c/d/e", LISTOPS) | inside("imgs", LISTOPS))
    with pytest.raises(ValueError, match=r"root/basic_train.tsv is missing: .* up to four levels above it"):
        ListOps(release=root).prepare(tmp_path / "data")
    write_folder(root / "a", inside("b/c/d", {name: LISTOPS[name] for name in ("basic_train.tsv", "basic_val.tsv")}))
    with pytest.raises(ValueError, match=r"a/b/c/d/basic_test.tsv is missing"):
        ListOps(release=root).prepare(tmp_path / "data")


def test_a_linked_folder_is_found_and_a_loop_of_links_ends(tmp_path):
    write_folder(tmp_path / "disk", LISTOPS)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "listops").symlink_to(tmp_path / "disk")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    assert len(prepared(ListOps(release=tmp_path / "root"), tmp_path / "data")["train"]) == 2


COPIES = {  # second copy, and whether it has the same content
    "equal": (LISTOPS, True),
    "another split": (OTHER, False),
    "another size": (LISTOPS | {"basic_test.tsv": LISTOPS["basic_test.tsv"] + b"[MIN 1 2 ]\t1\n"}, False),
    "another order": (LISTOPS | {"basic_train.tsv": b"Source\tTarget\n[SM 5 6 ]\t1\n( [MAX 2 ) 9 ]\t9\n"}, False),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("kind", ["folder", "packed", "archive"])
def test_copies_with_other_content_are_listed_and_one_can_be_chosen(tmp_path, copy, kind):
    second, is_same = COPIES[copy]
    if kind == "packed":
        second = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in second.items()}
    places = ["lra_release/listops-1000", "lra_release/lra_release/listops-1000"]
    files = inside(places[0], LISTOPS) | inside(places[1], second)
    root = tmp_path / "root"
    if kind == "archive":
        write_tar(root, files)
    else:
        write_folder(root, files)
    if is_same:
        assert len(prepared(ListOps(release=root), tmp_path / "data")["train"]) == 2
        return
    with pytest.raises(ValueError, match="copies with different content") as caught:
        ListOps(release=root).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))
    choices = str(caught.value).partition("choose one: ")[2].split("; ")
    assert choices == [f"source.release={root}/{place}" for place in places]
    folders = set()
    for choice in choices:
        source = ListOps(release=choice.partition("=")[2])
        prepared(source, tmp_path / "data")
        folders.add(source.folder(tmp_path / "data"))
    assert len(folders) == 2


def test_a_file_that_comes_twice_in_an_archive(tmp_path):
    """As tar -u appends it: equal copies are one, others are named."""
    for change, message in ((b"", None), (b"[MIN 1 2 ]\t1\n", r"twice with different content: unpack it")):
        path = tmp_path / f"release{len(change)}.gz"
        files = [*LISTOPS.items(), ("basic_val.tsv", LISTOPS["basic_val.tsv"] + change)]
        write_tar(path, [(f"listops-1000/{name}", data) for name, data in files])
        if message is None:
            assert len(prepared(ListOps(release=path), tmp_path / "data")["val"]) == 1
        else:
            with pytest.raises(ValueError, match=message):
                ListOps(release=path).prepare(tmp_path / "data")


MARK = lines.BYTE_ORDER_MARK
TOLERATED = {
    "byte order mark": lambda data: MARK + data,
    "blank last line": lambda data: data + b"\n",
    "blank last lines": lambda data: data + b"\r\n\r\n \n",
    "no last line end": lambda data: data.rstrip(b"\n"),
    "line ends of Windows": lambda data: data.replace(b"\n", b"\r\n"),
    "mixed line ends": lambda data: data.replace(b"\n", b"\r\n", 1),
    "all of them": lambda data: MARK + data.replace(b"\n", b"\r\n", 1) + b"\n\n",
}


@pytest.mark.parametrize("change", TOLERATED)
def test_harmless_differences_are_tolerated(tmp_path, change):
    alter = TOLERATED[change]
    root = write_folder(tmp_path / "root", {name: alter(data) for name, data in (LISTOPS | PAIRS).items()})
    plain = write_folder(tmp_path / "plain", LISTOPS | PAIRS)
    for kind in (ListOps, Retrieval):
        expected = prepared(kind(release=plain), tmp_path / "data")
        assert prepared(kind(release=root), tmp_path / "data") == expected
    (tmp_path / "dog.fa").write_bytes(alter(b">a\nACGT\n"))
    (tmp_path / "donkey.fa").write_bytes(alter(b">a\nACG\nT\n>b\nACGT\n"))
    genome = Genome(dog=tmp_path / "dog.fa", donkey=tmp_path / "donkey.fa", longer_than=1)
    assert sum(map(len, prepared(genome, tmp_path / "data").values())) == 3


NAMED = {
    b"": "is empty",
    b"\n\n": "is empty",
    MARK: "is empty",
    b"<!DOCTYPE html>\n<html>": r"is a web page \(HTML\)",
    b"\n<HTML><head>": r"not an expression|the first line|is a web page",
    b"<?xml version='1.0'?><Error><Code>AccessDenied": "is an XML page",
    b"version https://git-lfs.github.com/spec/v1\n": "is a pointer of Git LFS",
    gzip.compress(b"Source", mtime=0): "is compressed by gzip",
    "Source\tTarget\n".encode("utf-16"): "is UTF-16 text",
    b"Source\tTarget\n": "holds no example",
    b"Source\tTarget\n1\t1\n\n1\t1\n": "line 3: not an expression",
}


@pytest.mark.parametrize("data", NAMED)
def test_what_is_no_table_is_named_with_its_file(tmp_path, data):
    root = write_folder(tmp_path / "root", LISTOPS | {"basic_val.tsv": data})
    with pytest.raises(ValueError, match=f"basic_val.tsv.*({NAMED[data]})") as caught:
        ListOps(release=root).prepare(tmp_path / "data")
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("data/*/"))


SLOW_READERS = {  # kind: files, and the source that reads them; see also the tests of formats and of Pathfinder
    "tables": (PAIRS, lambda root: Retrieval(release=root), ["new_aan_pairs.train", ".eval", ".test"]),
    "packed tables": (PAIRS, lambda root: Retrieval(release=root), ["new_aan_pairs.train", ".eval", ".test"]),
    "an archive": (PAIRS, lambda root: Retrieval(release=root / "lra_release.tar"), ["lra_release.tar"]),
    "reviews": (REVIEWS, lambda root: Text(archive=root), ["root"]),
    "sequences": (FASTA, lambda root: Genome(dog=root / "d.fa", donkey=root / "e.fa", longer_than=2), ["d.fa", "e.fa"]),
}


@pytest.mark.parametrize("kind", SLOW_READERS)
def test_the_rate_of_reading_is_logged_if_it_takes_long(tmp_path, capfd, monkeypatch, kind):
    files, source, names = SLOW_READERS[kind]
    root = write_folder(tmp_path / "root", files, packed=kind == "packed tables")
    if kind == "an archive":
        write_tar(root / "lra_release.tar", files, mode="w")
    for seconds in (1e3, 0):
        monkeypatch.setattr("lra.data.progress.SLOW", seconds)
        source(root).prepare(tmp_path / f"data{seconds}")
        pattern = r"(.*): [\d.]+ MB read at [\d,.]+ MB/s$"
        logged = [re.search(pattern, line) for line in capfd.readouterr().err.splitlines()]
        rates = [match[1] for match in logged if match]
        assert len(rates) == (0 if seconds else len(names))
    assert all(name in rate for name, rate in zip(names, rates, strict=True))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 100)
    release = Release(path=write_folder(tmp_path / "root", LISTOPS | {"basic_test.tsv": b"x" * 1000}), files=FILES)
    splits = release.splits(lambda rows, name, split: iter(list(rows)), silent)
    assert len(list(splits["val"])) == 2
    with pytest.raises(ValueError, match=r"basic_test.tsv, line 1: more than 100 bytes without a line end"):
        list(splits["test"])
