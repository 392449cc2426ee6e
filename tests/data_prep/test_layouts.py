"""Releases in common layouts: folders, gzipped files, archives, duplicate copies, and Pathfinder's images."""

import gzip
import pickle

import numpy as np
import pytest
import server
from server import INNER, assert_rejected, image_files, nest, png, prepared, write_folder, write_release, write_tar

from data_prep.listops import ListOps
from data_prep.pathfinder.generator import Pathfinder
from data_prep.pathfinder.listing import FOLDERS
from data_prep.retrieval import FILES as PAIR_FILES
from data_prep.retrieval import Retrieval

SAMPLE = "imgs/8/sample_3.png"
RETRIEVAL = dict.fromkeys(PAIR_FILES.values(), b"1.0\ta\tb\tc\td\n0.0\te\tf\tg\th\n")
# Folders of ListOps and of Retrieval in each layout.
LAYOUTS = {
    "flat": ("", ""),
    "official": ("lra_release/listops-1000", "lra_release/tsv_data"),
    "S4": ("listops", "aan"),
    "Kaggle": ("listops/listops", "aan/aan"),
    "four levels": ("a/b/c/d", "a/b/c/e"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["folder", "packed", "archive"])
def test_listops_and_retrieval_are_found_in_each_layout(tmp_path, layout, kind):
    listops, pairs = LAYOUTS[layout]
    other_files = {"a/unrelated.txt": b"", "x/._basic_val.tsv": b""}
    root = write_release(tmp_path / "lra.gz", kind, other_files, nest(listops, server.LISTOPS) | nest(pairs, RETRIEVAL))
    splits = prepared(ListOps(release=root), tmp_path / "data")
    labels = {name: [label for label, _ in examples] for name, examples in splits.items()}
    assert labels == {"train": [9, 1], "val": [1], "test": [4]}
    assert prepared(Retrieval(release=root), tmp_path / "data")["test"] == [(1, b"c", b"d"), (0, b"g", b"h")]


def test_files_of_another_task_do_not_hide_the_release(tmp_path):
    files = nest("lra/listops", server.LISTOPS) | nest("lra/tsv_data", RETRIEVAL) | nest(f"lra/{INNER}", image_files())
    root = write_folder(tmp_path / "root", files | {"imdb/train/data-00000-of-00001.arrow": b""})
    packed = write_folder(tmp_path / "packed", {"imdb/train/data-00000-of-00001.arrow": b""})
    write_tar(packed / "lra_release.gz", files)
    for task in (ListOps, Retrieval, Pathfinder):
        expected = prepared(task(release=root / "lra"), tmp_path / "data")
        assert prepared(task(release=root), tmp_path / "data") == expected
        assert prepared(task(release=packed), tmp_path / "packed-data") == expected


def test_equal_tables_may_be_compressed_differently(tmp_path):
    for level in (1, 9):
        packed = {f"{name}.gz": gzip.compress(text, level, mtime=level) for name, text in server.LISTOPS.items()}
        write_folder(tmp_path / f"root/{level}", packed)
    assert len(prepared(ListOps(release=tmp_path / "root"), tmp_path / "data")["train"]) == 2


def test_search_skips_fifth_level_and_image_folders(tmp_path):
    root = write_folder(tmp_path / "root", nest("a/b/c/d/e", server.LISTOPS) | nest("imgs", server.LISTOPS))
    message = r"root/basic_train.tsv is missing: .* up to four levels above it"
    assert_rejected(ListOps(release=root), tmp_path / "data", message)


def test_search_follows_symlinks_and_survives_symlink_loop(tmp_path):
    write_folder(tmp_path / "disk", server.LISTOPS)
    (tmp_path / "root").mkdir()
    for name, target in (("listops", tmp_path / "disk"), ("loop", tmp_path / "root"), ("self", "self")):
        (tmp_path / "root" / name).symlink_to(target)
    assert len(prepared(ListOps(release=tmp_path / "root"), tmp_path / "data")["train"]) == 2


def flip_first_label(name):
    """A metadata file of ``image_files`` in which only the label of the first image differs."""
    words = image_files()[name].split(b" ")
    words[3] = b"%d" % (1 - int(words[3]))
    return {name: b" ".join(words)}


def write_archive(path, files, top="lra_release/lra_release/"):
    """Write an archive in mixed order, with files of another contour length, another size and another task."""
    other_files = image_files(contour=9)
    members = nest(f"pathfinder32/{FOLDERS[9]}", other_files) | nest(f"pathfinder64/{FOLDERS[14]}", other_files)
    members |= nest(INNER, {name: files[name] for name in sorted(files, key=lambda name: name[::-1])})
    members |= {"tsv_data/new_aan_pairs.test.tsv": b"0.0"}
    write_tar(path, {f"{top}{name}": data for name, data in members.items()})
    return path


def write_images(folder, packed, files):
    return write_archive(folder / "lra_release.gz", files) if packed else write_folder(folder / "release", files)


@pytest.mark.parametrize("inner", ["", FOLDERS[14], INNER])
def test_splits_hold_each_image_of_folder_exactly_once(tmp_path, monkeypatch, inner):
    monkeypatch.setattr("data_prep.pathfinder.generator.BLOCK", 7)
    write_folder(tmp_path / "release" / inner, image_files())
    splits = prepared(Pathfinder(release=tmp_path / "release"), tmp_path / "data")
    assert {name: len(split) for name, split in splits.items()} == {"train": 48, "val": 6, "test": 6}
    assert sorted(example for split in splits.values() for example in split) == sorted(server.labelled_images())


@pytest.mark.parametrize("top", ["lra_release/lra_release/", "./lra_release/", ""])
def test_archive_gives_same_splits_as_unpacked_folder(tmp_path, top):
    folder = write_folder(tmp_path / "release", image_files())
    source = Pathfinder(release=write_archive(tmp_path / "lra_release.gz", image_files(), top))
    assert prepared(source, tmp_path / "b") == prepared(Pathfinder(release=folder), tmp_path / "a")
    assert pickle.loads(pickle.dumps(source)).choices == source.choices
    assert [path.name for path in (tmp_path / "b").glob("*/")] == [source.folder("").name]
    # The folder of the archive, with nothing unpacked in it.
    write_folder(tmp_path / "packed", {"lra_release.gz": (tmp_path / "lra_release.gz").read_bytes()})
    assert Pathfinder(release=tmp_path / "packed").folder("") == source.folder("")


@pytest.mark.parametrize("packed", [False, True])
def test_empty_invalid_and_missing_images_are_skipped_and_counted(tmp_path, packed, capfd):
    small, deep = png(np.zeros((16, 16), np.uint8)), png(np.full((32, 32), 300, np.uint16))
    changes = {SAMPLE: b"", "imgs/8/sample_4.png": b"PNG", "imgs/9/sample_30.png": small, "imgs/9/sample_31.png": deep}
    path = write_images(tmp_path, packed, image_files(**changes, **{"imgs/10/sample_55.png": None}))
    splits = prepared(Pathfinder(release=path), tmp_path / "data")
    assert sum(map(len, splits.values())) == len(server.labelled_images()) - 5
    lines = [line for line in capfd.readouterr().err.splitlines() if "skipped" in line]
    assert sum(int(line.split()[1]) for line in lines) == 5


def test_folder_of_another_contour_length_is_rejected(tmp_path):
    folder = write_folder(tmp_path / FOLDERS[9], image_files(contour=9))
    assert_rejected(Pathfinder(release=folder), tmp_path / "data", "holds images of contour 9: add source.contour=9")


DAMAGED = {
    r"metadata/9.npy, line 1: not a folder, a file": {"metadata/9.npy": b"imgs/9 sample_25.png 0 2\n"},
    r"only 1[0-9] of 48 images are different, so these are not the images": server.EQUAL_IMAGES,
}


@pytest.mark.parametrize("message", DAMAGED)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_release_error_names_file_and_reason(tmp_path, packed, message):
    path = write_images(tmp_path, packed, image_files(**DAMAGED[message]))
    assert_rejected(Pathfinder(release=path), tmp_path / "data", message)


def test_truncated_archive_or_missing_folder_error_names_path(tmp_path):
    archive = write_archive(tmp_path / "lra_release.gz", image_files())
    archive.write_bytes(archive.read_bytes()[:-2000])
    assert_rejected(Pathfinder(release=archive), tmp_path / "data", r"lra_release.gz is damaged")
    assert_rejected(Pathfinder(release=tmp_path / "nowhere"), tmp_path / "data", r"nowhere has no metadata")


# Folder and files of each task, and changes that make a copy another data set. The changed image has as many bytes.
INNER_FOLDER = {ListOps: "listops-1000", Pathfinder: INNER}
FILES = {ListOps: server.LISTOPS, Pathfinder: image_files()}
CHANGES = {
    ListOps: [{"basic_val.tsv": b"Source\tTarget\n[MIN 3 2 ]\t2\n"}],
    Pathfinder: [flip_first_label("metadata/8.npy"), {SAMPLE: image_files()[SAMPLE][:-1] + b"x"}],
}
RELEASES = [(ListOps, kind) for kind in ("folder", "packed", "archive")]
RELEASES += [(Pathfinder, kind) for kind in ("folder", "archive")]


@pytest.mark.parametrize("tops", [("lra_release", "lra_release/lra_release"), ("a", "a"), ("", "a", "a/b")])
@pytest.mark.parametrize(("task", "kind"), RELEASES)
def test_identical_copies_are_read_as_one(tmp_path, task, kind, tops):
    files = FILES[task]
    single_copy = write_folder(tmp_path / "plain", files)
    root = write_release(tmp_path / "root", kind, *(nest(f"{top}/{INNER_FOLDER[task]}", files) for top in tops))
    expected = prepared(task(release=single_copy), tmp_path / "plain-data")
    assert prepared(task(release=root), tmp_path / "data") == expected


@pytest.mark.parametrize(("task", "kind"), RELEASES)
def test_error_for_differing_copies_lists_paths_that_work(tmp_path, task, kind):
    copies = [f"{top}/{INNER_FOLDER[task]}" for top in ("lra_release", "lra_release/lra_release")]
    for number, changes in enumerate(CHANGES[task]):
        files = [FILES[task], FILES[task] | changes]
        root = write_release(tmp_path / f"root{number}", kind, *map(nest, copies, files))
        choices = "; ".join(f"source.release={root}/{copy}" for copy in copies)
        message = f"2 copies with different content were found; choose one: {choices}$"
        data = tmp_path / f"data{number}"
        assert_rejected(task(release=root), data, message)
        assert len({task(release=root / copy).prepare(data) for copy in copies}) == 2


@pytest.mark.parametrize("task", CHANGES)
def test_archive_member_with_two_contents_raises(tmp_path, task):
    """`tar -u` appends a changed file under the same name."""
    copies = [nest(INNER_FOLDER[task], files) for files in (FILES[task], CHANGES[task][0])]
    root = write_release(tmp_path / "lra.gz", "archive", *copies)
    assert_rejected(task(release=root), tmp_path / "data", "twice with different content")


# Changes of the folder between two preparations.
LATER_CHANGES = {
    "one image is empty": {SAMPLE: b""},
    "one image is replaced": {SAMPLE: png(255 - np.eye(32, dtype=np.uint8))},
    "one label is changed": flip_first_label("metadata/10.npy"),
    "files of macOS": {"metadata/._8.npy": b"\0\5", "imgs/8/._sample_3.png": b"\0"},
}


@pytest.mark.parametrize("change", LATER_CHANGES)
def test_data_set_folder_depends_on_pixels_and_labels(tmp_path, change):
    root = write_folder(tmp_path / "root", image_files())
    before = Pathfinder(release=root).prepare(tmp_path / "data")
    write_folder(root, LATER_CHANGES[change])
    assert (before == Pathfinder(release=root).prepare(tmp_path / "data")) == (change == "files of macOS")
