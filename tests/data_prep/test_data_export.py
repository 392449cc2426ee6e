"""Uses of prepared data: exported files, which round-trip bit for bit, TFDS builders, and pictures of examples."""

import pickle
import shlex
import subprocess
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import assert_error
from PIL import Image as PillowImage
from server import cifar, examples, gathered, imdb, prepared, write_folder

from data_prep import __main__ as command
from data_prep import export, show
from data_prep.adding import Adding
from data_prep.expressions import encode
from data_prep.formats import write_release
from data_prep.formats.layout import Export
from data_prep.image import Image
from data_prep.listops import ListOps
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.retrieval import Retrieval
from data_prep.temporal_order import TemporalOrder
from data_prep.text import Text
from lra.data.store import Split

SIZES = {"train": 40, "val": 5, "test": 5}
# Names of tokens and classes, as a source has them.
NAMED = SimpleNamespace(alphabet=tuple("_abc"), classes=("cat", "dog"))


def task(source, root, kind="expression", limit=64, shift=0):
    if source.stored:
        source.prepare(root)
    return Export(source=source, splits=source.open(root), kind=kind, limit=limit, length=limit, shift=shift)


def listops():
    return ListOps(min_length=4, max_length=60, max_depth=4, max_args=4, **SIZES)


def pairs(folder):
    lines = [b"%d.0\tx\ty\t%s\t%s\n" % (i % 2, b"\x80 \xff" * (i + 1), b"text %d" % i) for i in range(40)]
    files = {"train": lines, "eval": lines[:5], "test": lines[5:10]}
    files = {f"new_aan_pairs.{part}.tsv": b"".join(subset) for part, subset in files.items()}
    return Retrieval(release=write_folder(folder, files))


@pytest.mark.parametrize("layout", ["release", "pickle", "npz", "parquet"])
def test_exported_files_round_trip_exactly(layout, tmp_path, monkeypatch):
    if layout == "parquet":
        pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    monkeypatch.setattr(write_release, "IMAGES_PER_FOLDER", 7)
    for module in ("layout", "columns"):
        monkeypatch.setattr(f"data_prep.formats.{module}.CHUNK", 3)
    data = tmp_path / "data"
    curves = partial(Pathfinder, contour=9)
    exports = {
        "listops": (task(listops(), data), ListOps),
        "retrieval": (task(pairs(tmp_path / "pairs"), data, "bytes", limit=128, shift=1), Retrieval),
        "pathfinder": (task(curves(**SIZES), data, "pixels", limit=1024), curves),
    }
    for name, (source, reader) in exports.items():
        out = tmp_path / layout / name
        export.write(source, layout, out, "command")
        stored = {part: examples(split) for part, split in source.splits.items()}
        assert prepared(reader(release=out), tmp_path / "again") == stored
        checksum_check = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out)
        readme = (out / "README.md").read_text()
        assert checksum_check.returncode == 0 and str(source.source.provenance) in readme and "| val | 5 |" in readme
    assert sorted(path.name for path in (tmp_path / layout).iterdir()) == sorted(exports)


def test_exported_expressions_have_brackets_of_official_generator():
    """The official to_string writes each pair of the binary tree (((op, a), b), end) in brackets."""
    tree = lambda op, *values: f"( {'( ' * len(values)}{op} " + " ".join(f"{value} )" for value in values) + " ] )"
    text = write_release.expression(encode("[MAX 2 [MIN 4 [SM 1 1 9 ] ] 0 ]"))
    assert text == tree("[MAX", 2, tree("[MIN", 4, tree("[SM", 1, 1, 9)), 0)
    assert write_release.expression(encode("7")) == "7"


def test_exported_pickles_suit_public_loaders(tmp_path):
    source = task(listops(), tmp_path / "data")
    export.write(source, "pickle", tmp_path / "out", "command")
    path = tmp_path / "out" / "lra-listops.dev.pickle"
    loaded = pickle.loads(path.read_bytes())
    assert len(loaded) == 5 and {key for record in loaded for key in record} == {"input_ids_0", "label"}
    # The public loaders stack sequences without padding, so all must have the same length.
    batch = torch.stack([torch.tensor(record["input_ids_0"], dtype=torch.long) for record in loaded])
    assert batch.shape == (5, 64) and [record["label"] for record in loaded] == source.splits["val"].labels.tolist()
    # numpy 1 cannot import numpy._core.
    assert b"numpy._core" not in path.read_bytes()


