"""Text and Genome: reviews and FASTA files become sequences; which of them a split gets, and what is refused."""

import gzip
import random
import tarfile

import numpy as np
import pytest
from server import examples, imdb, of_archive, official, prepared, trained, write_tar

from data_prep.genome import Genome, read_fasta, split_indices
from data_prep.text import Text
from lra.data.store import StoreError

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


def fasta(path, lengths, seed):
    """A record for each length, in lines of 60 letters; returns the letters of each."""
    draw = random.Random(seed)
    sequences = ["".join(draw.choices("ACGTNacgt", k=length)) for length in lengths]
    lines = []
    for number, letters in enumerate(sequences):
        lines += [f">ENS{number} cdna gene:{number}", *(letters[i : i + 60] for i in range(0, len(letters), 60))]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return sequences


@pytest.fixture
def files(tmp_path):
    """14 kept and 2 short dogs, 6 kept and one short donkey; the shortest kept one has one base more than the bound."""
    dogs = fasta(tmp_path / "dog.fa", [101, 100, 99, *range(150, 163)], seed=1)
    donkeys = fasta(tmp_path / "donkey.fa.gz", [500, 3, *range(200, 205)], seed=2)
    kept = {text.lower(): label for label, texts in enumerate((dogs, donkeys)) for text in texts if len(text) > 100}
    return {"dog": tmp_path / "dog.fa", "donkey": tmp_path / "donkey.fa.gz", "longer_than": 100}, kept


def test_every_long_sequence_is_in_one_split_with_its_species(files, tmp_path):
    arguments, kept = files
    splits = prepared(Genome(**arguments), tmp_path / "data")
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 12, "val": 4, "test": 4}
    found = {"".join("_agctn"[id] for id in row): label for rows in splits.values() for label, row in rows}
    assert found == kept and len(kept) == 20


@pytest.mark.parametrize("n", [3, 4, 10, 8586])
def test_split_is_a_partition_of_60_20_20(n):
    splits = split_indices(n, 1)
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(n))
    assert len(splits["test"]) == -(-n // 5) and len(splits["val"]) == -(-(n - len(splits["test"])) // 4)
    assert all((splits[name] == again).all() for name, again in split_indices(n, 1).items())
    if n > 4:
        assert (splits["test"] != split_indices(n, 2)["test"]).any()
    if n == 10:  # the frozen stream of RandomState
        assert splits["test"].tolist() == [2, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: the file ends without a sequence"),
        ("\n\n", "line 2: the file ends without a sequence"),
        ("ACGT\n", "line 1: a sequence without a > line before it"),
        (">a\nACGT\nACXT\n", "line 3: unknown letter 'X'; the letters are agctn"),
        (">a\nAC GT\n", "line 2: unknown letter ' '"),
        (">a\n>b\nACGT\n", "line 1: a > line without a sequence after it"),
        (">a\nACGT\n>b\n", "line 3: a > line without a sequence after it"),
    ],
)
@pytest.mark.parametrize("suffix", [".fa", ".fa.gz"])
def test_malformed_files_get_one_line(tmp_path, text, message, suffix):
    path = tmp_path / f"dog{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".fa.gz" else text.encode())
    with pytest.raises(ValueError) as caught:
        list(read_fasta(path))
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_line_ends_and_blank_lines_do_not_matter(tmp_path):
    (tmp_path / "dog.fa").write_bytes(b">a x\r\nAcg\r\n\r\nTN\r\n>b\nA")
    assert [row.tolist() for row in read_fasta(tmp_path / "dog.fa")] == [[1, 3, 2, 4, 5], [1]]


def test_cut_off_and_false_gzip_files(tmp_path):
    fasta(tmp_path / "dog.fa.gz", [3000], seed=1)
    whole = (tmp_path / "dog.fa.gz").read_bytes()
    for damaged in (whole[:-300], b">a\nACGT\n", whole[:200] + b"????" + whole[204:]):
        (tmp_path / "dog.fa.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            list(read_fasta(tmp_path / "dog.fa.gz"))
        assert "\n" not in str(caught.value)


def test_missing_files_name_both_keys(files, tmp_path):
    command = "lra data task=genome source.dog=<path> source.donkey=<path>"
    with pytest.raises(ValueError, match=command):
        Genome(dog=files[0]["dog"]).open(tmp_path)
    with pytest.raises(ValueError, match=r"source.donkey=/nowhere: there is no such file"):
        Genome(dog=files[0]["dog"], donkey="/nowhere").open(tmp_path)
    with pytest.raises(StoreError, match="prepare it with: lra data task=genome"):
        Genome(**files[0]).open(tmp_path)
    with pytest.raises(ValueError, match="no sequence of dog has more than 9999 bases"):
        Genome(**files[0] | {"longer_than": 9999}).prepare(tmp_path)
    assert not list(tmp_path.glob("genome-*/"))


def test_other_bytes_are_other_data(files, tmp_path):
    folder = Genome(**files[0]).folder("data")
    assert Genome(**files[0], seed=2).folder("data") != folder
    fasta(tmp_path / "dog.fa", [101, 150, 160], seed=9)
    assert Genome(**files[0]).folder("data") != folder


@pytest.mark.parametrize(
    ("chosen", "metric"), [("task=genome attn=sdpa", "roc_auc"), ("experiment=psf_genome", "balanced_accuracy")]
)
def test_a_run(files, tmp_path, chosen, metric):
    arguments, _ = files
    result = trained(tmp_path, *chosen.split(), *(f"source.{key}={value}" for key, value in arguments.items()))
    assert (result.metric, result.constant_baseline, result.status) == (metric, 50, "done") and 0 <= result.test <= 100
