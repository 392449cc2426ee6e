"""The official Pathfinder images, from folders and from the release archive."""

import numpy as np
import pytest
from server import png, prepared, write_folder, write_tar

from data_prep.pathfinder.generator import Pathfinder, generate
from data_prep.pathfinder.listing import FOLDERS

COUNT, BATCH = 60, 25  # images, and those of a metadata file


def release(contour=14, **changes):
    """name -> bytes of a folder of one contour, and the images and labels in it. ``changes`` replace or add files."""
    images, labels = generate(size=32, count=COUNT, seed=3, contour=contour)
    files, lines = {}, {}
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        batch = 8 + i // BATCH  # 8, 9, 10: text order is not their order
        files[f"imgs/{batch}/sample_{i}.png"] = png(image)
        lines.setdefault(batch, []).append(f"imgs/{batch} sample_{i}.png {i} {label} 1.8 4 14 0.3 5 3.5 4 2")
    files |= {f"metadata/{batch}.npy": "\n".join(text).encode() + b"\n" for batch, text in lines.items()}
    return {name: data for name, data in (files | changes).items() if data is not None}, images, labels


def write_archive(path, files, top="lra_release/lra_release/"):
    """Images before and after the metadata, beside another contour, another size and another task."""
    other, _, _ = release(contour=9)
    inside = {f"{top}pathfinder32/{FOLDERS[9]}/{name}": data for name, data in other.items()}
    inside |= {f"{top}pathfinder64/{FOLDERS[14]}/{name}": data for name, data in other.items()}
    inside |= {f"{top}pathfinder32/{FOLDERS[14]}/{name}": files[name] for name in sorted(files, key=lambda n: n[::-1])}
    write_tar(path, inside | {f"{top}tsv_data/new_aan_pairs.test.tsv": b"0.0"})
    return path


@pytest.mark.parametrize("inner", ["", FOLDERS[14], f"pathfinder32/{FOLDERS[14]}"])
def test_every_image_of_a_folder_is_there_once(tmp_path, inner):
    files, images, labels = release()
    write_folder(tmp_path / "release" / inner, files)
    made = prepared(Pathfinder(release=tmp_path / "release"), tmp_path / "data")
    assert {name: len(rows) for name, rows in made.items()} == {"train": 48, "val": 6, "test": 6}
    expected = [(int(label), image.tobytes()) for image, label in zip(images, labels, strict=True)]
    assert sorted(row for rows in made.values() for row in rows) == sorted(expected)


@pytest.mark.parametrize("top", ["lra_release/lra_release/", "./lra_release/", ""])
def test_the_archive_gives_what_its_folder_gives(tmp_path, top):
    files, _, _ = release()
    folder = write_folder(tmp_path / "release", files)
    archive = write_archive(tmp_path / "lra_release.gz", files, top)
    expected = prepared(Pathfinder(release=folder), tmp_path / "a")
    assert prepared(Pathfinder(release=archive), tmp_path / "b") == expected
    (left,) = (path.name for path in (tmp_path / "b").iterdir() if path.suffix != ".lock")
    assert left == Pathfinder(release=archive).folder("").name


