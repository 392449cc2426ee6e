"""The Genome source: reading FASTA files, the 60 : 20 : 20 split, and errors for malformed files."""

import gzip
import random
import textwrap

import numpy as np
import pytest
from server import assert_error, assert_rejected, prepared, trained, write_folder

from data_prep.genome import Genome, read_fasta, split_indices
from data_prep.load import load_dataset
from lra.data.store import StoreError


def write_fasta(path, lengths, seed):
    """Write a random sequence of each length in lines of 60 letters; return the sequences."""
    rng = random.Random(seed)
    sequences = ["".join(rng.choices("ACGTNacgt", k=length)) for length in lengths]
    lines = []
    for number, letters in enumerate(sequences):
        lines += [f">ENS{number} cdna gene:{number}", *textwrap.wrap(letters, 60)]
    data = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return sequences


@pytest.fixture
def sequences(tmp_path):
    """Options of Genome, and labels of the sequences with more than 100 bases, 14 of dog and 6 of donkey."""
    options = {"dog": tmp_path / "dog.fa", "donkey": tmp_path / "donkey.fa.gz", "longer_than": 100}
    dogs = write_fasta(options["dog"], [101, 100, 99, *range(150, 163)], seed=1)
    donkeys = write_fasta(options["donkey"], [500, 3, *range(200, 205)], seed=2)
    labels = dict.fromkeys(dogs, 0) | dict.fromkeys(donkeys, 1)
    return options, {letters.lower(): label for letters, label in labels.items() if len(letters) > 100}


def test_each_long_sequence_is_in_one_split_with_species_label(sequences, tmp_path):
    options, labels = sequences
    splits = prepared(Genome(**options), tmp_path / "data")
    assert {name: len(split) for name, split in splits.items()} == {"train": 12, "val": 4, "test": 4}
    actual = {"".join("_agctn"[id] for id in ids): label for split in splits.values() for label, ids in split}
    assert actual == labels and len(labels) == 20
    overrides = [f"source.{name}={value}" for name, value in options.items()]
    assert len(load_dataset("genome", root=tmp_path / "loaded", download=True, overrides=overrides)) == 12


@pytest.mark.parametrize("n", [3, 4, 10, 8586])
def test_split_indices_partition_60_20_20(n):
    splits = split_indices(n, 1)
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(n))
    assert len(splits["test"]) == -(-n // 5) and len(splits["val"]) == -(-(n - len(splits["test"])) // 4)
    assert all((splits[name] == repeated).all() for name, repeated in split_indices(n, 1).items())
    assert n <= 4 or (splits["test"] != split_indices(n, 2)["test"]).any()
    # numpy guarantees the stream of RandomState never to change.
    assert n != 10 or splits["test"].tolist() == [2, 9]


MALFORMED = {
    b"": "line 0: the file ends without a sequence",
    b"ACGT\n": "line 1: a sequence without a > line before it",
    b">a\nACGT\nACXT\n": "line 3: unknown letter 'X'; the letters are agctn",
    b">a\n>b\nACGT\n": "line 1: a > line without a sequence after it",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_fasta_error_names_path_and_line(tmp_path, text):
    path = write_folder(tmp_path, {"dog.fa": text}) / "dog.fa"
    assert_error(f"{path}, {MALFORMED[text]}", list, read_fasta(path))
    path.write_bytes(b"<html>")
    assert_error(f"{path} is a web page", list, read_fasta(path))


def test_fasta_reader_ignores_line_ends_and_blank_lines(tmp_path):
    (tmp_path / "dog.fa").write_bytes(b">a x\r\nAcg\r\n\r\nTN\r\n>b\nA")
    assert [ids.tolist() for ids in read_fasta(tmp_path / "dog.fa")] == [[1, 3, 2, 4, 5], [1]]


@pytest.mark.parametrize("damage", [lambda data: data[:-300], lambda data: b">a\nACGT\n"], ids=["cut", "not gzip"])
def test_damaged_fasta_gzip_raises(tmp_path, damage):
    path = tmp_path / "dog.fa.gz"
    write_fasta(path, [3000], seed=1)
    path.write_bytes(damage(path.read_bytes()))
    assert_error("cannot be read", list, read_fasta(path))


def test_missing_fasta_error_names_source_options(sequences, tmp_path):
    options, _ = sequences
    dog = options["dog"]
    assert_error(r"lra data task=genome source.dog=<path> source.donkey=<path>", Genome(dog=dog).open, tmp_path)
    assert_error("source.donkey=/nowhere: there is no such file", Genome(dog=dog, donkey="/nowhere").open, tmp_path)
    with pytest.raises(StoreError, match="prepare it with: lra data task=genome"):
        Genome(**options).open(tmp_path)
    too_short = Genome(**options | {"longer_than": 9999})
    assert_rejected(too_short, tmp_path / "data", "no sequence of dog has more than 9999 bases")


def test_data_set_folder_depends_on_seed_and_content(sequences, tmp_path):
    options, _ = sequences
    folder = Genome(**options).folder("data")
    assert Genome(**options, seed=2).folder("data") != folder
    write_fasta(tmp_path / "dog.fa", [101, 150, 160], seed=9)
    assert Genome(**options).folder("data") != folder


@pytest.mark.parametrize(
    ("chosen", "metric"), [("task=genome attn=sdpa", "roc_auc"), ("experiment=psf_genome", "balanced_accuracy")]
)
def test_run_on_genome_uses_metric_of_experiment(sequences, tmp_path, chosen, metric):
    options, _ = sequences
    result = trained(tmp_path, *chosen.split(), *(f"source.{key}={value}" for key, value in options.items()))
    assert (result.metric, result.constant_baseline, result.status) == (metric, 50, "done") and 0 <= result.test <= 100
