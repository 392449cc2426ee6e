"""Exported data: a round trip through the readers is equal to the bit, checksums, and nothing half-written; TFDS."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from server import cifar, examples, gathered, imdb, write_folder

from data_prep import export
from data_prep.adding import Adding
from data_prep.formats import write_release
from data_prep.formats.writer import Export
from data_prep.image import Image
from data_prep.listops import ListOps, encode
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.retrieval import Retrieval
from data_prep.temporal_order import TemporalOrder
from data_prep.text import Text
from lra.config import CONF

LAYOUTS = ("release", "pickle", "npz", "parquet")
SIZES = {"train": 40, "val": 5, "test": 5}


def task(source, root, kind="expression", limit=64, shift=0):
    source.prepare(root)
    return Export(source=source, splits=source.load(root), kind=kind, limit=limit, length=limit, shift=shift)


def listops():
    return ListOps(min_length=4, max_length=60, max_depth=4, max_args=4, **SIZES)


def pairs(folder):
    lines = {}
    for part, count in (("train", 40), ("eval", 5), ("test", 5)):
        texts = [b"%d.0\tx\ty\t%s\t%s\n" % (i % 2, b"\x80 \xff" * (i + 1), b"text %d" % i) for i in range(count)]
        lines[f"new_aan_pairs.{part}.tsv"] = b"".join(texts)
    return Retrieval(release=write_folder(folder, lines))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_round_trip_is_equal_to_the_bit(layout, tmp_path, monkeypatch):
    if layout == "parquet":
        pytest.importorskip("pyarrow", reason="pip install '.[parquet]'")
    monkeypatch.setattr(write_release, "IMAGES", 7)
    monkeypatch.setattr("data_prep.formats.writer.CHUNK", 3)
    data = tmp_path / "data"
    written = {
        "listops": task(listops(), data),
        "retrieval": task(pairs(tmp_path / "pairs"), data, "bytes", limit=128, shift=1),
        "pathfinder": task(Pathfinder(contour=9, **SIZES), data, "pixels", limit=1024),
    }
    for name, source in written.items():
        out = tmp_path / layout / name
        export.write(source, layout, out, "command")
        reader = {
            "listops": ListOps(release=out),
            "retrieval": Retrieval(release=out),
            "pathfinder": Pathfinder(contour=9, release=out),
        }[name]
        reader.prepare(tmp_path / "again")
        again = reader.load(tmp_path / "again")
        for split, stored in source.splits.items():
            assert examples(again[split]) == examples(stored), (name, split)
        listed = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out)
        readme = (out / "README.md").read_text()
        assert listed.returncode == 0 and str(source.source.provenance) in readme and "| val | 5 |" in readme
    assert sorted(path.name for path in (tmp_path / layout).iterdir()) == sorted(written)


def test_expressions_have_the_round_brackets_of_the_official_generator():
    """Its to_string writes each pair of the binary tree (((op, a), b), end) in brackets."""
    tree = lambda op, *values: f"( {'( ' * len(values)}{op} " + " ".join(f"{value} )" for value in values) + " ] )"
    stored = ListOps(release=None)
    ids = {token: number for number, token in enumerate(stored.alphabet)}
    words = ["[MAX", "2", "[MIN", "4", "[SM", "1", "1", "9", "]", "]", "0", "]"]
    text = write_release.expression(np.array([ids[word] for word in words]))
    assert text == tree("[MAX", 2, tree("[MIN", 4, tree("[SM", 1, 1, 9)), 0)
    assert write_release.expression(np.array([ids["7"]])) == "7"


def test_pickles_are_those_of_the_public_loaders(tmp_path):
    source = task(listops(), tmp_path / "data")
    export.write(source, "pickle", tmp_path / "out", "command")
    path = tmp_path / "out" / "lra-listops.dev.pickle"
    loaded = pickle.loads(path.read_bytes())
    assert len(loaded) == 5 and {key for record in loaded for key in record} == {"input_ids_0", "label"}
    # Their loaders batch without padding.
    batch = torch.stack([torch.tensor(record["input_ids_0"], dtype=torch.long) for record in loaded])
    assert batch.shape == (5, 64) and [record["label"] for record in loaded] == source.splits["val"].labels.tolist()
    assert b"numpy._core" not in path.read_bytes()  # which numpy 1 does not know


def test_texts_are_cut_in_pickles_and_real_numbers_need_arrays(tmp_path):
    reviews = Text(**imdb(tmp_path / "imdb.tar.gz", n=20), hold_out=5)
    export.write(task(reviews, tmp_path / "data", "bytes", limit=100, shift=1), "pickle", tmp_path / "text", "command")
    copy = Text(archive=tmp_path / "text")
    copy.prepare(tmp_path / "again")
    for split, stored in reviews.load(tmp_path / "data").items():
        cut = [(label, text[:100]) for label, text in examples(stored)]
        assert examples(copy.load(tmp_path / "again")[split]) == cut
    series = task_of_adding()
    with pytest.raises(ValueError, match="layout=pickle holds token ids, adding has real numbers; use npz or parquet"):
        export.write(series, "pickle", tmp_path / "series", "command")
    export.write(series, "npz", tmp_path / "series", "command")
    stored = np.load(tmp_path / "series" / "val.npz")
    whole = series.splits["val"].gather(torch.arange(5), 128)[0]
    assert np.array_equal(stored["tokens"], whole.flatten(0, 2)) and stored["labels"].dtype == np.float32


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    source = task(pairs(tmp_path / "pairs"), tmp_path / "data", "bytes")
    source.splits["val"].tokens[0] = ord("\t")
    with pytest.raises(ValueError, match=r"val, example 1 has a tab or a line end, .* use layout=npz or parquet"):
        export.write(source, "release", tmp_path / "out" / "a", "command")
    with pytest.raises(ValueError, match="layout=release exists for listops, retrieval, pathfinder; adding needs"):
        export.write(task_of_adding(), "release", tmp_path / "out" / "a", "command")
    monkeypatch.setitem(export.WRITERS, "npz", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(ValueError, match="No space left"):
        export.write(source, "npz", tmp_path / "out" / "a", "command")
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "out" / "a").mkdir()
    with pytest.raises(ValueError, match=r"out=.* exists already; choose another folder, or remove it"):
        export.write(source, "pickle", tmp_path / "out" / "a", "command")


def task_of_adding():
    return Export(source=Adding(), splits=Adding(**SIZES).load(""), kind="series", limit=128, length=128, shift=0)


def test_the_command_prepares_and_exports(tmp_path):
    words = ["task=listops", "budget=smoke", "layout=npz", f"out={tmp_path / 'out'}", f"data.root={tmp_path / 'data'}"]
    run = subprocess.run(
        [sys.executable, "-m", "data_prep", "export", *words], cwd=CONF.parent, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert f"layout npz at {tmp_path / 'out'}" in run.stderr and (tmp_path / "out" / "test.npz").exists()
    assert "lra data export task=listops budget=smoke layout=npz out=out" in (
        tmp_path / "out" / "README.md"
    ).read_text().replace(f" data.root={tmp_path / 'data'}", "")


SMALL = {"min_length": 10, "max_length": 60, "train": 30, "val": 7, "test": 5}


def builders():
    pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    from data_prep import tfds

    return tfds


def built(name, source, folder):
    """Names of the labels, and label and input of the examples of each split."""
    tfds = builders()
    builder = getattr(tfds, name)
    made = builder(data_dir=folder, config=tfds.SourceConfig(name="small", source=source))
    made.download_and_prepare()
    value, label = builder.KEYS
    read = lambda name: [(example[label], example[value]) for example in made.as_data_source(name)]
    return made.info.features[label], {name: read(name) for name in made.info.splits}


def tfds_retrieval(folder):
    pairs = "1.0\ta\tb\tthe text of {}\tanother ☕\n0.0\ta\tb\tc\td\n"
    files = {f"new_aan_pairs.{name}.tsv": pairs.format(name).encode() for name in ("train", "eval", "test")}
    return Retrieval(release=write_folder(folder / "release", files))


@pytest.mark.parametrize(
    ("builder", "make", "stored"),  # stored: the bytes of the rows of an example's input
    [
        ("Listops", lambda _: ListOps(**SMALL), lambda words: [encode(words.decode()).tobytes()]),
        ("LraText", lambda folder: Text(**imdb(folder / "imdb.gz", 4)), lambda read: [read]),
        ("LraImage", lambda folder: Image(**cifar(folder / "cifar.gz"), hold_out=4), lambda x: [x.tobytes()]),
        ("LraRetrieval", tfds_retrieval, list),
        ("LraPathfinder", lambda _: Pathfinder(train=6, val=2, test=2), lambda pixels: [pixels.tobytes()]),
    ],
)
def test_a_builder_gives_the_examples_of_its_store(tmp_path, builder, make, stored):
    source = make(tmp_path)
    names, found = built(builder, source, tmp_path / "tfds")
    held = {name: examples(split) for name, split in source.load(tmp_path / "tfds" / "downloads").items()}
    assert {name: [(label, *stored(value)) for label, value in rows] for name, rows in found.items()} == held
    if builder == "LraText":  # a review of `imdb` begins with its split, pos or neg and its number
        assert all(
            row.split()[1].decode() == names.int2str(int(label)) for rows in held.values() for label, row in rows
        )


@pytest.mark.parametrize(
    ("builder", "kind"),
    [("AddingProblem", Adding), ("TemporalOrderProblem", TemporalOrder), ("AssociativeRecall", Recall)],
)
def test_a_builder_gives_rows_that_are_made_as_they_are_read(tmp_path, builder, kind):
    source = kind(train=5, val=3, test=2)
    _, found = built(builder, source, tmp_path / "tfds")
    assert list(found) == list(source.sizes)
    for name, rows in found.items():
        for row, label, (target, value) in zip(*gathered(source, name), rows, strict=True):
            assert (value == row).all() and value.dtype == source.dtype and target == label


def test_the_paper_config_is_the_default(tmp_path):
    builder = builders().Listops(data_dir=tmp_path)
    assert builder.builder_config.name == "lra" and str(builder.version) == ListOps.version
    assert builder.builder_config.source.provenance == ListOps().provenance
    assert builder.info.supervised_keys == ("source", "target")
