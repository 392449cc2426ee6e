"""The TFDS builders give what the store holds, without TensorFlow."""

import subprocess
import sys

import pytest

from data_prep.listops import ListOps, decode, encode, evaluate

pytest.importorskip("tensorflow_datasets")
from data_prep.tfds import Listops, SourceConfig

SMALL = {"min_length": 10, "max_length": 60, "train": 30, "val": 7, "test": 5}


def test_a_small_build_equals_the_store(tmp_path):
    source = ListOps(**SMALL)
    builder = Listops(data_dir=tmp_path / "tfds", config=SourceConfig(name="small", source=source))
    builder.download_and_prepare()
    stored = source.open(tmp_path / "store")
    assert set(builder.info.splits) == {"train", "val", "test"}
    for name, split in stored.items():
        examples = list(builder.as_data_source(name))
        bounds = split.offsets.unfold(0, 2, 1).tolist()
        texts = [example["source"].decode() for example in examples]
        assert texts == [decode(split.tokens[first:end]) for first, end in bounds]
        assert [example["target"] for example in examples] == split.labels.tolist()
        assert all(evaluate(encode(text)) == example["target"] for text, example in zip(texts, examples, strict=True))


def test_the_paper_config_is_the_default(tmp_path):
    builder = Listops(data_dir=tmp_path)
    assert builder.builder_config.name == "lra" and str(builder.version) == ListOps.version
    assert builder.builder_config.source.provenance == ListOps().provenance
    assert builder.info.supervised_keys == ("source", "target")


def test_the_sources_themselves_need_no_tfds():
    code = "import sys, data_prep.listops, lra.store; sys.exit('tensorflow_datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
