"""Image: CIFAR-10's binary layout becomes rows of grey levels; both conversions against independent ones."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from server import cifar, of_archive, official, prepared, records, trained, write_tar

from data_prep.image import Image, pillow_grey, shuffled, tensorflow_grey

N = 6  # images of each batch
ORDER = {"data_batch_1": 1, "data_batch_2": 4, "data_batch_3": 3, "data_batch_4": 0, "data_batch_5": 5}  # name: seed


@pytest.fixture
def keys(tmp_path):
    return cifar(tmp_path / "cifar.tar.gz", N) | {"hold_out": 10}


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


def grey_bytes(colours):
    """colours: (pixels, 3) uint8."""
    return bytes(tensorflow_grey(*colours.T.astype(np.uint32)).tolist())


def test_splits_in_the_order_of_the_batches(tmp_path, keys):
    train, test = (
        [(int(row[0]), grey_bytes(row[1:].reshape(3, 1024).T)) for seed in seeds for row in records(N, seed)]
        for seeds in (ORDER.values(), [2])
    )
    splits = prepared(Image(**keys, order="archive"), tmp_path / "data")
    assert splits == {"train": train[:20], "val": train[20:], "test": test}


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
    splits = prepared(Image(**keys | {"hold_out": 3}), tmp_path / "data")
    for name, part in (("train", "train[:90%]"), ("val", "train[90%:]"), ("test", "test")):
        found = [
            (example["label"], grey_bytes(example["image"].reshape(1024, 3)))
            for example in cifar10.as_data_source(part)
        ]
        assert sorted(splits[name]) == sorted(found)


def test_the_order_of_tfds(cifar10):
    for split, n in (("train", 5 * N), ("test", N)):
        ids = [example["id"].decode() for example in cifar10.as_data_source(split)]
        assert [f"{split}_{place:05d}" for place in shuffled(n, split)] == ids
    # The whole of TFDS's cifar10 is printed everywhere as train_16399, train_01680, ...
    assert shuffled(50_000, "train")[:5].tolist() == [16399, 1680, 47917, 17307, 27051]


def test_smaller_sizes_are_parts_of_the_whole(tmp_path, keys):
    sources = Image(**keys, train=8, val=4, test=3), Image(**keys)
    few, whole = (prepared(source, tmp_path / "data") for source in sources)
    assert [len(part) for part in few.values()] == [8, 4, 3]
    for name, part in few.items():
        assert [image for image in whole[name] if image in part] == part
    assert few["train"] != whole["train"][:8]  # drawn, not the first


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
    other = write_tar(tmp_path / "x.tar.gz", files | {"readme.html": b""})
    with pytest.raises(ValueError, match=message):
        Image(**other).prepare(tmp_path / "data")


def test_a_run_on_another_file_says_so(tmp_path):
    arguments = cifar(tmp_path / "mine.gz") | {"hold_out": 4, "train": 20, "val": 4, "test": 6}
    words = [f"source.{key}={value}" for key, value in arguments.items()]
    assert trained(tmp_path, "task=image", "attn=mean", *words).data == f"sha256 {arguments['sha256'][:12]}"


@pytest.mark.slow
def test_sixty_thousand_images(tmp_path):
    source = Image(**of_archive(official("cifar-10-binary.tar.gz")))
    source.prepare(tmp_path)
    splits = source.load(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 45_000, "val": 5_000, "test": 10_000}
    assert splits["test"].labels.bincount().tolist() == [1000] * 10
    # CIFAR-10's mean of R, G, B is 0.4914, 0.4822, 0.4465.
    assert abs(splits["train"].tokens.float().mean() / 255.5 - 0.4808) < 0.003
