"""Options and their types, and the experiment that is built from them."""

import csv
import math
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from conftest import config, experiment
from pydantic import ValidationError

from lra.attention.base import Attention, Sizes
from lra.config import CONF
from lra.config.base import typed
from lra.config.compose import compose
from lra.config.schema import Name
from lra.options import Positive, Range, in_range
from lra.runs import config_file
from lra.runs.run_dir import RunDir
from lra.sweep.options import SweepOptions
from lra.train.plan import resolve


def test_the_fingerprint_of_a_default_configuration():
    """It includes the data's provenance, so a change of either is a change here."""
    made = experiment("task=listops", "attn=cur_abs", "data.pad=none")
    choices = made.choices(made.task_data().source.provenance)
    assert config_file.fingerprint(choices | {"seed": 0}) == "9b1a53037b6d1a47"


@pytest.mark.parametrize(
    "kind, value, result",
    [
        (float, 1, 1.0),
        (bool, "off", False),
        (str, 2026, "2026"),
        (int | None, None, None),
        (int | float, 2, 2),
        (int | str, "2", "2"),
        (bool | Literal["reduce-overhead"], "reduce-overhead", "reduce-overhead"),
        (Path, 2026, Path("2026")),
        (dict[str, int], {"a": 1}, {"a": 1}),
    ],
    ids=str,
)
def test_a_value_becomes_the_type_of_its_option(kind, value, result):
    made = typed(kind, value, "x")
    assert made == result and type(made) is type(result)


