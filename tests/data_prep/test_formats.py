"""Copies of the tasks in third-party formats: reading generated samples, damaged files and hostile pickles."""

import copy
import gzip
import io
import os
import pickle
import shutil
from itertools import islice

import numpy as np
import pytest
from server import CIFAR, RECORDS, assert_error, assert_rejected, cifar, imdb, png, prepared, write_folder, write_tar

from data_prep.expressions import decode
from data_prep.formats import safe_pickle
from data_prep.formats.detect import open_copy
from data_prep.formats.lra_pickle import PARTS
from data_prep.image import Image
from data_prep.listops import ListOps
from data_prep.pathfinder.generator import Pathfinder
from data_prep.retrieval import Retrieval
from data_prep.text import Text

NESTED = [{"a": np.arange(6, dtype=">i4").reshape(2, 3), "b": np.float32(1.5)}, {"c": (1, None, "t", b"u", [True])}]
TEXTS = [(bytes([65 + i, 0, 255, 32]) * (1 + i % 3), bytes([97 + i] * 5), i % 2) for i in range(30)]
PIXEL_LINES = [(bytes(range(256)) * 4 if i % 3 else bytes([i]) * 1024, i % 2) for i in range(30)]


class Hostile:
    """An object whose pickle runs a shell command when pickle.load reads it."""

    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("protocol", range(6))
