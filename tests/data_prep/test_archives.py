"""The Image and Text sources, read from CIFAR-10 and IMDb archives; damaged archives."""

import os
import re
import tarfile
from fractions import Fraction
from functools import partial
from math import floor

import numpy as np
import pytest
from PIL import Image as PillowImage
from server import CIFAR, RECORDS, assert_error, assert_rejected, cifar, imdb, prepared, silent, trained, write_tar

from data_prep.archive import members, reading
from data_prep.image import TEST, TRAIN, Image, pillow_grey, shuffled, tensorflow_grey
from data_prep.text import Text


def options_of(task, folder):
    """Write a small archive of the task; return the options of the source that reads it."""
    return cifar(folder / "cifar.tar.gz") | {"hold_out": 10} if task is Image else imdb(folder / "imdb.tar.gz")


@pytest.fixture
def reviews(tmp_path):
    return options_of(Text, tmp_path)


@pytest.fixture(scope="module")
def colours():
    """R, G, B (3, n) of 60,000 random colours, the corners of the colour cube and every grey."""
    random_colours = np.random.default_rng(0).integers(0, 256, (3, 60_000))
    corners = np.stack(np.meshgrid([0, 1, 254, 255], [0, 1, 254, 255], [0, 1, 254, 255])).reshape(3, -1)
    return np.concatenate([random_colours, corners, np.tile(np.arange(256), (3, 1))], axis=1).astype(np.uint32)


def test_tensorflow_grey_matches_exact_rational_formula(colours):
    subset = colours[:, -3000:]
    weights = [Fraction(2989, 10_000), Fraction(587, 1000), Fraction(114, 1000)]
    grey = lambda colour: sum(weight * Fraction(value, 255) for weight, value in zip(weights, colour, strict=True))
    assert tensorflow_grey(*subset).tolist() == [floor(grey(colour) * Fraction(511, 2)) for colour in subset.T.tolist()]


