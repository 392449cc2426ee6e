"""The runs of the repository itself: whole, of today's classes, and left out of everybody's own tables."""

import shutil

import pytest
import torch

from lra.config import CONF
from lra.disk import checksums
from lra.runs import checkpoint, record, typed_json
from lra.runs.open import open_run, scan
from lra.train.restore import best

ROOT = CONF.parent / "runs" / typed_json.PUBLISHED
RUNS = sorted(path.parent for path in ROOT.rglob(record.NAME))
WEIGHTS = [run for run in RUNS if (run / checkpoint.SAFE).exists()]
name = lambda run: "-".join(run.relative_to(ROOT).parts)


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_a_published_run_is_whole(run):
    found = open_run(run)
    assert found.record.git and "dirty" not in found.record.git
    if found.record.status == "done":
        assert found.evaluations()[-1]["step"] == found.record.steps
        assert found.record.val == max(row["val"] for row in found.evaluations())
    files = {path.name for path in run.iterdir()} - {checksums.NAME}
    assert files == set(checksums.entries(run)) and not any(path.suffix == ".ckpt" for path in run.iterdir())


@pytest.mark.parametrize("run", WEIGHTS, ids=name)
def test_published_weights_are_those_of_the_model(run):
    found = open_run(run)
    config = found.configuration("data")
    model = best(found, config)
    assert sum(p.numel() for p in model.parameters()) == found.record.params
    ids = torch.randint(1, config.task.vocab - 1, (2, config.task.towers, min(100, config.task.length)))
    assert model(ids, None).isfinite().all()


def test_they_are_small():
    assert sum((run / checkpoint.SAFE).stat().st_size for run in WEIGHTS) <= 10 * 2**20


def test_scans_leave_them_out_unless_they_are_named(tmp_path):
    shutil.copytree(RUNS[0], tmp_path / "runs" / typed_json.PUBLISHED / "study" / "seed-0")
    shutil.copytree(RUNS[0], tmp_path / "runs" / "mine" / "seed-0")
    assert [path.parent.name for path in scan(tmp_path / "runs")[0]] == ["mine"]
    assert len(scan(tmp_path / "runs" / typed_json.PUBLISHED)[0]) == 1


def test_damaged_weights_are_refused(tmp_path):
    run = shutil.copytree(WEIGHTS[0], tmp_path / "seed-0")
    path = run / checkpoint.SAFE
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="sha256"):
        checkpoint.read(path)