def test_safe_pickle_loads_builtins_and_arrays_like_pickle(protocol):
    payload = io.BytesIO(pickle.dumps(copy.deepcopy(NESTED) + NESTED, protocol=protocol))
    for loaded in (safe_pickle.load(payload), list(safe_pickle.items(io.BytesIO(payload.getvalue())))):
        assert len(loaded) == 4 and loaded[1] == NESTED[1] and loaded[0]["b"] == 1.5
        assert np.array_equal(loaded[0]["a"], NESTED[0]["a"]) and loaded[0]["a"].dtype == ">i4"
    assert np.array_equal(safe_pickle.load(io.BytesIO(pickle.dumps(np.eye(3).T[:2], protocol=protocol))), np.eye(3)[:2])


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: [{"input_ids_0": x}], lambda x: np.array([x], object)])
def test_hostile_pickle_raises_without_executing_code(protocol, wrap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payload = pickle.dumps(wrap(Hostile()), protocol=protocol)
    for read in (safe_pickle.load, lambda file: list(safe_pickle.items(file))):
        with pytest.raises(safe_pickle.UnsafePickle, match=r"names \w+.system|array of '(O8|\|?O)'"):
            read(io.BytesIO(payload))
    assert not (tmp_path / "hacked").exists()


CODES = [b"cbuiltins\neval\n(S'1'\ntR.", b"(i__main__\nX\n.", b"\x80\x02cnumpy\nndarray\n)\x81.", b"c", b"", b"]."[1:]]


@pytest.mark.parametrize("code", [*CODES, b"\x80\x04]\x94h\x00a.", b"cnumpy\ndtype\n.", pickle.dumps(NESTED)[:-9]])
def test_damaged_or_unsafe_pickle_raises(code):
    with pytest.raises(safe_pickle.UnsafePickle, match=r"\A[^\n]+\Z"):
        safe_pickle.load(io.BytesIO(code))


def listops(n=30):
    return list(islice(ListOps(min_length=4, max_length=60, max_depth=4, max_args=4, seed=3).examples(), n))


def split_examples(examples):
    return {"train": examples[:-10], "val": examples[-10:-5], "test": examples[-5:]}


def write_pickles(folder, stem, examples, *, prefix="lra-", width=64):
    """Write the splits of examples (ids of each text, label), padded with zeros."""
    for part, subset in zip(PARTS.values(), split_examples(examples).values(), strict=True):
        padded = []
        for *texts, label in subset:
            arrays = [np.pad(np.asarray(ids, np.int32), (0, width - len(ids))) for ids in texts]
            padded.append({f"input_ids_{i}": ids for i, ids in enumerate(arrays)} | {"label": np.int64(label)})
        (folder / f"{prefix}{stem}.{part}.pickle").write_bytes(pickle.dumps(padded))


@pytest.mark.parametrize("prefix", ["lra-", ""])
def test_listops_pickles_recover_permuted_token_ids(tmp_path, prefix):
    examples = listops(420)
    table = np.concatenate([[0], np.random.default_rng(1).permutation(15) + 1])
    write_pickles(tmp_path, "listops", [(table[ids], answer) for ids, answer in examples], prefix=prefix)
    # Ids are recovered from the smallest file, so all files must be large: each is a copy of train.
    train = (tmp_path / f"{prefix}listops.train.pickle").read_bytes()
    for part in PARTS.values():
        (tmp_path / f"{prefix}listops.{part}.pickle").write_bytes(train)
    expected = [(answer, ids.tobytes()) for ids, answer in examples[:-10]]
    source = ListOps(release=tmp_path)
    assert prepared(source, tmp_path / "data") == dict.fromkeys(("train", "val", "test"), expected)
    # A file of the same size that was written later may have other content.
    stamp = source.stamp()
    (tmp_path / f"{prefix}listops.test.pickle").touch()
    assert source.stamp() != stamp


def test_listops_pickles_reject_invalid_expressions_and_labels(tmp_path):
    examples = listops()
    write_pickles(tmp_path, "listops", [(ids[ids != 15], answer) for ids, answer in examples])
    message = "no closing brackets, which the preparation script dropped"
    assert_rejected(ListOps(release=tmp_path), tmp_path / "data", message)
    ids, answer = examples[3]
    examples[3] = ids, (answer + 1) % 10
    write_pickles(tmp_path, "listops", examples)
    message = r"train.pickle, example 4: .* evaluates to \d, its label is \d"
    assert_rejected(ListOps(release=tmp_path), tmp_path / "data", message)


def test_pickles_of_texts_and_images_are_read(tmp_path):
    shifted_texts = [(np.frombuffer(a, np.uint8) + np.int32(1), np.frombuffer(b, np.uint8) + 1, y) for a, b, y in TEXTS]
    write_pickles(tmp_path, "retrieval", shifted_texts)
    write_pickles(tmp_path, "text", [(a, y) for a, _, y in shifted_texts])
    images = [(np.full(1024, i), i % 2) for i in range(30)]
    write_pickles(tmp_path, "image", images, width=1024)
    write_pickles(tmp_path, "pathfinder32-curv_contour_length_14", images, width=1024)
    data = tmp_path / "data"
    assert prepared(Retrieval(release=tmp_path), data) == split_examples([(y, a, b) for a, b, y in TEXTS])
    assert prepared(Text(archive=tmp_path), data) == split_examples([(y, a) for a, _, y in TEXTS])
    pixels = split_examples([(y, bytes([i]) * 1024) for i, (_, y) in enumerate(images)])
    assert prepared(Image(archive=tmp_path), data) == prepared(Pathfinder(release=tmp_path), data) == pixels
    drawn = [pixels["train"][i] for i in sorted(np.random.RandomState(0).permutation(len(pixels["train"]))[:3])]
    assert prepared(Image(archive=tmp_path, train=3), data) == pixels | {"train": drawn}
    assert_error(r"image.test.pickle: 6 examples requested, 5 available", Image(archive=tmp_path, test=6).prepare, data)
    # The validation set of an export with protocol=paper is its test set.
    shutil.copy(tmp_path / "lra-text.test.pickle", tmp_path / "lra-text.dev.pickle")
    assert_rejected(Text(archive=tmp_path, hold_out=2), tmp_path / "none", "its validation set is its test set")


def test_data_of_moved_copy_are_found(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    write_pickles(copy, "text", [(np.full(3, 1 + i), i % 2) for i in range(30)])
    expected = prepared(Text(archive=copy), tmp_path / "data")
    copy.rename(tmp_path / "moved")
    assert prepared(Text(archive=copy), tmp_path / "data") == expected


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"label": 1}, "example 1: not a dictionary with input_ids_0 and label"),
        ({"input_ids_0": np.array([1, 300]), "label": 1}, "example 1: ids from 1 to 300, where 1 to 256 are valid"),
        ({"input_ids_0": np.ones((2, 2)), "label": 1}, "input_ids_0 must be a sequence of whole numbers"),
        ({"input_ids_0": [1, 2], "label": 7}, "the label must be a whole number from 0 to 1, got 7"),
        ({"input_ids_0": [1, 2], "label": float("inf")}, "the label must be a whole number from 0 to 1, got inf"),
        ({"input_ids_0": Hostile(), "label": 1}, "names posix.system; .*; nothing in it was executed"),
    ],
)
def test_invalid_pickled_example_error_names_file_and_reason(record, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in PARTS.values():
        (tmp_path / f"lra-text.{part}.pickle").write_bytes(pickle.dumps([record]))
    assert_rejected(Text(archive=tmp_path), tmp_path / "data", f"lra-text.train.pickle.*{message}")
    assert not (tmp_path / "hacked").exists()
    (tmp_path / "lra-text.dev.pickle").unlink()
    assert_error(r"lacks lra-text.dev.pickle: all three of train, dev and test are needed", Text, archive=tmp_path)


def test_extracted_reviews_match_archive(tmp_path):
    archive = imdb(tmp_path / "imdb.tar.gz")
    shutil.unpack_archive(archive["archive"], tmp_path, filter="data")
    options = {"hold_out": 10, "train": 20}
    expected = prepared(Text(**archive, **options), tmp_path / "data")
    for path in (tmp_path, tmp_path / "aclImdb"):
        assert prepared(Text(archive=path, **options), tmp_path / "copy") == expected
    original_folder = Text(archive=tmp_path).folder("data")
    (tmp_path / "aclImdb" / "test" / "pos" / "3_7.txt").write_text("changed")
    assert Text(archive=tmp_path).folder("data") != original_folder
    (tmp_path / "aclImdb" / "test" / "pos" / "3_7.txt").write_text(" \n")
    assert_rejected(Text(archive=tmp_path), tmp_path / "bad", "test/pos/3_7.txt is empty")
    for path in (tmp_path / "aclImdb" / "train" / "neg").glob("*.txt"):
        path.unlink()
    assert_error(r"neg holds no <id>_<rating>.txt: the folder of reviews is incomplete", Text, archive=tmp_path)


def python_2_pickle(images, labels):
    """A CIFAR batch as pickled by Python 2: byte strings (opcodes T and U), one of which holds the pixels."""
    text = lambda data: b"T" + len(data).to_bytes(4, "little") + data
    label_opcodes = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"K" + bytes([len(labels)]) + b"M\x00\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01" + shape
    array += b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    array += text(images.tobytes()) + b"tb"
    return b"\x80\x02}(U\x06labels](" + label_opcodes + b"eU\x04data" + array + b"u."


def python_batches():
    """The files of CIFAR-10's Python version, half of them pickled in the style of Python 2."""
    files = {}
    for number, (name, examples) in enumerate(RECORDS.items()):
        labels = examples[:, 0].tolist()
        python_3_pickle = pickle.dumps({b"labels": labels, b"data": examples[:, 1:], b"filenames": ["x"]})
        content = python_3_pickle if number % 2 else python_2_pickle(examples[:, 1:], labels)
        files[f"cifar-10-batches-py/{name}"] = content
    return files


@pytest.mark.parametrize("grey", ["tensorflow", "pillow"])
def test_other_cifar_formats_match_binary_archive(tmp_path, grey):
    binary = cifar(tmp_path / "cifar.tar.gz")
    expected = prepared(Image(**binary, grey=grey, hold_out=5), tmp_path / "data")
    write_tar(tmp_path / "python.gz", python_batches())
    # macOS writes the attributes of the folder before the folder; tar lists the folder that it packs first.
    write_tar(tmp_path / "mac.gz", {"._cifar-10-batches-py": b"\0\5"} | python_batches())
    write_folder(tmp_path / "py", python_batches())
    shutil.make_archive(tmp_path / "dot", "gztar", tmp_path / "py")
    shutil.unpack_archive(binary["archive"], tmp_path / "bin", filter="data")
    names = ("python.gz", "mac.gz", "dot.tar.gz", "py", "py/cifar-10-batches-py", "bin", "bin/cifar-10-batches-bin")
    for name in names:
        assert prepared(Image(archive=tmp_path / name, grey=grey, hold_out=5), tmp_path / "copy") == expected


DAMAGED_BATCHES = {
    "names posix.system; .*; nothing in it was executed": pickle.dumps({"data": Hostile(), "labels": [1]}),
    "its data are not 3072 bytes for each label": pickle.dumps({"data": np.zeros((1, 3072), int), "labels": [1]}),
    "data are not 3072 bytes for each label": pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": 1}),
    "its labels are not bytes": pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [300]}),
    "it lacks data or labels": pickle.dumps({"data": [], "fine_labels": [1]}),
    "damaged or not a pickle": python_batches()["cifar-10-batches-py/data_batch_2"][:5000],
}


