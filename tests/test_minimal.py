"""examples/minimal.py trains, and attention beats its control there."""

import os
import runpy
import subprocess
import sys

import pytest

from lra.config import CONF
from lra.startup import SPINS

MAIN = runpy.run_path(str(CONF.parent / "examples" / "minimal.py"))["main"]


def test_it_trains_and_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 0 <= MAIN("cur", "3") <= 100 and "cur: test" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="mechanism must be one of cur, softmax, mean, not 'best'"):
        MAIN("best")


def test_threads_are_settled_before_torch_is_imported():
    code = (
        "import os, runpy, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': sys.exit(os.environ.get('GOMP_SPINCOUNT', 'not settled'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "runpy.run_path('examples/minimal.py')"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=CONF.parent, capture_output=True, text=True)
    assert run.stderr.strip() == SPINS


@pytest.mark.slow
def test_attention_beats_its_control(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert MAIN("softmax", "100") > 50 + MAIN("mean", "100")
