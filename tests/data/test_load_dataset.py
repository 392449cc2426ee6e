"""lra.load_dataset: the same examples as the suite's batches, in any process and inside a user's Hydra application."""

import runpy
import subprocess
import sys

import hydra
import pytest
import torch
from conftest import config
from hydra.core.global_hydra import GlobalHydra
from server import imdb
from torch.utils.data import DataLoader

import lra
from lra.config import CONF

ROOT = CONF.parent


@pytest.mark.parametrize("task", ["listops", "adding", "recall"])
def test_batches_are_those_of_the_suite(task, data_root):
    dataset = lra.load_dataset(task, "val", budget="smoke", root=data_root)
    suite = config("sdpa" if task != "adding" else "none", f"task={task}", f"data.root={data_root}").task_data()
    suite.setup()
    expected = suite.gather("val", torch.arange(9).numpy())
    batch = next(iter(DataLoader(dataset, batch_size=9, collate_fn=dataset.collate)))
    width = batch.tokens.shape[1]
    mask = torch.ones_like(batch.mask) if expected.mask is None else expected.mask[:, 0, :width]
    assert torch.equal(batch.tokens, expected.inputs[:, 0, :width]) and torch.equal(batch.mask, mask)
    assert torch.equal(batch.label, expected.label) and int(mask.sum(1).max()) == width
    assert dataset.metadata.is_regression == (task == "adding") == (dataset.metadata.vocab_size is None)
    assert len(list(dataset)) == len(dataset) == 64 and torch.equal(dataset[-1].label, dataset.labels[-1])


def test_bytes_are_shifted_and_cut_and_a_download_is_asked_for(tmp_path):
    archive = imdb(tmp_path / "reviews.tar.gz", n=20)
    words = [f"source.archive={archive['archive']}", f"source.sha256={archive['sha256']}", "task.limit=30"]
    words += ["source.train=20", "source.val=20", "source.test=20"]
    options = {"budget": "smoke", "root": tmp_path / "data data", "overrides": words}
    with pytest.raises(ValueError, match=r"there is no data set at .*; to make it: python -m data_prep task=text"):
        lra.load_dataset("text", **options)
    dataset = lra.load_dataset("text", download=True, **options)
    text = dataset.stored.tokens[: len(dataset[0].tokens)].long()
    assert len(dataset[0].tokens) == 30 and torch.equal(dataset[0].tokens, text + 1)
    assert dataset.metadata.class_names == ("negative", "positive") and dataset.metadata.vocab_size == 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lisotps",), "task must be one of adding, .*, got 'lisotps'"),
        (("listops", "dev"), "split must be one of train, val, test, got 'dev'"),
    ],
)
def test_wrong_names_are_refused_with_the_valid_ones(arguments, message):
    with pytest.raises(ValueError, match=message):
        lra.load_dataset(*arguments)
    with pytest.raises(ValueError, match=r"budget must be one of .*smoke.*, not 'large'"):
        lra.load_dataset("listops", budget="large")
    with pytest.raises(AttributeError, match="no attribute 'load_datasets'"):
        lra.load_datasets  # noqa: B018


def test_an_application_of_the_user_keeps_its_hydra(tmp_path):
    (tmp_path / "mine.yaml").write_text("lr: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert len(lra.load_dataset("recall", budget="smoke")) == 256
        assert GlobalHydra.instance().hydra is before and hydra.compose("mine").lr == 1


LOOP = """
import sys, lra
assert 'torch' not in sys.modules
from torch.utils.data import DataLoader
data = lra.load_dataset('listops', budget='smoke', root=sys.argv[1])
loader = DataLoader(data, batch_size=64, num_workers=2, multiprocessing_context='spawn', collate_fn=data.collate)
if __name__ == '__main__':
    print(sum(len(batch.label) for batch in loader), 'lightning' in sys.modules)
"""


def test_processes_that_start_at_once_prepare_the_data_once(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, str(tmp_path / "loop.py"), str(tmp_path / "data")]
    running = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=ROOT) for _ in range(2)]
    ended = [process.communicate() for process in running]
    assert [out.split() for out, _ in ended] == [["256", "False"]] * 2, ended
    assert sum("MB in" in err for _, err in ended) == 1 and len(list((tmp_path / "data").glob("*/"))) == 1


def test_the_example_trains(data_root, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(data_root))
    score = runpy.run_path(str(ROOT / "examples" / "own_loop.py"))["main"]("listops", "smoke", "20")
    assert 0 <= score <= 100