@pytest.mark.parametrize("message", DAMAGED_BATCHES)
def test_damaged_or_missing_cifar_batch_error_names_batch(tmp_path, message):
    folder = write_folder(tmp_path / "python", python_batches()) / "cifar-10-batches-py"
    (folder / "data_batch_2").write_bytes(DAMAGED_BATCHES[message])
    assert_rejected(Image(archive=folder), tmp_path / "bad", f"data_batch_2.*{message}")
    (folder / "data_batch_2").unlink()
    assert_error("lacks data_batch_2", Image, archive=folder)
    incomplete = python_batches()
    del incomplete["cifar-10-batches-py/data_batch_5"]
    archive = write_tar(tmp_path / "python.tar.gz", incomplete)["archive"]
    assert_rejected(Image(archive=archive), tmp_path / "bad", "python.tar.gz .* lacks cifar-10-batches-py/data_batch_5")


@pytest.mark.parametrize("save", [pickle.dump, lambda array, file: np.save(file, array)])
def test_file_that_is_no_npz_error_names_file(tmp_path, save):
    for split in ("train", "val", "test"):
        with open(tmp_path / f"{split}.npz", "wb") as file:
            save(np.zeros(3, np.uint8), file)
    assert_rejected(Text(archive=tmp_path), tmp_path / "data", "train.npz is damaged or not an .npz file")
    tokens = {"tokens": np.zeros(3, np.uint8)}
    for arrays, message in (
        (tokens | {"labels": np.array([None])}, ": Object arrays cannot be loaded"),
        (tokens | {"labels": np.array(0)}, ": labels must have the"),
        ({}, " has no tokens, labels: it needs the arrays tokens, offsets, labels"),
    ):
        np.savez(tmp_path / "train.npz", offsets=np.array([0, 3]), **arrays)
        assert_rejected(Text(archive=tmp_path), tmp_path / "data", f"train.npz{message}")
    members = write_folder(tmp_path / "members", dict.fromkeys(("tokens", "offsets", "labels"), b"no array"))
    shutil.make_archive(tmp_path / "train", "zip", members)
    (tmp_path / "train.zip").rename(tmp_path / "train.npz")
    assert_rejected(Text(archive=tmp_path), tmp_path / "data", "train.npz: labels must have the")


