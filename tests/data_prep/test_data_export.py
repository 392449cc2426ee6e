"""What is made of prepared data: exported files that are read back bit for bit, TFDS builders, pictures."""

import pickle
import subprocess

import numpy as np
import pytest
import torch
from conftest import run
from PIL import Image as PillowImage
from server import cifar, examples, gathered, imdb, write_folder

from data_prep import __main__ as command
from data_prep import export, show
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
from lra.data.store import Split

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


def test_the_command_prepares_and_exports(tmp_path, monkeypatch, capfd):
    out, data = tmp_path / "out", tmp_path / "data"
    words = ["export", "task=listops", "budget=smoke", "layout=npz", f"out={out}", f"data.root={data}"]
    stop, said = run(lambda: command.command(words), *words, patch=monkeypatch, capfd=capfd)
    assert stop is None and f"layout npz at {out}" in said and (out / "test.npz").exists()
    readme = (out / "README.md").read_text().replace(f" data.root={data}", "")
    assert "lra data export task=listops budget=smoke layout=npz out=out" in readme


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
def test_a_builder_gives_sequences_that_are_made_as_they_are_read(tmp_path, builder, kind):
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


class Named(ListOps):
    """A source of which only the names of its classes and letters are used."""

    alphabet = tuple("_abc")
    classes = ("cat", "dog")


def drawn(sequences, labels, display, *, count=16, towers=1, limit=10**6):
    """The picture of examples with these sequences and labels."""
    offsets = torch.tensor([0, *np.cumsum([len(sequence) for sequence in sequences])])
    split = Split(torch.from_numpy(np.concatenate(sequences)), offsets, torch.tensor(labels), towers)
    return np.asarray(show.picture(Named(), split, display=display, count=count, limit=limit))


def part_of(picture, panel):
    """Whether a panel or a written text stands somewhere in the picture, pixel for pixel."""
    image = np.asarray(show.draw_text(panel) if isinstance(panel, str) else panel)
    views = np.lib.stride_tricks.sliding_window_view(picture[..., 0], image.shape[:2])
    return bool((views == image[..., 0]).all((-1, -2)).any())


def test_pixels_are_the_grey_levels_in_rows():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, 64, dtype=np.uint8) for _ in range(2)]
    panels = [np.asarray(show.pixels(row, None)) for row in rows]
    for row, panel in zip(rows, panels, strict=True):
        scale = len(panel) // 8
        assert panel.shape == (8 * scale, 8 * scale, 3) and scale > 1
        assert (panel[scale // 2 :: scale, scale // 2 :: scale, 0] == row.reshape(8, 8)).all()
    picture = drawn(rows, [0, 1], "pixels")
    assert all(part_of(picture, panel) for panel in (*panels, "0: cat", "1: dog"))
    assert not part_of(drawn(rows, [0, 1], "pixels", count=1), panels[1])


def test_expressions_are_written_in_the_alphabet():
    for source, ids, text in ((Named(), [1, 2, 3], "abc"), (ListOps(), [11, 3, 10, 15], "[MIN 2 9 ]")):
        got = np.asarray(show.expression(np.array(ids, np.uint8), source))
        assert (got == np.asarray(show.draw_text(text))).all() and not (got == 255).all()


def test_pairs_are_two_texts_of_bytes_and_long_ones_say_how_long():
    one, other = (np.frombuffer(text, np.uint8) for text in (b"The first\n<br>", b"and the second"))
    picture = drawn([one, other], [1], "bytes", towers=2)
    assert all(part_of(picture, text) for text in ("The first·<br>", "and the second", "0: dog"))
    long = show.draw_text("word " * 1000, "5,000 bytes")
    assert long.height == show.draw_text("\n".join(["x"])).height * show.LINES
    assert part_of(drawn([one], [0], "bytes", limit=3), "The")


def test_series_has_a_ring_at_each_mark():
    row = np.zeros((100, 2), np.float32)
    row[:, 0] = np.linspace(-1, 1, 100)
    row[[20, 70], 1] = 1
    panel = np.asarray(show.series(row, None)).astype(int)
    red = (panel[..., 0] > 180) & (panel[..., 1] < 80)
    lines = np.flatnonzero(red.sum(0) > 100)
    expected = 4 + (show.CURVE[0] - 9) * np.array([20, 70]) / 99
    assert len(lines) == 2 and np.abs(lines - expected).max() <= 1
    show.series(np.zeros((5, 2), np.float32), None)  # a constant is no division by zero


@pytest.mark.parametrize("task", ["listops", "adding", "temporal_order", "pathfinder"])
def test_command_writes_a_png(task, data_root, tmp_path, monkeypatch, capfd):
    words = [f"task={task}", "budget=smoke", "count=3", f"out={tmp_path / 'made.png'}"]
    stop, said = run(show.show, *words, patch=monkeypatch, capfd=capfd)
    assert stop is None and "3 examples of train" in said
    with PillowImage.open(tmp_path / "made.png") as made:
        assert made.format == "PNG" and min(made.size) > 50
