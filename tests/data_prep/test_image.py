"""Image: CIFAR-10's binary layout becomes rows of grey levels; both conversions against independent ones."""

import hashlib
import os
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
import torch
from server import cifar, records, write_tar

from data_prep.image import Image, pillow_grey, shuffled, tensorflow_grey
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import verify
from lra.runs import record
from lra.train.__main__ import train

N = 6  # images of each batch
ORDER = {"data_batch_1": 1, "data_batch_2": 4, "data_batch_3": 3, "data_batch_4": 0, "data_batch_5": 5}  # name: seed


@pytest.fixture
def keys(tmp_path):
    return {"archive": tmp_path / "cifar.tar.gz", "sha256": cifar(tmp_path / "cifar.tar.gz", N), "hold_out": 10}


@pytest.fixture(scope="module")
def colours():
    """R, G, B of 60,000 colours and of every grey, (3, n)."""
    drawn = np.random.default_rng(0).integers(0, 256, (3, 60_000))
    corners = np.stack(np.meshgrid([0, 1, 254, 255], [0, 1, 254, 255], [0, 1, 254, 255])).reshape(3, -1)
    return np.concatenate([drawn, corners, np.tile(np.arange(256), (3, 1))], axis=1).astype(np.uint32)


def test_tensorflow_grey_is_the_formula_in_fractions(colours):
    some = colours[:, -3000:]
    weights = [Fraction(2989, 10_000), Fraction(587, 1000), Fraction(114, 1000)]
    exact = [
        floor(sum(w * Fraction(int(c), 255) for w, c in zip(weights, colour, strict=True)) * Fraction(511, 2))
        for colour in some.T
    ]
    assert tensorflow_grey(*some).tolist() == exact


def test_tensorflow_grey_is_what_its_32_bit_floats_give(colours):
    """image / 255, weighted sum, times 255.5, truncated: TensorFlow's operations in its precision."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    grey = np.tensordot(np.array([0.2989, 0.5870, 0.1140], np.float32), scaled, axes=1)
    floats = (grey * np.float32(255.5)).astype(np.uint8)
    difference = tensorflow_grey(*colours).astype(int) - floats
    assert np.abs(difference).max() <= 1 and (difference != 0).mean() < 2e-4


def test_pillow_grey_is_pillow(colours):
    from PIL import Image as image

    pixels = image.fromarray(colours.T.astype(np.uint8)[None]).convert("L")
    assert pillow_grey(*colours).tolist() == np.asarray(pixels)[0].tolist()


def expected(grey):
    """The images of the whole archive, pixel by pixel: the 30 of train in the order of the batches' numbers, test."""
    parts = [np.concatenate([records(N, seed) for seed in ORDER.values()]), records(N, 2)]
    for part in parts:
        planes = part[:, 1:].reshape(-1, 3, 32, 32)
        pixels = [
            [int(grey(*planes[i, :, y, x].astype(np.uint32))) for y in range(32) for x in range(32)]
            for i in range(len(part))
        ]
        yield pixels, part[:, 0].tolist()