@pytest.mark.parametrize("packed", [False, True])
def test_empty_unreadable_and_missing_images_are_skipped_and_counted(tmp_path, packed, capfd):
    small = png(np.zeros((16, 16), np.uint8))
    changes = {"imgs/8/sample_3.png": b"", "imgs/8/sample_4.png": b"PNG", "imgs/9/sample_30.png": small}
    files, _, _ = release(**changes, **{"imgs/10/sample_55.png": None})
    path = write_archive(tmp_path / "lra_release.gz", files) if packed else write_folder(tmp_path / "release", files)
    splits = prepared(Pathfinder(release=path), tmp_path / "data")
    assert sum(map(len, splits.values())) == COUNT - 4
    lines = [line for line in capfd.readouterr().err.splitlines() if "skipped" in line]
    assert sum(int(line.split()[1]) for line in lines) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata/9.npy": b"imgs/9 sample_25.png 0\n"}, r"metadata/9.npy, line 1: not a folder, a file, a number"),
        ({"metadata/9.npy": b"imgs/9 sample_25.png 0 2\n"}, r"metadata/9.npy, line 1: not a folder, a file"),
        (dict.fromkeys([f"metadata/{n}.npy" for n in (8, 9, 10)]), r"has no metadata/\*.npy: source.release must be"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_releases(tmp_path, packed, changes, message):
    files, _, _ = release(**changes)
    path = write_archive(tmp_path / "lra_release.gz", files) if packed else write_folder(tmp_path / "release", files)
    with pytest.raises(ValueError, match=message):
        Pathfinder(release=path).prepare(tmp_path / "data")
    assert not [entry for entry in (tmp_path / "data").glob("*") if entry.suffix != ".lock"]


def test_a_cut_archive_and_a_folder_that_is_not_there_are_named(tmp_path):
    archive = write_archive(tmp_path / "lra_release.gz", release()[0])
    archive.write_bytes(archive.read_bytes()[:-2000])
    for path, message in ((archive, r"lra_release.gz is damaged"), (tmp_path / "nowhere", r"nowhere has no metadata")):
        with pytest.raises(ValueError, match=message):
            Pathfinder(release=path).prepare(tmp_path / "data")


def repeated(path, folders, files):
    """An archive whose folders come one after the other, each with these files."""
    pairs = []
    for folder, contents in zip(folders, files, strict=True):
        pairs += [(f"{folder}/{name}", data) for name, data in contents.items()]
    write_tar(path, pairs)
    return path


INNER = f"pathfinder32/{FOLDERS[14]}"
TWICE = {
    "an outer copy": ["lra_release", "lra_release/lra_release"],
    "a copy next to it": ["a", "b"],
    "a folder in a folder of the same name": ["pathfinder32", "pathfinder32/pathfinder32"],
    "repeated names": ["lra_release", "lra_release"],
    "three copies": ["", "a", "a/b"],
}


@pytest.mark.parametrize("case", TWICE)
@pytest.mark.parametrize("packed", [False, True])
def test_images_that_come_twice_are_read_once_and_right(tmp_path, case, packed):
    files, images, labels = release()
    tops = TWICE[case]
    if packed:
        path = repeated(tmp_path / "lra.gz", [f"{top}/{INNER}".lstrip("/") for top in tops], [files] * len(tops))
    else:
        path = tmp_path / "root"
        for top in tops:
            write_folder(path / top / INNER, files)
    splits = prepared(Pathfinder(release=path), tmp_path / "data")
    expected = [(int(label), image.tobytes()) for image, label in zip(images, labels, strict=True)]
    assert sorted(row for rows in splits.values() for row in rows) == sorted(expected)


CHANGED = {
    "one label": {"metadata/8.npy": b"imgs/8 sample_0.png 0 0\n" * 25},
    "one image": {"imgs/8/sample_3.png": png(np.eye(32, dtype=np.uint8))},
    "an image is missing": {"imgs/8/sample_3.png": None},
    "an image is empty": {"imgs/8/sample_3.png": b""},
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("packed", [False, True])
def test_copies_with_other_images_are_an_error_that_lists_them(tmp_path, change, packed):
    files, other = release()[0], release(**CHANGED[change])[0]
    tops = ["lra_release", "lra_release/lra_release"]
    if packed:
        path = repeated(tmp_path / "lra.gz", [f"{top}/{INNER}" for top in tops], [files, other])
    else:
        path = tmp_path / "root"
        for top, contents in zip(tops, (files, other), strict=True):
            write_folder(path / top / INNER, contents)
    with pytest.raises(ValueError, match=r"2 copies with different content were found; choose one: ") as caught:
        Pathfinder(release=path).prepare(tmp_path / "data")
    choices = [part.partition("=")[2] for part in str(caught.value).partition("choose one: ")[2].split("; ")]
    assert choices == [f"{path}/{top}/{INNER}" for top in tops]
    first, second = (Pathfinder(release=choice) for choice in choices)
    assert len(prepared(first, tmp_path / "data")["train"]) == 48
    second.prepare(tmp_path / "data")
    assert first.folder(tmp_path / "data") != second.folder(tmp_path / "data")


def test_a_name_with_two_contents_in_an_archive_is_named(tmp_path):
    files, other = release()[0], release(**CHANGED["one image"])[0]
    path = repeated(tmp_path / "lra.gz", [INNER, INNER], [files, other])
    with pytest.raises(ValueError, match=r"imgs/8/sample_3.png is in the archive twice with different content"):
        Pathfinder(release=path).prepare(tmp_path / "data")


def test_a_set_of_mostly_equal_images_is_refused(tmp_path):
    image = release()[0]["imgs/8/sample_3.png"]
    names = [name for name in release()[0] if name.startswith("imgs/")]
    files, _, _ = release(**dict.fromkeys(names[:40], image))
    for path in (write_folder(tmp_path / "root", files), write_archive(tmp_path / "lra.gz", files)):
        with pytest.raises(ValueError, match=r"only 1[0-9] of 48 images are different, so these are not the images"):
            Pathfinder(release=path).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))


STEPS = {  # what happens to the folder between two preparations, and how many images there are then
    "completed": (dict.fromkeys(["imgs/8/sample_3.png", "imgs/9/sample_30.png"]), {}, COUNT - 2, COUNT),
    "an empty file is replaced": ({"imgs/8/sample_3.png": b""}, {}, COUNT - 1, COUNT),
    "one image is inverted": ({}, {"imgs/8/sample_3.png": png(255 - np.eye(32, dtype=np.uint8))}, COUNT, COUNT),
    "one label is changed": ({}, {"metadata/10.npy": b"imgs/10 sample_50.png 50 1\n"}, COUNT, 51),
    "files of macOS": ({}, {"metadata/._8.npy": b"\0\5", "imgs/8/._sample_3.png": b"\0"}, COUNT, COUNT),
    "blank last lines": ({"metadata/10.npy": None}, {"metadata/10.npy": b"imgs/10 sample_50.png 50 1\n\n"}, 50, 51),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_folder_is_identified_by_its_pixels(tmp_path, step):
    before, after, first, second = STEPS[step]
    root = write_folder(tmp_path / "root", release(**before)[0])
    counts, folders = [], []
    for changes in ({}, release()[0] | after):
        write_folder(root, changes)
        source = Pathfinder(release=root)
        counts.append(sum(map(len, prepared(source, tmp_path / "data").values())))
        folders.append(source.folder(tmp_path / "data"))
    assert counts == [first, second] and (folders[0] == folders[1]) == (step == "files of macOS")


def test_several_threads_decode_what_one_decodes(tmp_path, monkeypatch):
    changes = {"imgs/8/sample_3.png": b"", "imgs/8/sample_4.png": b"PNG", "imgs/10/sample_55.png": None}
    root = write_folder(tmp_path / "rel\nease", release(**changes)[0])
    contents = []
    for workers in (1, 3):
        monkeypatch.setattr("data_prep.pathfinder.generator.BLOCK", 7)
        folder = Pathfinder(release=root).prepare(tmp_path / str(workers), workers=workers)
        contents.append({path.name: path.read_bytes() for path in folder.glob("*.bin")})
    assert contents[0] == contents[1]
