"""The cache of compiled code: quick where the sources are the same, of no use where any of them has changed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import data_prep
from lra import compiled

PACKAGE = Path(data_prep.__file__).parent
ROOT = PACKAGE.parent
PROGRAM = """
from data_prep import adding
print(adding.__file__, adding.Adding(train=3, val=1, test=1).load("")["train"].labels.tolist())
print(sum(adding._answers.stats.cache_hits.values()), sum(adding._answers.stats.cache_misses.values()))
"""


@pytest.fixture
def copy(tmp_path):
    """A folder with a copy of the package, whose files are older than any cache."""
    shutil.copytree(PACKAGE, tmp_path / "data_prep", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def output(code: str, folder: Path, **environment: str) -> list[str]:
    """What a fresh process prints, which imports from the folder first and has its cache in there."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "XDG_CACHE_HOME": str(folder / "cache")}
    options = {"env": clean | paths | environment, "cwd": folder, "capture_output": True, "text": True, "check": True}
    return subprocess.run([sys.executable, "-c", code], **options).stdout.splitlines()


def run(copy: Path, **environment: str) -> tuple[str, str]:
    """The labels that a fresh process draws by the copy, and how many functions it read from the cache and compiled."""
    first, counts = output(PROGRAM, copy, **environment)
    assert first.startswith(str(copy))
    return first, counts


@pytest.mark.slow
def test_an_edit_of_a_module_is_noticed_by_the_compiled_code_of_another(copy):
    helper = copy / "data_prep" / "counter_rng.py"
    text = helper.read_text()
    before, counts = run(copy)
    assert counts == "0 1"
    assert run(copy) == (before, "1 0")
    times = os.stat(helper)
    helper.write_text(text.replace("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB"))  # a constant inside of `mix`
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    after, counts = run(copy)
    assert after != before and counts == "0 1"
    first, second = sorted((copy / "cache" / "lra-suite").glob("numba-*"), key=os.path.getmtime)
    os.utime(first, (0, 0))
    assert run(copy) == (after, "1 0") and second.exists() and not first.exists()  # unused for a month


@pytest.mark.slow
def test_the_cache_is_where_numba_is_told_to_keep_it(copy, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    before = run(copy, NUMBA_CACHE_DIR=str(elsewhere))[0]
    assert list(elsewhere.glob("numba-*/*/*.nbi")) and not list(copy.rglob("data_prep/**/*.nbi"))
    assert run(copy, NUMBA_CACHE_DIR=str(elsewhere)) == (before, "1 0")


def test_the_package_holds_no_cache(tmp_path):
    """Else its folder stays behind when a wheel is removed, and data_prep can still be imported."""
    code = f"from pathlib import Path; from lra.compiled import cache_folder as f; print(f(Path({str(PACKAGE)!r})))"
    (line,) = output(code, tmp_path)
    assert line.startswith(str(tmp_path / "cache" / "lra-suite" / "numba-"))


def test_a_full_disk_or_one_that_cannot_be_written_has_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    assert compiled.cache_folder.__wrapped__(PACKAGE) is None
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert compiled.cache_folder.__wrapped__(PACKAGE) is None


def test_nothing_is_compiled_past_this_cache():
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "lra").rglob("*.py")]
    past = [path.name for path in paths if re.search("njit|import numba", path.read_text())]
    assert sorted(past) == ["chord.py", "compiled.py"]  # chord.py has a loss in parallel threads
