"""Image and Text from the archives of CIFAR-10 and IMDb; hostile and damaged archives."""

import os
import tarfile
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from server import (
    assert_rejected,
    cifar,
    examples,
    imdb,
    of_archive,
    official,
    prepared,
    records,
    silent,
    trained,
    write_tar,
)

from data_prep.archive import members, reading
from data_prep.image import Image, pillow_grey, shuffled, tensorflow_grey
from data_prep.text import Text

N = 6  # images of each batch
ORDER = {"data_batch_1": 1, "data_batch_2": 4, "data_batch_3": 3, "data_batch_4": 0, "data_batch_5": 5}  # name: seed


@pytest.fixture
def images(tmp_path):
    return cifar(tmp_path / "cifar.tar.gz", N) | {"hold_out": 10}


@pytest.fixture
def reviews(tmp_path):
    return imdb(tmp_path / "imdb.tar.gz")


def options_of(task, folder):
    """Options of a source that reads a small archive of the task in the folder."""
    return cifar(folder / "cifar.tar.gz", N) | {"hold_out": 10} if task is Image else imdb(folder / "imdb.tar.gz")


@pytest.fixture(scope="module")
def colours():
    """R, G, B of 60,000 colours and of every grey, (3, n)."""
    drawn = np.random.default_rng(0).integers(0, 256, (3, 60_000))
    corners = np.stack(np.meshgrid([0, 1, 254, 255], [0, 1, 254, 255], [0, 1, 254, 255])).reshape(3, -1)
    return np.concatenate([drawn, corners, np.tile(np.arange(256), (3, 1))], axis=1).astype(np.uint32)


def test_tensorflow_grey_is_the_formula_in_fractions(colours):
    some = colours[:, -3000:]
    weights = [Fraction(2989, 10_000), Fraction(587, 1000), Fraction(114, 1000)]
    exact = []
    for colour in some.T.tolist():
        grey = sum(weight * Fraction(value, 255) for weight, value in zip(weights, colour, strict=True))
        exact.append(floor(grey * Fraction(511, 2)))
    assert tensorflow_grey(*some).tolist() == exact


def test_tensorflow_grey_is_what_its_32_bit_floats_give(colours):
    """image / 255, weighted sum, times 255.5, truncated: TensorFlow's operations in its precision."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    grey = np.tensordot(np.array([0.2989, 0.5870, 0.1140], np.float32), scaled, axes=1)
    floats = (grey * np.float32(255.5)).astype(np.uint8)
    difference = tensorflow_grey(*colours).astype(int) - floats
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 2e-4


def test_pillow_grey_is_pillow(colours):
    from PIL import Image as image

    pixels = image.fromarray(colours.T.astype(np.uint8)[None]).convert("L")
    assert pillow_grey(*colours).tolist() == np.asarray(pixels)[0].tolist()


def grey_bytes(pixels):
    """pixels: (n, 3) uint8."""
    return bytes(tensorflow_grey(*pixels.T.astype(np.uint32)).tolist())


def grey_records(seeds):
    """Label and grey levels of the images in the batches of these seeds."""
    rows = np.concatenate([records(N, seed) for seed in seeds])
    return [(int(row[0]), grey_bytes(row[1:].reshape(3, 1024).T)) for row in rows]


def test_images_have_the_order_of_the_batches(tmp_path, images):
    train = grey_records(ORDER.values())
    splits = prepared(Image(**images, order="archive"), tmp_path / "data")
    assert splits == {"train": train[:20], "val": train[20:], "test": grey_records([2])}


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


def test_images_are_split_and_ordered_as_by_tfds(tmp_path, images, cifar10):
    splits = prepared(Image(**images | {"hold_out": 3}), tmp_path / "data")
    for name, part in (("train", "train[:90%]"), ("val", "train[90%:]"), ("test", "test")):
        source = cifar10.as_data_source(part)
        expected = [(example["label"], grey_bytes(example["image"].reshape(1024, 3))) for example in source]
        assert sorted(splits[name]) == sorted(expected)
    for split, n in (("train", 5 * N), ("test", N)):
        ids = [example["id"].decode() for example in cifar10.as_data_source(split)]
        assert [f"{split}_{place:05d}" for place in shuffled(n, split)] == ids
    # The whole of TFDS's cifar10 is printed everywhere as train_16399, train_01680, ...
    assert shuffled(50_000, "train")[:5].tolist() == [16399, 1680, 47917, 17307, 27051]


def unpacked(path, part):
    """Label and stripped text of each review, unpacked by tarfile, in the order of the archive's names."""
    found = []
    with tarfile.open(path) as tar:
        for name in sorted(tar.getnames()):
            folders = name.split("/")
            if len(folders) == 4 and folders[1] == part and folders[2] != "unsup":
                found.append((int(folders[2] == "pos"), tar.extractfile(name).read().strip()))
    return found


