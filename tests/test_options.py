"""The helpers of options, and that lra.ops is functions that know no word of the command line."""

import ast
import math
import re

import pytest

from lra.config import CONF
from lra.options import Positive, Range, in_range

FILES = sorted((CONF.parent / "lra/ops").rglob("*.py"))


@pytest.mark.parametrize(
    "value, bounds, most, message",
    [
        (0, Range(1), "", "x must be 1 or more, not 0"),
        (9, Range(1, 8), "", "x must be from 1 to 8, not 9"),
        (9, Range(1, 8), "length", "x must be from 1 to 8 (length), not 9"),
        (0, Range(above=0), "", "x must be above 0, not 0"),
        (1, Range(0, below=1), "", "x must be from 0 below 1, not 1"),
        (4, Range(most=3), "", "x must be to 3, not 4"),
        (math.nan, Range(0, 1), "", "x must be from 0 to 1, not nan"),
    ],
)
def test_a_value_outside_its_range_is_refused(value, bounds, most, message):
    with pytest.raises(ValueError) as error:
        in_range("x", value, bounds, most)
    assert str(error.value) == message


def test_a_value_inside_its_range_passes():
    in_range("x", 1, Range(1))
    in_range("x", 8, Range(1, 8), "length")
    in_range("x", 3, Positive.__metadata__[0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_operators_are_no_modules_and_name_no_section_of_a_configuration(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not any("Module" in ast.unparse(base) or "nn." in ast.unparse(base) for base in node.bases)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"(?<!\.)\b(attn|model|task)\.\w", node.value)
