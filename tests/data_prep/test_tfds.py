"""The TFDS builders give what the store holds, without TensorFlow."""

from itertools import pairwise

import pytest
import torch
from server import cifar, imdb

from data_prep.adding import Adding
from data_prep.image import Image
from data_prep.listops import ListOps, decode
from data_prep.pathfinder.generator import Pathfinder, generate
from data_prep.recall import Recall
from data_prep.retrieval import Retrieval
from data_prep.temporal_order import TemporalOrder
from data_prep.text import Text

pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
from data_prep.tfds import (
    AddingProblem,
    AssociativeRecall,
    Listops,
    LraImage,
    LraPathfinder,
    LraRetrieval,
    LraText,
    SourceConfig,
    TemporalOrderProblem,
)

SMALL = {"min_length": 10, "max_length": 60, "train": 30, "val": 7, "test": 5}


def build(builder, source, folder):
    made = builder(data_dir=folder, config=SourceConfig(name="small", source=source))
    made.download_and_prepare()
    stored = source.load(folder / "downloads")
    assert set(made.info.splits) == set(stored)
    for name, split in stored.items():
        yield from ((made.info.features, split, i, example) for i, example in enumerate(made.as_data_source(name)))


def test_listops(tmp_path):
    for _, split, i, example in build(Listops, ListOps(**SMALL), tmp_path / "tfds"):
        first, end = split.offsets[i : i + 2].tolist()
        assert example["source"].decode() == decode(split.tokens[first:end]) and example["target"] == split.labels[i]


def test_text(tmp_path):
    source = Text(archive=tmp_path / "imdb.gz", sha256=imdb(tmp_path / "imdb.gz", 4))
    for features, split, i, example in build(LraText, source, tmp_path / "tfds"):
        first, end = split.offsets[i : i + 2].tolist()
        assert example["text"] == split.tokens[first:end].numpy().tobytes() and example["label"] == split.labels[i]
        assert example["text"].split()[1].decode() == features["label"].int2str(int(example["label"]))


def test_image(tmp_path):
    source = Image(archive=tmp_path / "cifar.gz", sha256=cifar(tmp_path / "cifar.gz"), hold_out=4)
    for _, split, i, example in build(LraImage, source, tmp_path / "tfds"):
        assert (example["image"] == split.tokens.view(-1, 32, 32)[i].numpy()).all()
        assert example["label"] == split.labels[i]


def test_retrieval(tmp_path):
    for name in ("train", "eval", "test"):
        text = f"1.0\ta\tb\tthe text of {name}\tanother ☕\n0.0\ta\tb\tc\td\n"
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text(text)
    for _, split, i, example in build(LraRetrieval, Retrieval(release=tmp_path), tmp_path / "tfds"):
        bounds = split.offsets[2 * i : 2 * i + 3].tolist()
        texts = [split.tokens[a:b].numpy().tobytes() for a, b in pairwise(bounds)]
        assert list(example["texts"]) == texts and example["label"] == split.labels[i]


def test_pathfinder(tmp_path):
    images, labels = generate(size=32, count=10, seed=0)
    found = [example for *_, example in build(LraPathfinder, Pathfinder(train=6, val=2, test=2), tmp_path / "tfds")]
    assert [example["label"] for example in found] == labels.tolist()
    assert all((example["image"] == image).all() for example, image in zip(found, images, strict=True))


@pytest.mark.parametrize(
    ("builder", "kind"), [(AddingProblem, Adding), (TemporalOrderProblem, TemporalOrder), (AssociativeRecall, Recall)]
)
def test_rows_that_are_made_as_they_are_read(tmp_path, builder, kind):
    source = kind(train=5, val=3, test=2)
    for _, split, i, example in build(builder, source, tmp_path / "tfds"):
        tokens, mask = split.gather(torch.tensor([i]), source.length)
        row, target = (example[key] for key in builder.KEYS)
        assert mask.all() and (row == tokens[0, 0].numpy()).all() and target == split.labels[i]
        assert row.dtype == source.dtype


def test_the_paper_config_is_the_default(tmp_path):
    builder = Listops(data_dir=tmp_path)
    assert builder.builder_config.name == "lra" and str(builder.version) == ListOps.version
    assert builder.builder_config.source.provenance == ListOps().provenance
    assert builder.info.supervised_keys == ("source", "target")