def test_reviews_have_the_splits_of_the_paper(tmp_path, reviews):
    source = Text(**reviews)
    splits = prepared(source, tmp_path / "data")
    train = unpacked(reviews["archive"], "train")
    test = unpacked(reviews["archive"], "test")
    assert splits == {"train": train, "val": test, "test": test}
    assert len(train) == len(test) == 40
    # The validation set is the test set and is not stored twice.
    stored = {path.name.split(".")[0] for path in source.folder(tmp_path / "data").iterdir()}
    assert stored == {"train", "test", "meta", "SHA256SUMS"}


def test_reviews_have_the_texts_of_tfds(tmp_path, reviews):
    tfds = pytest.importorskip("tensorflow_datasets", reason="pip install '.[tfds]'")
    builder = tfds.builder_cls("imdb_reviews")(data_dir=tmp_path)
    splits = prepared(Text(**reviews), tmp_path / "data")
    with tarfile.open(reviews["archive"]) as tar:
        files = [(name, tar.extractfile(name)) for name in tar.getnames()]
        for part in ("train", "test"):
            found = dict(builder._generate_examples(files, f"aclImdb/{part}"))
            texts = [(int(found[name]["label"] == "pos"), found[name]["text"]) for name in sorted(found)]
            assert splits[part] == texts
            assert any(text.endswith(b"\xa0") for _, text in texts)


def test_held_out_reviews_are_a_part_of_train_that_never_changes(tmp_path, reviews):
    splits = prepared(Text(**reviews, hold_out=7), tmp_path)
    whole = unpacked(reviews["archive"], "train")
    assert sorted(splits["val"] + splits["train"]) == sorted(whole)
    assert splits["test"] == unpacked(reviews["archive"], "test")
    # By the archive's place: the frozen stream of RandomState(0), which no version of numpy may change.
    assert [whole.index(review) for review in splits["val"]] == [4, 10, 15, 20, 22, 25, 28]


@pytest.mark.parametrize(
    ("task", "hold_out", "sizes"),
    [
        (Image, 10, {"train": 8, "val": 4, "test": 3}),
        (Text, 0, {"train": 10, "val": 8, "test": 8}),
        (Text, 6, {"train": 10, "val": 4, "test": 8}),
    ],
)
def test_smaller_sizes_are_parts_of_the_whole(tmp_path, task, hold_out, sizes):
    options = options_of(task, tmp_path) | {"hold_out": hold_out}
    few = prepared(task(**options, **sizes), tmp_path)
    whole = prepared(task(**options), tmp_path)
    assert {name: len(part) for name, part in few.items()} == sizes
    for name, part in few.items():
        assert [example for example in whole[name] if example in part] == part
        assert task is Image or {label for label, _ in part} == {0, 1}
    # They are drawn, not the first.
    assert few["train"] != whole["train"][: sizes["train"]]


def test_other_arguments_have_another_folder(tmp_path, reviews):
    others = [Text(), Text(hold_out=7), Text(train=9), Text(**reviews), Text(**reviews, hold_out=7, train=9)]
    assert len({other.folder(tmp_path) for other in others}) == 5
    # The checksum decides, not the address.
    mirror = Text(url="http://127.0.0.1/x.gz", sha256=reviews["sha256"])
    assert mirror.folder(tmp_path) == Text(**reviews).folder(tmp_path)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Image, {"grey": "luma"}, "source.grey must be one of tensorflow, pillow, not 'luma'"),
        (Image, {"order": "random"}, "source.order must be one of tfds, archive, not 'random'"),
        (Image, {"hold_out": 0}, "hold_out of 1 or more"),
        (Image, {"val": 0}, "at least one example"),
        (Image, {"hold_out": 30}, "train: all examples asked for, there are 0"),
        (Image, {"test": 7}, "test: 7 examples asked for, there are 6"),
        (Text, {"hold_out": -1}, "hold_out of 0 or more"),
        (Text, {"train": 0}, "at least one example"),
        (Text, {"test": 5}, "hold_out=0 the test set is the validation set, so val must be 5 like test, not None"),
        (Text, {"train": 41}, "train: 41 examples asked for, there are 40"),
        (Text, {"hold_out": 40}, "train: all examples asked for, there are 0"),
        (Text, {"hold_out": 10, "val": 11}, "val: 11 examples asked for, there are 10"),
        (Text, {"val": 41, "test": 41}, "test: 41 examples asked for, there are 40"),
    ],
)
def test_wrong_options_are_rejected(tmp_path, task, options, message):
    with pytest.raises(ValueError, match=message):
        task(**options_of(task, tmp_path) | options).prepare(tmp_path / "data")
    assert not list(tmp_path.glob("data/*/"))


