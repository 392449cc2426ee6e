"""examples/minimal.py trains, and attention beats its control there."""

import runpy

import pytest

from lra.config import CONF

MAIN = runpy.run_path(str(CONF.parent / "examples" / "minimal.py"))["main"]


def test_it_trains_and_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 0 <= MAIN("cur", "3") <= 100 and "cur: test" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="mechanism must be one of cur, softmax, mean, not 'best'"):
        MAIN("best")


@pytest.mark.slow
def test_attention_beats_its_control(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert MAIN("softmax", "100") > 50 + MAIN("mean", "100")