def write_pixel_lines(folder, examples):
    for part, subset in zip(("train", "valid", "test"), split_examples(examples).values(), strict=True):
        pixels = "".join(" ".join(map(str, image)) + "\n" for image, _ in subset)
        labels = "".join(f"{label}\n" for _, label in subset)
        write_folder(folder, {f"input/{part}.src": pixels.encode(), f"label/{part}.label": labels.encode()})


def test_mega_pixel_files_are_read(tmp_path):
    write_pixel_lines(tmp_path, PIXEL_LINES)
    expected = split_examples([(label, image) for image, label in PIXEL_LINES])
    assert prepared(Pathfinder(release=tmp_path), tmp_path / "data") == expected
    write_folder(tmp_path, python_batches())
    assert prepared(Image(archive=tmp_path), tmp_path / "data") == expected
    assert_rejected(Pathfinder(release=tmp_path, contour=6), tmp_path / "bad", "metadata")
    assert open_copy(tmp_path, "text") is None
    (tmp_path / "label" / "valid.label").unlink()
    assert_error(r"valid.label is missing: an .src and a .label", Pathfinder, release=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("input/train.src", b"1 2 3\n", "train.src, line 1: 3 pixels instead of 1024"),
        ("input/train.src", b"1 x\n", "train.src, line 1: not numbers separated by spaces"),
        ("input/train.src", b"9" * 20 + b"\n", "train.src, line 1: not numbers separated by spaces"),
        ("input/train.src", b"256 " * 1024, "line 1: grey levels from 256 to 256, where 0 to 255 are valid"),
        ("label/train.label", b"0\n", "train.src and .*train.label have different numbers of lines"),
        ("label/train.label", b"cat\n", "train.label, line 1: the label must be a whole number from 0 to 1, got 'cat'"),
    ],
)
def test_damaged_mega_pixel_file_error_names_line(tmp_path, name, content, message):
    write_pixel_lines(tmp_path, PIXEL_LINES)
    write_folder(tmp_path, {name: content})
    assert_rejected(Pathfinder(release=tmp_path), tmp_path / "bad", message)