BATCH = "cifar-10-batches-bin/data_batch_1.bin"
TRAIN = ("aclImdb/train/neg/0_1.txt", "aclImdb/train/pos/0_9.txt")


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        (Image, {}, r"is not the CIFAR-10 archive: it lacks cifar-10-batches-bin/data_batch_1.bin"),
        (Image, {BATCH: bytes(3072)}, r"data_batch_1.bin: 3072 bytes are not records of 3073"),
        (Image, {BATCH: b"\x0a" + bytes(3072)}, r"data_batch_1.bin: a label is 10, not 0 to 9"),
        (Text, dict.fromkeys(TRAIN, b"good"), r"x.gz is not the IMDb archive: it holds no aclImdb/test/neg/<id>_<rat"),
    ],
)
def test_another_archive_is_named(tmp_path, task, files, message):
    other = write_tar(tmp_path / "x.gz", files | {"readme.html": b""})
    assert_rejected(task(**other), tmp_path / "data", message)


def test_a_run_on_another_file_names_its_checksum(tmp_path):
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


@pytest.mark.slow
def test_fifty_thousand_reviews(tmp_path):
    source = Text(**of_archive(official("aclImdb_v1.tar.gz")), hold_out=2500)
    source.prepare(tmp_path)
    splits = source.load(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 22_500, "val": 2_500, "test": 25_000}
    assert splits["test"].labels.bincount().tolist() == [12_500, 12_500]
    # Within four standard errors.
    assert abs(splits["val"].labels.float().mean() - 0.5) < 0.04
    lengths = np.concatenate([split.lengths.numpy().ravel() for split in splits.values()])
    assert 1_250 < lengths.mean() < 1_370 and lengths.min() >= 10 and lengths.max() < 16_384
    assert all(text.decode() for _, text in examples(splits["val"]))


HOSTILE = {  # name: type and target of a member
    "../outside": (tarfile.REGTYPE, ""),
    "a/../../outside": (tarfile.REGTYPE, ""),
    "/etc/passwd": (tarfile.REGTYPE, ""),
    "symlink": (tarfile.SYMTYPE, "/etc/passwd"),
    "hardlink": (tarfile.LNKTYPE, "a"),
    "device": (tarfile.CHRTYPE, ""),
    "pipe": (tarfile.FIFOTYPE, ""),
    "sparse": (tarfile.GNUTYPE_SPARSE, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_rejected_by_the_name_of_its_member(tmp_path, name):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = HOSTILE[name]
    source = Text(**imdb(tmp_path / "imdb.tar.gz", hostile=member))
    before = sorted(tmp_path.rglob("*"))
    message = f"not to be trusted: its member '{name}' (lies outside|is a link|is not a)"
    assert_rejected(source, tmp_path / "data", message)
    assert {path for path in tmp_path.rglob("*") if path.suffix != ".lock"} <= {*before, tmp_path / "data"}


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz", "w:bz2"])
def test_members_are_read_in_order_whatever_the_compression(tmp_path, mode):
    files = {"./a/2": b"two" * 999, "a/1": b"", "b/3": b"three", "a/4": bytes(512)}
    write_tar(tmp_path / "some.tar", files, mode=mode)
    wanted = lambda name: name.startswith("a/")
    found = [(name, file.read()) for name, file in members(tmp_path / "some.tar", wanted, silent)]
    assert found == [("a/2", b"two" * 999), ("a/1", b""), ("a/4", bytes(512))]


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, "changed"])
@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_an_archive_that_is_cut_or_changed_raises(tmp_path, mode, share):
    path = tmp_path / "some.tar"
    write_tar(path, {f"a/{i}": os.urandom(3000) for i in range(20)}, mode=mode)
    data = bytearray(path.read_bytes())
    if share == "changed":
        data[30_000] ^= 4
    else:
        del data[int(share * len(data)) :]
    path.write_bytes(data)
    message = r"some.tar is damaged or not an archive \(.*\): get it again"
    with pytest.raises(ValueError, match=message) as caught, reading(path):
        [file.read() for _, file in members(path, lambda name: True, silent)]
    assert "\n" not in str(caught.value)