def test_pickle_truncates_texts_and_rejects_real_numbers(tmp_path):
    reviews = Text(**imdb(tmp_path / "imdb.tar.gz", n=20), hold_out=5)
    source = task(reviews, tmp_path / "data", "bytes", limit=100, shift=1)
    export.write(source, "pickle", tmp_path / "text", "command")
    copy = prepared(Text(archive=tmp_path / "text"), tmp_path / "again")
    for split, stored in source.splits.items():
        assert copy[split] == [(label, text[:100]) for label, text in examples(stored)]
    series = task(Adding(**SIZES), "nowhere", "series", limit=128)
    with pytest.raises(ValueError, match="layout=pickle holds token ids, adding has real numbers; use npz or parquet"):
        export.write(series, "pickle", tmp_path / "series", "command")
    export.write(series, "npz", tmp_path / "series", "command")
    assert "Tokens are real features" in (tmp_path / "series" / "README.md").read_text()
    stored = np.load(tmp_path / "series" / "val.npz")
    full = series.splits["val"].gather(torch.arange(5), 128)[0]
    assert np.array_equal(stored["tokens"], full.flatten(0, 2)) and stored["labels"].dtype == np.float32


def test_failed_export_leaves_no_files(tmp_path, monkeypatch):
    source = task(pairs(tmp_path / "pairs"), tmp_path / "data", "bytes")
    out = tmp_path / "out" / "a"
    source.splits["val"].tokens[0] = ord("\t")
    rejects = lambda message, source, layout: assert_error(message, export.write, source, layout, out, "command")
    rejects(r"val, example 1 has a tab or a line end, .* use layout=npz or parquet", source, "release")
    series = task(Adding(**SIZES), "nowhere", "series")
    rejects("layout=release exists for listops, retrieval, pathfinder; adding needs", series, "release")
    monkeypatch.setitem(export.WRITERS, "npz", Mock(side_effect=OSError(28, "No space left")))
    rejects("No space left", source, "npz")
    assert not list(out.parent.iterdir())
    out.mkdir()
    rejects(r"out=.* exists already; choose another folder, or remove it", source, "pickle")


def test_export_command_prepares_and_writes_files(tmp_path, call):
    out, data = tmp_path / "o(t", tmp_path / "data"
    words = ["export", "task=listops", "budget=smoke", "layout=npz", f"out={out}", f"data.root={data}"]
    exit_message, _, log = call(lambda: command.command(words), *words)
    assert exit_message is None and f"layout npz at {out}" in log and (out / "test.npz").exists()
    assert shlex.split((out / "README.md").read_text().splitlines()[4]) == ["lra", "data", *words[:4], "out='o(t'"]
    assert [*export.portable(["source.archive=/x/a", "data.release=/b", "task=a"])] == ["source.archive=a", "task=a"]


def builders():
    return pytest.importorskip("data_prep.tfds", reason="pip install -e '.[tfds]'")


def build_with_tfds(name, source, folder):
    """Build with TFDS; return its label feature, and (label, input) of the examples of each split."""
    tfds = builders()
    builder = getattr(tfds, name)
    result = builder(data_dir=folder, config=tfds.SourceConfig(name="small", source=source))
    result.download_and_prepare()
    value, label = builder.KEYS
    read = lambda name: [(example[label], example[value]) for example in result.as_data_source(name)]
    return result.info.features[label], {name: read(name) for name in result.info.splits}


def synthetic_examples(source, split):
    """(label, bytes of the sequence) of each example of a split that is generated on the fly."""
    sequences, labels = gathered(source, split)
    return [(label, ids.astype(source.dtype).tobytes()) for ids, label in zip(sequences, labels, strict=True)]


FEW = {"train": 5, "val": 3, "test": 2}
# Builder, the function that makes its source, and the bytes of the sequences of an example's input.
BUILDERS = [
    ("Listops", lambda _: listops(), lambda words: [encode(words.decode()).tobytes()]),
    ("LraText", lambda folder: Text(**imdb(folder / "imdb.gz", 4)), lambda review: [review]),
    ("LraImage", lambda folder: Image(**cifar(folder / "cifar.gz"), hold_out=4), lambda pixels: [pixels.tobytes()]),
    ("LraRetrieval", pairs, list),
    ("LraPathfinder", lambda _: Pathfinder(**FEW), lambda pixels: [pixels.tobytes()]),
    ("AddingProblem", lambda _: Adding(**FEW), lambda values: [values.tobytes()]),
    ("TemporalOrderProblem", lambda _: TemporalOrder(**FEW), lambda ids: [ids.tobytes()]),
    ("AssociativeRecall", lambda _: Recall(**FEW), lambda ids: [ids.tobytes()]),
]


