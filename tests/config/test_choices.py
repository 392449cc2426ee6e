"""The choices of a run are those of a table: what changes them makes every earlier run another run."""

import csv
from pathlib import Path

import pytest
from conftest import experiment

from lra.runs import identity

with Path(__file__).with_name("choices.csv").open() as _file:
    TABLE = list(csv.DictReader(_file))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["words"], marks=[pytest.mark.slow] * (i % 10 > 0)) for i, row in enumerate(TABLE)]
)
def test_label_and_choices_are_those_of_the_table(row):
    made = experiment(*row["words"].split())
    assert (made.label, identity.fingerprint(made.choices({}))) == (row["label"], row["fingerprint"])
