"""Text: the reviews of an archive in the official layout become rows of bytes, and which of them a split gets."""

import tarfile

import numpy as np
import pytest
from server import examples, imdb, of_archive, official, prepared, write_tar

from data_prep.text import Text

N = 20  # reviews of each kind


@pytest.fixture
def keys(tmp_path):
    return imdb(tmp_path / "imdb.tar.gz", N)


def unpacked(path, part):
    """Label and stripped text of each review, unpacked by tarfile, in the order of the archive's names."""
    with tarfile.open(path) as tar:
        kinds = [(name, name.split("/")) for name in sorted(tar.getnames())]
        return [
            (int(words[2] == "pos"), tar.extractfile(name).read().strip())
            for name, words in kinds
            if words[1:2] == [part] and len(words) == 4 and words[2] != "unsup"
        ]


def test_the_papers_splits(tmp_path, keys):
    source = Text(**keys)
    splits = prepared(source, tmp_path / "data")
    train, test = (unpacked(keys["archive"], part) for part in ("train", "test"))
    assert splits == {"train": train, "val": test, "test": test} and len(train) == len(test) == 2 * N
    stored = {path.name.split(".")[0] for path in source.folder(tmp_path / "data").iterdir()}
    assert stored == {"train", "test", "meta", "SHA256SUMS"}  # the dev set, being the test set, is not stored twice


def test_texts_are_those_of_tfds(tmp_path, keys):
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    builder = tfds.builder_cls("imdb_reviews")(data_dir=tmp_path)
    splits = prepared(Text(**keys), tmp_path / "data")
    with tarfile.open(keys["archive"]) as tar:
        files = [(name, tar.extractfile(name)) for name in tar.getnames()]
        for part in ("train", "test"):
            found = dict(builder._generate_examples(files, f"aclImdb/{part}"))
            texts = [(int(found[name]["label"] == "pos"), found[name]["text"]) for name in sorted(found)]
            assert splits[part] == texts and any(text.endswith(b"\xa0") for _, text in texts)


def test_held_out_reviews_are_a_part_of_train_that_never_changes(tmp_path, keys):
    splits = prepared(Text(**keys, hold_out=7), tmp_path)
    whole = unpacked(keys["archive"], "train")
    assert sorted(splits["val"] + splits["train"]) == sorted(whole)
    assert splits["test"] == unpacked(keys["archive"], "test")
    # By the archive's place: the frozen stream of RandomState(0), which no version of numpy may change.
    assert [whole.index(row) for row in splits["val"]] == [4, 10, 15, 20, 22, 25, 28]


def test_smaller_sizes_are_parts_of_the_whole(tmp_path, keys):
    for hold_out, val in ((0, 8), (6, 4)):
        few = prepared(Text(**keys, hold_out=hold_out, train=10, val=val, test=8), tmp_path)
        assert {name: len(split) for name, split in few.items()} == {"train": 10, "val": val, "test": 8}
        for name, split in prepared(Text(**keys, hold_out=hold_out), tmp_path).items():
            assert set(few[name]) <= set(split)
            assert 0 < sum(label for label, _ in few[name]) < len(few[name])


def test_other_folders_for_other_arguments(tmp_path, keys):
    others = [Text(), Text(hold_out=7), Text(train=9), Text(**keys), Text(**keys, hold_out=7, train=9)]
    assert len({other.folder(tmp_path) for other in others}) == 5
    mirror = Text(url="http://127.0.0.1/x.gz", sha256=keys["sha256"])
    assert mirror.folder(tmp_path) == Text(**keys).folder(tmp_path)  # the checksum decides, not where it came from


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hold_out": -1}, "hold_out of 0 or more"),
        ({"train": 0}, "at least one example"),
        ({"test": 5}, "with hold_out=0 the test set is the validation set, so val must be 5 like test, not None"),
        ({"train": 41}, "train: 41 examples asked for, there are 40"),
        ({"hold_out": 40}, "train: all examples asked for, there are 0"),
        ({"hold_out": 10, "val": 11}, "val: 11 examples asked for, there are 10"),
        ({"val": 41, "test": 41}, "test: 41 examples asked for, there are 40"),
    ],
)
def test_wrong_arguments(tmp_path, keys, arguments, message):
    with pytest.raises(ValueError, match=message):
        Text(**keys, **arguments).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))


def test_another_archive(tmp_path):
    other = write_tar(tmp_path / "x.gz", {"aclImdb/train/neg/0_1.txt": b"bad", "aclImdb/train/pos/0_9.txt": b"good"})
    with pytest.raises(ValueError, match=r"x.gz is not the IMDb archive: it holds no aclImdb/test/neg/<id>_<rating>"):
        Text(**other).prepare(tmp_path / "data")


@pytest.mark.slow
def test_fifty_thousand_reviews(tmp_path):
    source = Text(**of_archive(official("aclImdb_v1.tar.gz")), hold_out=2500)
    source.prepare(tmp_path)
    splits = source.load(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 22_500, "val": 2_500, "test": 25_000}
    assert splits["test"].labels.bincount().tolist() == [12_500, 12_500]
    assert abs(splits["val"].labels.float().mean() - 0.5) < 0.04  # four standard errors
    lengths = np.concatenate([split.lengths.numpy().ravel() for split in splits.values()])
    assert 1_250 < lengths.mean() < 1_370 and lengths.min() >= 10 and lengths.max() < 16_384
    assert all(text.decode() for _, text in examples(splits["val"]))
