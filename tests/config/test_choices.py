"""The choices of a run are those of a table, so that no change of the code gives an old run another configuration."""

import csv
import hashlib
import json
from pathlib import Path

import pytest

from lra.config.compose import compose
from lra.runs import identity

with Path(__file__).with_name("choices.csv").open() as _file:
    TABLE = list(csv.DictReader(_file))
ADDED = {"optim.own_lr_max": None}  # options that the table is older than, with the value that changes nothing


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row["words"], marks=[pytest.mark.slow] * (i % 10 > 0)) for i, row in enumerate(TABLE)],
)
def test_label_and_choices_are_those_of_the_table(row):
    """As JSON, in which 1 and 1.0 are two values, since fingerprints are digests of it."""
    made = compose("train", row["words"].split())
    choices = identity.choices(made, {})
    assert {key: choices.pop(key) for key in ADDED} == ADDED
    text = json.dumps(choices, sort_keys=True)
    assert (made.label, hashlib.sha256(text.encode()).hexdigest()[:16]) == (row["label"], row["sha256"])