def test_splits_in_the_order_of_the_batches(tmp_path, keys):
    source = Image(**keys, order="archive")
    verify(source.prepare(tmp_path / "data"))
    splits = source.load(tmp_path / "data")
    (train, train_labels), (test, test_labels) = expected(tensorflow_grey)
    for name, pixels, labels in (
        ("train", train[:20], train_labels[:20]),
        ("val", train[20:], train_labels[20:]),
        ("test", test, test_labels),
    ):
        split = splits[name]
        assert split.tokens.dtype == torch.uint8 and (split.lengths == 1024).all()
        assert split.tokens.view(-1, 1024).tolist() == pixels and split.labels.tolist() == labels


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """TFDS's own cifar10 of the same images: its keys, its shuffle and its slices, without TensorFlow to read files."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    from tensorflow_datasets.image_classification import cifar as theirs

    class Small(theirs.Cifar10, skip_registration=True):
        def _info(self):
            image = tfds.features.Tensor(shape=(32, 32, 3), dtype=np.uint8)
            label = tfds.features.ClassLabel(num_classes=10)
            features = tfds.features.FeaturesDict({"id": tfds.features.Text(), "image": image, "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            parts = {"train": ORDER.values(), "test": [2]}
            return {name: self._generate_examples(f"{name}_", seeds) for name, seeds in parts.items()}

    images = lambda seed, _: ((r[:1], r[1:].reshape(3, 32, 32).transpose(1, 2, 0)) for r in records(N, seed))
    monkeypatch.setattr(theirs, "_load_data", images)
    builder = Small(data_dir=tmp_path / "tfds", file_format="array_record")
    builder.download_and_prepare()
    return builder


def test_the_dev_set_is_the_last_tenth_of_tfds(tmp_path, keys, cifar10):
    source = Image(**keys | {"hold_out": 3})
    source.prepare(tmp_path / "data")
    splits = source.load(tmp_path / "data")
    for name, part in (("train", "train[:90%]"), ("val", "train[90%:]"), ("test", "test")):
        found = [
            (tensorflow_grey(*example["image"].reshape(1024, 3).T.astype(np.uint32)).tolist(), example["label"])
            for example in cifar10.as_data_source(part)
        ]
        ours = zip(splits[name].tokens.view(-1, 1024).tolist(), splits[name].labels.tolist(), strict=True)
        assert sorted(ours) == sorted(found)


def test_the_order_of_tfds(cifar10):
    for split, n in (("train", 5 * N), ("test", N)):
        ids = [example["id"].decode() for example in cifar10.as_data_source(split)]
        assert [f"{split}_{place:05d}" for place in shuffled(n, split)] == ids
    # The whole of TFDS's cifar10 is printed everywhere as train_16399, train_01680, ...
    assert shuffled(50_000, "train")[:5].tolist() == [16399, 1680, 47917, 17307, 27051]


def test_smaller_sizes_are_parts_of_the_whole(tmp_path, keys):
    few, whole = Image(**keys, train=8, val=4, test=3), Image(**keys)
    images = {}
    for source in (few, whole):
        source.prepare(tmp_path / "data")
        loaded = source.load(tmp_path / "data")
        images[source] = {name: split.tokens.view(-1, 1024).tolist() for name, split in loaded.items()}
    assert [len(part) for part in images[few].values()] == [8, 4, 3]
    for name, part in images[few].items():
        assert [image for image in images[whole][name] if image in part] == part
    assert images[few]["train"] != images[whole]["train"][:8]  # drawn, not the first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grey": "luma"}, "source.grey must be one of tensorflow, pillow, not 'luma'"),
        ({"order": "random"}, "source.order must be one of tfds, archive, not 'random'"),
        ({"hold_out": 0}, "hold_out of 1 or more"),
        ({"val": 0}, "at least one example"),
        ({"hold_out": 30}, "train: all examples asked for, there are 0"),
        ({"test": 7}, "test: 7 examples asked for, there are 6"),
    ],
)
def test_wrong_arguments(tmp_path, keys, arguments, message):
    with pytest.raises(ValueError, match=message):
        Image(**keys | arguments).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, r"is not the CIFAR-10 archive: it lacks cifar-10-batches-bin/data_batch_1.bin"),
        (bytes(3072), r"data_batch_1.bin: 3072 bytes are not records of 3073"),
        (b"\x0a" + bytes(3072), r"data_batch_1.bin: a label is 10, not 0 to 9"),
    ],
)
def test_another_archive(tmp_path, batch, message):
    files = {} if batch is None else {"cifar-10-batches-bin/data_batch_1.bin": batch}
    sha256 = write_tar(tmp_path / "x.tar.gz", files | {"readme.html": b""})
    with pytest.raises(ValueError, match=message):
        Image(archive=tmp_path / "x.tar.gz", sha256=sha256).prepare(tmp_path / "data")


def test_a_run_on_another_file_says_so(tmp_path):
    sha256 = cifar(tmp_path / "mine.gz")
    words = [f"source.archive={tmp_path / 'mine.gz'}", f"source.sha256={sha256}", f"data.root={tmp_path / 'data'}"]
    words += ["source.hold_out=4", "source.train=20", "source.val=4", "source.test=6", f"runs={tmp_path / 'runs'}"]
    config = compose(Experiment, ["task=image", "attn=mean", "budget=smoke", "seeds=[0]", *words])
    config.task_data().source.prepare(tmp_path / "data")
    train.__wrapped__(config)
    (made,) = (tmp_path / "runs").rglob("record.json")
    assert record.load(made).data == f"sha256 {sha256[:12]}"


@pytest.mark.slow
@pytest.mark.skipif("LRA_TEST_DATA" not in os.environ, reason="LRA_TEST_DATA: a folder with cifar-10-binary.tar.gz")
def test_sixty_thousand_images(tmp_path):
    path = Path(os.environ["LRA_TEST_DATA"]) / "cifar-10-binary.tar.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with open(path, "rb") as file:
        source = Image(archive=path, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    source.prepare(tmp_path)
    splits = source.load(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 45_000, "val": 5_000, "test": 10_000}
    assert splits["test"].labels.bincount().tolist() == [1000] * 10
    # CIFAR-10's mean of R, G, B is 0.4914, 0.4822, 0.4465.
    assert abs(splits["train"].tokens.float().mean() / 255.5 - 0.4808) < 0.003
