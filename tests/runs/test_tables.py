"""Tables of published runs: what is written is read, to the last bit, and what is damaged is one line."""

import dataclasses
import json

import pytest
from support.records import RECORD

from lra.runs import tables
from lra.runs.open import scan
from lra.runs.record import Pretraining, RunRecord

PHASE = Pretraining(
    objective="masked", fingerprint="0e1", loss=0.1, best_step=1, steps=2, tokens=3, step_ms=None, status="done"
)
FILLED = {
    "tokens": 10**12,
    "pretrain": PHASE,
    "data": "00",
    "collapsed": True,
    "live_units": 1 / 3,
    "command": "a 'b,c'",
}
CHOICES = {"attn.count": 8, "optim.lr": 1e-3, "model.head": None, "optim.betas": [0.9, 0.999], "trainer.precision": "1"}


def run(seed, curve=((5, 1 / 3), (10, 0.1 + 0.2)), choices=CHOICES, **fields):
    made = dataclasses.replace(RECORD, seed=seed, fingerprint=f"{seed}e1{fields.get('label', '')}", **fields)
    return tables.Published(made, choices, [{"step": step, "train_loss": 2.0, "val": val} for step, val in curve])


RUNS = [
    run(0, **FILLED),
    run(1, git=None, step_ms=1 / 3, test=0.0),
    run(2, curve=(), status="diverged", val=None, test=None, best_step=None),
    *(run(0, label=label, choices=CHOICES | {"attn.count": 9}) for label in ("none", "NA", "sdpa-model.positions=x,y")),
]


@pytest.fixture
def study(tmp_path):
    tables.save(tmp_path / RECORD.study, RUNS)
    return tmp_path / RECORD.study


def test_runs_are_read_as_they_were_written(study):
    found = tables.read(study)
    assert found == {tables.place(study.parent, run.record): run for run in RUNS}
    assert [type(value) for value in found[tables.place(study.parent, RUNS[0].record)].evaluations[0].values()] == [
        int,
        float,
        float,
    ]
    before = {path: path.read_bytes() for path in study.iterdir()}
    tables.save(study, found.values())
    assert {path: path.read_bytes() for path in study.iterdir()} == before


def test_every_field_of_a_record_is_a_column_and_every_configuration_one_line(study):
    head = (study / tables.RUNS).read_text().splitlines()[0].split(",")
    assert head == [field.name for field in dataclasses.fields(RunRecord)]
    lines = [json.loads(line) for line in (study / tables.CONFIGS).read_text().splitlines()]
    assert {tuple(line["labels"]) for line in lines} == {("cur_abs",), ("NA", "none", "sdpa-model.positions=x,y")}
    assert sorted(name for line in lines for name in line["fingerprints"]) == sorted(r.record.fingerprint for r in RUNS)


def cell(name, value):
    def change(study):
        head, first, *rest = (study / tables.RUNS).read_text().splitlines()
        cells = first.split(",")
        cells[head.split(",").index(name)] = value
        (study / tables.RUNS).write_text("\n".join([head, ",".join(cells), *rest]) + "\n")

    return change


DAMAGES = {
    "test: Input should be": cell("test", "101"),
    "seed: Input should be": cell("seed", "-1"),
    "JSONDecodeError": cell("steps", "many"),
    "status: Input should be": cell("status", "perhaps"),
    "KeyError: 'f'": cell("fingerprint", "f"),
    "FileNotFoundError": lambda study: (study / tables.CURVES).unlink(),
    "EmptyDataError": lambda study: (study / tables.CURVES).write_text(""),
    "KeyError: 'fingerprints'": lambda study: (study / tables.CONFIGS).write_text("{}\n"),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_damaged_tables_are_one_line(study, reason):
    DAMAGES[reason](study)
    with pytest.raises(ValueError, match="does not hold tables of published runs") as told:
        tables.read(study)
    assert reason in str(told.value) and "\n" not in str(told.value)
    records, (line,) = scan(study.parent)
    assert records == {} and line == str(told.value)