def image_cell(pixels):
    return {"bytes": png(pixels.astype(np.uint8)), "path": None}


def write_columns(folder, splits, names, suffix="parquet"):
    """Write the examples of each split to a file in the parquet, arrow stream or arrow file format."""
    arrow = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    import pyarrow.parquet

    for split, examples in splits.items():
        part = "validation" if split == "val" else split
        table = arrow.table([arrow.array(list(values)) for values in zip(*examples, strict=True)], names=names)
        file = folder / (f"{part}-0-of-1.parquet" if suffix == "parquet" else f"{part}/data-0-of-1.arrow")
        file.parent.mkdir(parents=True, exist_ok=True)
        if suffix == "parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            open_stream = arrow.ipc.new_stream if suffix == "stream" else arrow.ipc.new_file
            with open_stream(file, table.schema) as writer:
                writer.write_table(table)
    return folder


@pytest.mark.parametrize("suffix", ["parquet", "stream", "file"])
def test_parquet_and_arrow_columns_are_read_for_each_task(tmp_path, suffix):
    data = tmp_path / "data"
    write = lambda name, examples, names: write_columns(tmp_path / name, split_examples(examples), names, suffix)
    ascii_texts = [(a.decode("latin-1"), b.decode(), y) for a, b, y in TEXTS]
    expected_pairs = [(y, a.encode(), b.encode()) for a, b, y in ascii_texts]
    pairs = write("pairs", ascii_texts, ["left", "right", "cites"])
    source = Retrieval(release=pairs, columns=["left", "right", "cites"])
    assert prepared(source, data) == split_examples(expected_pairs)
    assert source.folder("") != Retrieval(release=pairs, columns=["right", "left", "cites"]).folder("")
    # Columns are chosen and splits are looked for when they are read, also of a smaller budget.
    without_val = write_columns(tmp_path / "part", {"train": ascii_texts, "test": ascii_texts}, list("abc"), suffix)
    source = Retrieval(release=without_val, columns=list("abc"), train=1, val=1)
    assert_rejected(source, tmp_path / "bad", "part has no .parquet or .arrow file of val; its name begins with val")
    message = r"columns left, right, cites: name them by source.columns=\[text1,text2,lab"
    assert_rejected(Retrieval(release=pairs), tmp_path / "bad", message)
    # Ids of another tokenizer are not read if the texts are there.
    text = write("text", [(a, y, [9]) for a, _, y in ascii_texts], ["text", "label", "input_ids"])
    assert prepared(Text(archive=text), data) == split_examples([(y, a) for y, a, _ in expected_pairs])
    if suffix == "stream":
        (file,) = (text / "train").iterdir()
        file.write_bytes(file.read_bytes()[:-8])
        assert_rejected(Text(archive=text), tmp_path / "bad", "arrow lacks the end marker of an arrow stream")
    assert_error(r"source.columns must be 1 of inputs, then the label, got \['a'\]", Text, archive=text, columns=["a"])
    padded = write("padded", [([98, 0], 1)] * 30, ["input_ids", "label"])
    assert_rejected(Text(archive=padded), tmp_path / "bad", "example 1: ids end in 0; texts must be bytes")
    trees = write("trees", [(decode(ids).encode(), y) for ids, y in listops()], ["Source", "Target"])
    assert prepared(ListOps(release=trees), data) == split_examples([(y, ids.tobytes()) for ids, y in listops()])
    wrong = write("wrong", [(decode(ids), (y + 1) % 10) for ids, y in listops()], ["Source", "Target"])
    assert_rejected(ListOps(release=wrong), tmp_path / "bad", r"wrong: train, example 1: the answer is \d, not \d")
    images = [(image_cell(np.full((32, 32, 3)[: 2 + i % 2], i)), i % 2) for i in range(30)]
    curves = write("curves", images, ["image", "label"])
    assert prepared(Pathfinder(release=curves), data) == split_examples([(i % 2, bytes([i]) * 1024) for i in range(30)])
    message = "example 1: 1024 pixels instead of 4096, an image of another size"
    assert_rejected(Pathfinder(release=curves, size=64), tmp_path / "bad", message)


