"""Genome: FASTA files written by hand, plain and compressed, right and wrong."""

import gzip
import random

import numpy as np
import pytest
from server import prepared, trained

from data_prep.genome import Genome, read_fasta, split_indices
from lra.data.store import StoreError


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
    command = "python -m data_prep task=genome source.dog=<path> source.donkey=<path>"
    with pytest.raises(ValueError, match=command):
        Genome(dog=files[0]["dog"]).open(tmp_path)
    with pytest.raises(ValueError, match=r"source.donkey=/nowhere: there is no such file"):
        Genome(dog=files[0]["dog"], donkey="/nowhere").open(tmp_path)
    with pytest.raises(StoreError, match="to make it: python -m data_prep task=genome"):
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
