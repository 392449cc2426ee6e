"""The runs of the repository itself: whole, of today's classes, and left out of everybody's own tables."""

import pytest
import torch

from lra.runs import checkpoint, identity, tables
from lra.runs.folder import RunFolder
from lra.runs.open import finished, scan
from lra.runs.restore import best, configuration

RUNS = {path: run for study in tables.studies(tables.HOME) for path, run in tables.read(study).items()}
WEIGHTS = sorted(path.parent for path in tables.HOME.rglob(checkpoint.BEST))


def test_published_tables_are_whole():
    for path, run in RUNS.items():
        assert run.record.study == path.parents[2].name
        assert run.record.git and "dirty" not in run.record.git
        found = RunFolder.open(path)
        assert run.record.fingerprint == identity.fingerprint(run.choices | {"seed": run.record.seed})
        assert found.record == run.record and configuration(found, "data").label == run.record.label
        if run.record.status == "done":
            assert run.evaluations[-1]["step"] == run.record.steps
            assert run.record.val == max(row["val"] for row in run.evaluations)


@pytest.mark.parametrize("run", WEIGHTS, ids=lambda run: "-".join(run.parts[-4:]))
def test_published_weights_are_those_of_the_model(run):
    found = RunFolder.open(run)
    config = configuration(found, "data")
    model = best(found, config)
    assert found.published and sum(p.numel() for p in model.parameters()) == found.record.params
    ids = torch.randint(1, config.task.vocab - 1, (2, config.task.towers, min(100, config.task.length)))
    assert model(ids, None).isfinite().all()


def test_they_are_small():
    assert sum((run / checkpoint.BEST).stat().st_size for run in WEIGHTS) <= 3 * 2**20
    assert {path.name for path in tables.HOME.rglob("record.json")} == set()


def test_scans_leave_them_out_unless_they_are_named():
    assert not set(scan(tables.HOME.parent)[0]) & set(RUNS)
    assert scan(tables.HOME) == ({path: run.record for path, run in RUNS.items()}, [])


def test_the_seeds_of_a_published_label_are_found():
    for label in {path.parent for path in RUNS}:
        seeds = [path for path, run in RUNS.items() if path.parent == label and run.record.status == "done"]
        assert [run.path for run in finished(label)] == sorted(seeds)


def test_damaged_weights_are_refused(tmp_path):
    path = tmp_path / checkpoint.BEST
    data = bytearray((WEIGHTS[0] / checkpoint.BEST).read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"its part .* is damaged"):
        checkpoint.read(path)
