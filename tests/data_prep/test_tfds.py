"""The TFDS builders give what the store holds, without TensorFlow."""

import pytest
from server import cifar, examples, gathered, imdb, write_folder

from data_prep.adding import Adding
from data_prep.image import Image
from data_prep.listops import ListOps, encode
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.retrieval import Retrieval
from data_prep.temporal_order import TemporalOrder
from data_prep.text import Text

pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
from data_prep import tfds

SMALL = {"min_length": 10, "max_length": 60, "train": 30, "val": 7, "test": 5}


def built(builder, source, folder):
    """Names of the labels, and label and input of the examples of each split."""
    made = builder(data_dir=folder, config=tfds.SourceConfig(name="small", source=source))
    made.download_and_prepare()
    value, label = builder.KEYS
    read = lambda name: [(example[label], example[value]) for example in made.as_data_source(name)]
    return made.info.features[label], {name: read(name) for name in made.info.splits}


def retrieval(folder):
    pairs = "1.0\ta\tb\tthe text of {}\tanother ☕\n0.0\ta\tb\tc\td\n"
    files = {f"new_aan_pairs.{name}.tsv": pairs.format(name).encode() for name in ("train", "eval", "test")}
    return Retrieval(release=write_folder(folder / "release", files))


@pytest.mark.parametrize(
    ("builder", "make", "stored"),  # stored: the bytes of the rows of an example's input
    [
        (tfds.Listops, lambda _: ListOps(**SMALL), lambda words: [encode(words.decode()).tobytes()]),
        (tfds.LraText, lambda folder: Text(**imdb(folder / "imdb.gz", 4)), lambda read: [read]),
        (tfds.LraImage, lambda folder: Image(**cifar(folder / "cifar.gz"), hold_out=4), lambda x: [x.tobytes()]),
        (tfds.LraRetrieval, retrieval, list),
        (tfds.LraPathfinder, lambda _: Pathfinder(train=6, val=2, test=2), lambda pixels: [pixels.tobytes()]),
    ],
)
def test_a_builder_gives_the_examples_of_its_store(tmp_path, builder, make, stored):
    source = make(tmp_path)
    names, found = built(builder, source, tmp_path / "tfds")
    held = {name: examples(split) for name, split in source.load(tmp_path / "tfds" / "downloads").items()}
    assert {name: [(label, *stored(value)) for label, value in rows] for name, rows in found.items()} == held
    if builder is tfds.LraText:  # a review of `imdb` begins with its split, pos or neg and its number
        assert all(
            row.split()[1].decode() == names.int2str(int(label)) for rows in held.values() for label, row in rows
        )


@pytest.mark.parametrize(
    ("builder", "kind"),
    [(tfds.AddingProblem, Adding), (tfds.TemporalOrderProblem, TemporalOrder), (tfds.AssociativeRecall, Recall)],
)
def test_a_builder_gives_rows_that_are_made_as_they_are_read(tmp_path, builder, kind):
    source = kind(train=5, val=3, test=2)
    _, found = built(builder, source, tmp_path / "tfds")
    assert list(found) == list(source.sizes)
    for name, rows in found.items():
        for row, label, (target, value) in zip(*gathered(source, name), rows, strict=True):
            assert (value == row).all() and value.dtype == source.dtype and target == label


def test_the_paper_config_is_the_default(tmp_path):
    builder = tfds.Listops(data_dir=tmp_path)
    assert builder.builder_config.name == "lra" and str(builder.version) == ListOps.version
    assert builder.builder_config.source.provenance == ListOps().provenance
    assert builder.info.supervised_keys == ("source", "target")