def test_tensorflow_grey_matches_float32_computation(colours):
    """TensorFlow computes image / 255, the weighted sum, times 255.5, truncated, all in float32."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    grey = np.tensordot(np.array([0.2989, 0.5870, 0.1140], np.float32), scaled, axes=1)
    difference = tensorflow_grey(*colours).astype(int) - (grey * np.float32(255.5)).astype(np.uint8)
    assert np.abs(difference).max() <= 1 and (difference != 0).mean() < 2e-4


def test_pillow_grey_matches_pillow(colours):
    pixels = PillowImage.fromarray(colours.T.astype(np.uint8)[None]).convert("L")
    assert pillow_grey(*colours).tolist() == np.asarray(pixels)[0].tolist()


def grey_bytes(pixels):
    """Grey levels of pixels (n, 3) uint8, as bytes."""
    return bytes(tensorflow_grey(*pixels.T.astype(np.uint32)).tolist())


def grey_records(split):
    """(label, grey levels) of each image of a split."""
    return [(int(record[0]), grey_bytes(record[1:].reshape(3, 1024).T)) for record in CIFAR[split]]


def test_archive_order_keeps_image_order_of_batches(tmp_path, monkeypatch):
    # The six images of a file are converted in parts of four and two.
    monkeypatch.setattr("data_prep.image.CHUNK", 4)
    train = grey_records("train")
    splits = prepared(Image(**options_of(Image, tmp_path), order="archive"), tmp_path / "data")
    assert splits == {"train": train[:20], "val": train[20:], "test": grey_records("test")}


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """The cifar10 builder of TFDS on the same images: its keys, shuffle and slices, without TensorFlow."""
    theirs = pytest.importorskip("tensorflow_datasets.image_classification.cifar", reason="pip install -e '.[tfds]'")

    class Small(theirs.Cifar10, skip_registration=True):
        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples("train_", TRAIN), "test": self._generate_examples("test_", TEST)}

    images = lambda name, _: ((r[:1], r[1:].reshape(3, 32, 32).transpose(1, 2, 0)) for r in RECORDS[name])
    monkeypatch.setattr(theirs, "_load_data", images)
    monkeypatch.setattr(theirs.tfds.features, "Image", partial(theirs.tfds.features.Tensor, dtype=np.uint8))
    builder = Small(data_dir=tmp_path / "tfds", file_format="array_record")
    builder.download_and_prepare()
    return builder


def test_image_splits_and_shuffle_match_tfds(tmp_path, cifar10):
    splits = prepared(Image(**options_of(Image, tmp_path) | {"hold_out": 3}), tmp_path / "data")
    for name, part in (("train", "train[:90%]"), ("val", "train[90%:]"), ("test", "test")):
        source = cifar10.as_data_source(part)
        expected = [(example["label"], grey_bytes(example["image"].reshape(1024, 3))) for example in source]
        assert sorted(splits[name]) == sorted(expected)
    for split, examples in CIFAR.items():
        ids = [example["id"].decode() for example in cifar10.as_data_source(split)]
        assert [f"{split}_{number:05d}" for number in shuffled(len(examples), split)] == ids
    # The published order of the full cifar10 of TFDS starts with train_16399, train_01680, ...
    assert shuffled(50_000, "train")[:5].tolist() == [16399, 1680, 47917, 17307, 27051]


def read_with_tarfile(path, part):
    """(label, stripped text) of each review of a split, read by tarfile and sorted by member name."""
    with tarfile.open(path) as tar:
        names = [name for name in sorted(tar.getnames()) if re.match(f"aclImdb/{part}/(neg|pos)/", name)]
        return [(int("/pos/" in name), tar.extractfile(name).read().strip()) for name in names]


def test_text_splits_match_paper(tmp_path, reviews):
    source = Text(**reviews)
    splits = prepared(source, tmp_path / "data")
    train, test = (read_with_tarfile(reviews["archive"], part) for part in ("train", "test"))
    assert splits == {"train": train, "val": test, "test": test} and len(train) == len(test) == 40
    # The validation set is the test set, which is stored only once.
    file_stems = {path.name.split(".")[0] for path in source.folder(tmp_path / "data").iterdir()}
    assert file_stems == {"train", "test", "meta", "raw", "SHA256SUMS"}
    # Another file is not replaced by these data.
    (tmp_path / "other.tar.gz").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"other.tar.gz has sha256 .* instead of"):
        Text(**reviews | {"archive": tmp_path / "other.tar.gz"}).folder(tmp_path / "data")


def test_review_texts_match_tfds(tmp_path, reviews):
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install -e '.[tfds]'")
    builder = tfds.builder_cls("imdb_reviews")(data_dir=tmp_path)
    splits = prepared(Text(**reviews), tmp_path / "data")
    with tarfile.open(reviews["archive"]) as tar:
        files = [(name, tar.extractfile(name)) for name in tar.getnames()]
        for part in ("train", "test"):
            entries = dict(builder._generate_examples(files, f"aclImdb/{part}"))
            texts = [(int(entries[name]["label"] == "pos"), entries[name]["text"]) for name in sorted(entries)]
            assert splits[part] == texts and any(text.endswith(b"\xa0") for _, text in texts)


def test_hold_out_is_fixed_subset_of_train(tmp_path, reviews):
    splits = prepared(Text(**reviews, hold_out=7), tmp_path)
    full = read_with_tarfile(reviews["archive"], "train")
    assert sorted(splits["val"] + splits["train"]) == sorted(full)
    assert splits["test"] == read_with_tarfile(reviews["archive"], "test")
    # Positions in the archive order, drawn by RandomState(0), whose stream numpy guarantees never to change.
    assert [full.index(review) for review in splits["val"]] == [4, 10, 15, 20, 22, 25, 28]


@pytest.mark.parametrize(
    "task, hold_out, counts", [(Image, 10, (8, 4, 3)), (Text, 0, (10, 8, 8)), (Text, 6, (10, 4, 8))]
)
def test_smaller_sizes_draw_subset_of_full_splits(tmp_path, task, hold_out, counts):
    sizes = dict(zip(("train", "val", "test"), counts, strict=True))
    options = options_of(task, tmp_path) | {"hold_out": hold_out}
    subsets = prepared(task(**options, **sizes), tmp_path)
    full = prepared(task(**options), tmp_path)
    assert {name: len(part) for name, part in subsets.items()} == sizes
    for name, part in subsets.items():
        assert [example for example in full[name] if example in part] == part
        assert task is Image or {label for label, _ in part} == {0, 1}
    # The subset is drawn at random: it is not a prefix.
    assert subsets["train"] != full["train"][: sizes["train"]]


def test_data_set_folder_depends_on_options_and_checksum(tmp_path, reviews):
    sources = [Text(), Text(hold_out=7), Text(train=9), Text(**reviews), Text(**reviews, hold_out=7, train=9)]
    assert len({candidate.folder(tmp_path) for candidate in sources}) == 5
    # The checksum identifies the data, not the URL.
    mirror = Text(url="http://127.0.0.1/x.gz", sha256=reviews["sha256"])
    assert mirror.folder(tmp_path) == Text(**reviews).folder(tmp_path)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Image, {"grey": "luma"}, "source.grey must be one of tensorflow, pillow, not 'luma'"),
        (Image, {"order": "random"}, "source.order must be one of tfds, archive, not 'random'"),
        (Image, {"hold_out": 0}, "hold_out of 1 or more"),
        (Image, {"test": 7}, "test: 7 examples requested, 6 available"),
        (Text, {"hold_out": -1}, "hold_out of 0 or more"),
        (Text, {"test": 5}, "hold_out=0 the test set is the validation set, so val must be 5 like test, not None"),
        (Text, {"hold_out": 40}, "train: all examples requested, 0 available"),
    ],
)
def test_invalid_option_error_names_option(tmp_path, task, options, message):
    assert_error(message, lambda: task(**options_of(task, tmp_path) | options).prepare(tmp_path / "data"))
    assert not list(tmp_path.glob("data/*/"))


BATCH = "cifar-10-batches-bin/data_batch_1.bin"
TRAIN_REVIEWS = {"aclImdb/train/neg/0_1.txt": b"bad", "aclImdb/train/pos/0_9.txt": b"good"}


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        (Image, {}, r"is not the CIFAR-10 archive: it lacks cifar-10-batches-bin/data_batch_1.bin"),
        (Image, {BATCH: bytes(3072)}, r"data_batch_1.bin: 3072 bytes are not records of 3073"),
        (Image, {BATCH: b"\x0a" + bytes(3072)}, r"data_batch_1.bin: a label is 10, not 0 to 9"),
        (Text, TRAIN_REVIEWS, r"x.gz is not the IMDb archive: it holds no aclImdb/test/neg/<id>_<rat"),
    ],
)
def test_wrong_archive_error_names_missing_or_invalid_member(tmp_path, task, files, message):
    assert_rejected(task(**write_tar(tmp_path / "x.gz", files | {"readme.html": b""})), tmp_path / "data", message)


def test_run_on_custom_archive_records_its_checksum(tmp_path):
    arguments = cifar(tmp_path / "mine.gz") | {"hold_out": 4, "train": 20, "val": 4, "test": 6}
    overrides = [f"source.{key}={value}" for key, value in arguments.items()]
    assert trained(tmp_path, "task=image", "attn=mean", *overrides).data == f"sha256 {arguments['sha256'][:12]}"


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz", "w:bz2"])
def test_members_are_read_in_archive_order_for_each_compression(tmp_path, mode):
    write_tar(tmp_path / "some.tar", {"./a/2": b"two" * 999, "a/1": b"", "b/3": b"three", "a/4": bytes(512)}, mode=mode)
    is_selected = lambda name: name.startswith("a/")
    entries = [(name, file.read()) for name, file in members(tmp_path / "some.tar", is_selected, silent)]
    assert entries == [("a/2", b"two" * 999), ("a/1", b""), ("a/4", bytes(512))]


def test_hard_link_in_archive_raises(tmp_path):
    """tar stores the second path of a file as a link, without content."""
    (tmp_path / "first").write_bytes(b"content")
    os.link(tmp_path / "first", tmp_path / "second")
    with tarfile.open(tmp_path / "some.tar", "w") as tar:
        tar.add(tmp_path / "first")
        tar.add(tmp_path / "second")
    with pytest.raises(ValueError, match="second is a hard link; pack it again with tar --hard-dereference"):
        list(members(tmp_path / "some.tar", lambda name: True, silent))


def test_archive_cut_between_members_raises(tmp_path):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": bytes(512) for i in range(4)}, mode="w:")
    # Two members, each with a header of 512 bytes.
    whole = path.read_bytes()
    path.write_bytes(whole[:2048])
    with pytest.raises(ValueError, match="unexpected end of data"), reading(path):
        list(members(path, lambda name: True, silent))
    # A hole of zeros in the header of the third member, which tarfile takes for the end.
    path.write_bytes(whole[:2048] + bytes(512) + whole[2560:])
    with pytest.raises(ValueError, match="data behind its end, or a damaged header"), reading(path):
        list(members(path, lambda name: True, silent))


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_truncated_or_corrupt_archive_raises(tmp_path, mode, share):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": os.urandom(3000) for i in range(20)}, mode=mode)
    data = bytearray(path.read_bytes())
    # The complete file has one changed bit.
    data[30_000] ^= 4
    path.write_bytes(data[: int(share * len(data))])
    message = r"some.tar is damaged or not an archive \(.*\): get it again"
    with pytest.raises(ValueError, match=message), reading(path):
        [file.read() for _, file in members(path, lambda name: True, silent)]