@pytest.mark.parametrize(
    "kind, values",
    [
        (int, ["3", True, 1.0, 2**63, "???"]),
        (float, ["${x}", math.nan, math.inf, 10**400]),
        (bool, [2]),
        (str, [[1], None, "a\0"]),
        (bool | Literal["reduce-overhead"], ["fast"]),
        (Literal[1, 2], ["2", 3]),
        (Path, [" "]),
        (Positive, [0]),
        (Annotated[float, Range(above=0)], [0]),
        (list[int], [3]),
        (list[Positive], [[1, 0]]),
        (dict[str, int], [{"a": "1"}]),
        (Name, ["../../x", "/abs", "a/b", ".", "..", "", [1], None, {"a": 1}, "a "]),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_an_error(kind, values):
    for value in values:
        with pytest.raises(ValueError, match=r"^x(\.\w+)? must be .+, not .+$"):
            typed(kind, value, "x")


@pytest.mark.parametrize(
    "value, bounds, most, expected",
    [
        (9, Range(1, 8), "", "from 1 to 8, not 9"),
        (1, Range(0, below=1), "", "at least 0 and below 1, not 1"),
        (4, Range(most=3), "", "at most 3, not 4"),
        (math.nan, Range(0, 1), "", "from 0 to 1, not nan"),
    ],
)
def test_a_value_outside_its_range_is_an_error(value, bounds, most, expected):
    with pytest.raises(ValueError, match=f"^{re.escape(f'x must be {expected}')}$"):
        in_range("x", value, bounds, most)


@pytest.mark.parametrize(
    "name, option, value",
    [
        ("bigbird", "block", 0),
        ("bigbird", "block", 1.5),
        ("cur_abs", "score", "best"),
        ("cur_abs", "copy_rv", 2),
        ("lru", "r_max", 0.0),
        ("reformer", "buckets", 0),
    ],
)
def test_the_command_line_and_python_reject_a_value_with_the_same_message(name, option, value):
    with pytest.raises(ValueError) as from_command_line:
        config(name, f"attn.{option}={value}")

    constructor = config(name).attn.function
    sizes = Sizes(heads=2, head_dim=4, value_dim=4, length=64)
    with pytest.raises(ValueError) as from_python:
        constructor(sizes, **{option: value})

    assert str(from_command_line.value) == f"attn.{from_python.value}"


class Own(Attention):
    """Of a user: annotations of any kind, and none."""

    def __init__(self, sizes, *, rate: float = 1, mode: "Literal['a', 'b']" = "a", **more):
        super().__init__(sizes)
        self.rate, self.mode = rate, mode

    def forward(self, q, k, v, mask=None):
        return v


class Inner(Own):
    def __init__(self, sizes, *, free=None, unknown: "NoSuchName" = 1, **others):
        super().__init__(sizes, **others)
        self.free, self.unknown = free, unknown


def own(name, *words):
    return config(f"{__name__}.{name}", *words)


def test_a_custom_class_is_typed_by_its_annotations():
    made = own("Own", "+attn.rate=2", "+attn.mode=b").attn.options
    assert made["rate"] == 2.0 and type(made["rate"]) is float and made["mode"] == "b"
    for words, said in (
        (["+attn.rate=fast"], "attn.rate must be a number, not 'fast'"),
        (["+attn.mode=c"], "attn.mode must be one of a, b, not 'c'"),
        (["+attn.speed=1"], "attn.speed: no such key; attn has dropout, mode, "),
    ):
        with pytest.raises(ValueError, match=said):
            own("Own", *words)
    made = own("Inner", "+attn.free=[1,{a: no}]", "+attn.unknown=x", "+attn.rate=3")
    assert made.attn.get("free") == [1, {"a": "no"}]
    assert made.attn.get("unknown") == "x"  # an annotation that nobody can resolve
    assert type(made.classifier().blocks[0].mixer.attention).__name__ == "Inner"


def test_a_long_schedule_takes_no_memory_to_check():
    resolve(config("cur_abs", "optim.steps=1000000000", "optim.eval_every=1000000"))


def test_a_run_that_made_nothing_binds_nobody_to_its_configuration(tmp_path):
    def start(choices):
        with RunDir(path=tmp_path, choices=choices, seed=0).open() as is_open:
            assert is_open
            return (tmp_path / "config.yaml").read_text()

    assert start({"x": 1}) == "x: 1\n" and start({"x": 2}) == "x: 2\n" and not list(tmp_path.iterdir())


def test_what_the_model_depends_on_makes_a_new_meta_model():
    made = config("sdpa", "model.dim=32")
    wider = made.replace(model=made.model.replace(dim=64))
    assert made.meta_model is made.replace(data=made.data.replace(pad="batch")).meta_model
    assert made.meta_model.encoded_width == 32 and wider.meta_model.encoded_width == 64


def test_values_are_frozen_and_a_change_is_checked():
    made = config("sdpa")
    with pytest.raises(ValidationError, match="frozen"):
        made.optim.lr = 1.0
    with pytest.raises(ValueError, match=r"^optim\.eval_every must divide optim\.steps 7, not 3: add optim.eval"):
        made.optim.replace(steps=7)


with Path(__file__).with_name("choices.csv").open() as _file:
    TABLE = list(csv.DictReader(_file))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["words"], marks=[pytest.mark.slow] * (i % 10 > 0)) for i, row in enumerate(TABLE)]
)
def test_label_and_choices_are_those_of_the_table(row):
    made = experiment(*row["words"].split())
    assert (made.label, config_file.fingerprint(made.choices({}))) == (row["label"], row["fingerprint"])


TASKS = sorted(path.stem for path in (CONF / "experiment").glob("board_*.yaml"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_the_board(name):
    made = experiment(f"experiment={name}", "attn=cur_abs")
    assert (made.study, made.budget, made.protocol.name) == ("board", "board", "clean")
    assert f"board_{made.task.name}" == name and made.model.dropout == 0 and made.optim.own_lr_max == 1e-3
    assert made.attn.get("count") == made.task.length // 8


def test_the_sweep_has_every_task_of_the_board_but_the_one_that_was_dropped():
    assert sorted(compose(SweepOptions, ["sweep=board"]).tasks) == [task for task in TASKS if task != "board_listops"]
