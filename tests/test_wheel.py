"""The files of an installation."""

import subprocess
import sys
import zipfile

import pytest

from lra.config import CONF

ROOT = CONF.parent


@pytest.mark.slow
def test_a_wheel_carries_what_is_read_at_run_time(tmp_path):
    line = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", ".", "-w")
    subprocess.run([*line, str(tmp_path)], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    read = [*(ROOT / "lra/report/web").iterdir(), ROOT / "lra/report/published.csv"]
    tracked = subprocess.run(["git", "ls-files", "lra", "data_prep"], cwd=ROOT, capture_output=True, text=True)
    assert {path.relative_to(ROOT).as_posix() for path in read} <= held
    assert {f"lra/conf/{path.relative_to(CONF).as_posix()}" for path in CONF.rglob("*.yaml")} <= held
    assert set(tracked.stdout.split()) <= held and not tracked.returncode
