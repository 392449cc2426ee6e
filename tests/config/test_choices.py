"""The choices of a run are those of a table, so that no change of the code gives an old run another configuration."""

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
    """In canonical form, so that an option that is added with the value in effect before changes no line."""
    made = experiment(*row["words"].split())
    assert (made.label, identity.fingerprint(made.choices({}))) == (row["label"], row["fingerprint"])