@pytest.mark.parametrize(("builder", "make", "as_bytes"), BUILDERS)
def test_tfds_builder_yields_examples_of_source(tmp_path, builder, make, as_bytes):
    source = make(tmp_path)
    names, actual = build_with_tfds(builder, source, tmp_path / "tfds")
    splits = source.open(tmp_path / "tfds" / "downloads")
    assert list(actual) == list(splits)
    for name, items in actual.items():
        expected = examples(splits[name]) if source.stored else synthetic_examples(source, name)
        assert [(label, *as_bytes(value)) for label, value in items] == expected
        # A review of `imdb` starts with its split, its label and its number.
        if builder == "LraText":
            assert all(names.int2str(int(label)) == text.split()[1].decode() for label, text in expected)


def test_tfds_default_config_is_official_task(tmp_path):
    builder = builders().Listops(data_dir=tmp_path)
    assert builder.builder_config.name == "lra" and str(builder.version) == ListOps.version
    assert builder.builder_config.source.provenance == ListOps().provenance
    assert builder.info.supervised_keys == ("source", "target")


def render(sequences, labels, count):
    """Draw pairs of texts with these labels as an array of pixels."""
    offsets = torch.tensor([0, *np.cumsum([len(sequence) for sequence in sequences])])
    split = Split(torch.from_numpy(np.concatenate(sequences)), offsets, torch.tensor(labels), 2)
    return np.asarray(show.picture(NAMED, split, display="bytes", count=count, limit=8))


def contains_text(picture, text):
    """Whether the picture contains a text as `show.draw_text` draws it, pixel for pixel."""
    image = np.asarray(show.draw_text(text))
    views = np.lib.stride_tricks.sliding_window_view(picture[..., 0], image.shape[:2])
    return bool((views == image[..., 0]).all((-1, -2)).any())


def test_pixels_display_draws_grey_levels_row_by_row():
    item = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8)
    panel = np.asarray(show.pixels(item, None, 64))
    scale = len(panel) // 8
    assert panel.shape == (8 * scale, 8 * scale, 3) and scale > 1
    assert (panel[scale // 2 :: scale, scale // 2 :: scale, 0] == item.reshape(8, 8)).all()
    # A sequence that was cut to 21 pixels has two complete lines of the image.
    assert (np.asarray(show.pixels(item[:21], None, 64)) == panel[: 2 * scale]).all()


def test_expression_display_decodes_tokens():
    for source, ids, text in ((NAMED, [1, 2, 3], "abc"), (ListOps(), [11, 3, 10, 15], "[MIN 2 9 ]")):
        assert show.expression(np.array(ids, np.uint8), source, len(ids)) == show.draw_text(text)


def test_picture_has_label_and_both_texts_of_first_examples():
    texts = [np.frombuffer(text, np.uint8) for text in (b"one\n<br> two", b"another text", b"2nd", b"example")]
    first = ("one·<br>", "another ", "0: dog")
    second = ("2nd", "example", "1: cat")
    both = render(texts, [1, 0], 2)
    assert all(contains_text(both, text) for text in (*first, *second))
    only_first = render(texts, [1, 0], 1)
    assert all(contains_text(only_first, text) for text in first) and not contains_text(only_first, "1: cat")


def test_long_text_is_cut_and_has_its_stored_size():
    panel = show.bytes_(np.full(4000, ord("a"), np.uint8), None, 5000)
    assert panel == show.draw_text("a" * 4000, "5,000 bytes")
    assert panel.height == show.draw_text("a").height * show.LINES


def test_series_display_marks_marked_positions():
    item = np.zeros((100, 2), np.float32)
    item[:, 0] = np.linspace(-1, 1, 100)
    item[[20, 70], 1] = 1
    panel = np.asarray(show.series(item, None, 100)).astype(int)
    red = (panel[..., 0] > 180) & (panel[..., 1] < 80)
    lines = np.flatnonzero(red.sum(0) > 100)
    expected = 4 + (show.CURVE[0] - 9) * np.array([20, 70]) / 99
    assert len(lines) == 2 and np.abs(lines - expected).max() <= 1
    # A constant series must not divide by zero.
    show.series(np.zeros((5, 2), np.float32), None, 5)


@pytest.mark.parametrize("task", ["listops", "adding"])
def test_show_command_writes_png(task, data_root, tmp_path, call):
    words = [f"task={task}", "budget=smoke", "count=3", f"out={tmp_path / 'made.png'}"]
    exit_message, _, log = call(show.show, *words)
    assert exit_message is None and "3 examples of train" in log
    with PillowImage.open(tmp_path / "made.png") as result:
        assert result.format == "PNG" and min(result.size) > 50
