"""The table of docs/protocol.md says what the allowance of a budget gives each mechanism."""

import re
from pathlib import Path

from conftest import config

from lra.config import CONF

ROW = re.compile(r"(?m)^\| (\w+) \| `(attn|block)\.(\w+)` \| (\d+) \| (\d+) \|$")


def test_table_of_allowances_is_that_of_conf():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    said = {(name, section, key): (int(a), int(b)) for name, section, key, a, b in ROW.findall(page)}
    there = {
        (path.stem, section, key)
        for section in ("attn", "block")
        for path in (CONF / section).glob("*.yaml")
        for key in re.findall(r"(?m)^(\w+): \$\{allowance:", path.read_text())
    }
    assert said.keys() == there
    for name in {name for name, _, _ in there}:
        made = [config(name, "task=adding", "budget=quick", f"+budgets.quick.allowance={c}") for c in (16, 32)]
        for _, section, key in (place for place in there if place[0] == name):
            assert said[name, section, key] == tuple(getattr(one, section).get(key) for one in made)