@pytest.mark.parametrize("has_val", [False, True], ids=["train and test", "train, validation and test"])
def test_coloured_parquet_images_match_binary_archive(tmp_path, has_val):
    records = dict(CIFAR)
    if has_val:
        records["train"], records["val"] = np.split(CIFAR["train"], [-5])
    images = lambda examples: examples[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    rows = lambda examples: zip(map(image_cell, images(examples)), examples[:, 0].tolist(), strict=True)
    write_columns(tmp_path / "hub" / "data", {name: rows(x) for name, x in records.items()}, ["img", "label"])
    options = {"hold_out": 5, "order": "archive" if has_val else "tfds"}
    expected = prepared(Image(**cifar(tmp_path / "cifar.tar.gz"), **options), tmp_path / "data")
    assert prepared(Image(archive=tmp_path / "hub", **options), tmp_path / "copy") == expected


NULLS = [(Text, {"text": None}), (ListOps, {"Source": None}), (Retrieval, {"text1": "a", "text2": None})]
NULLS += [(Pathfinder, {"image": {"bytes": None, "path": "a.png"}})]


@pytest.mark.parametrize(("task", "cells"), NULLS)
def test_null_input_error_names_example(tmp_path, task, cells):
    write_columns(tmp_path, split_examples([(*cells.values(), 1)] * 20), [*cells, "label"])
    source = task(**{"archive" if task is Text else "release": tmp_path})
    assert_rejected(source, tmp_path / "data", "parquet, example 1: no (text|expression|image)$")


COLUMN_FILES = {
    "lacks train-01-of-02.arrow: train-00-of": ["test-0-of-1.arrow", "train-00-of-02.arrow"],
    "lacks train-1-of-9.arrow, .*, train-5-of-9.arrow, 3 more": ["data/train-0-of-9.arrow"],
    "train-0-of-1.parquet and .*/train.parquet are named": ["train-0-of-1.parquet", "train.parquet"],
    "test.arrow and .*/test.parquet are named in two": ["test.arrow", "test.parquet"],
    "a-train.arrow and .*/b-train.arrow are named in two": ["a-train.arrow", "b-train.arrow"],
    "a/train/x.arrow and .*/b/train/x.arrow are in two folders": ["a/train/x.arrow", "b/train/x.arrow"],
    "data/test.parquet are splits in two layouts": ["train.parquet", "data/test.parquet"],
    "val-0.*a.arrow and .*b.arrow are the same part": [f"val-0-of-1-{digit * 16}.arrow" for digit in "ab"],
    "is a cache of S4 with ids of another": ["train/data-0-of-1.arrow", "tokenizer.pkl", "train/._data-0-of-1.arrow"],
}


@pytest.mark.parametrize("message", COLUMN_FILES)
def test_missing_or_repeated_column_file_error_names_files(tmp_path, message):
    write_folder(tmp_path, dict.fromkeys(COLUMN_FILES[message], b""))
    assert_error(message, open_copy, tmp_path, "text")


def test_damaged_parquet_raises_and_unknown_folder_is_no_copy(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 nothing of it PAR1")
    assert_rejected(Text(archive=tmp_path), tmp_path / "data", "train.parquet is damaged or not a parquet file: ")
    for task in ("listops", "text", "image", "retrieval", "pathfinder"):
        assert open_copy(None, task) is None and open_copy(tmp_path / "data", task) is None
    (tmp_path / "imdb.tar.gz").write_bytes(gzip.compress(b"no archive"))
    assert open_copy(tmp_path / "imdb.tar.gz", "image") is None
