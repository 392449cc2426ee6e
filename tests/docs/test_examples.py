"""A mechanism or a task needs a class, a yaml and nothing else: the pages' examples in a copy of this repository."""

import os
import shutil
import subprocess
import sys

import pytest
from docs_pages import COMMANDS, ROOT, write_examples

MECHANISM, TASK = "docs/mechanism.md", "docs/task.md"
SHORT = {
    "data_prep": ("budget=smoke",),
    "data_prep.show": ("budget=smoke",),
    "lra.bench": (*("n=[64]", "batch=1", "heads=1", "head_dim=16"), *("repeats=1", "warmup=0", "device=cpu")),
    "lra.checks": (),
    "lra.train": ("budget=smoke", "seeds=[0]", "trainer.threads=1"),
    "pytest": ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu and not peers"),
}
EACH = (
    *("tests/attention/test_checks.py", "tests/config", "tests/maps", "tests/model/test_model.py"),
    *("tests/studies/test_probes.py", "tests/train/test_step.py", "-k", "efficient_attention"),
)
LISTS = ("tests/docs/test_docs_words.py", "tests/runs/test_tables.py", "tests/report/test_repository.py")
pytestmark = pytest.mark.slow


@pytest.fixture
def copy(request, tmp_path_factory):
    """A copy of this repository with the examples of a page, made once."""
    folder = tmp_path_factory.getbasetemp() / request.param.replace("/", "-")
    if folder.exists():
        return folder
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    write_examples(folder, request.param)
    return folder


def run(folder, entry, *words):
    env = os.environ | {"PYTHONPATH": str(folder), "LRA_DATA": str(folder / "data")}
    line = [sys.executable, "-m", entry, *words, *SHORT[entry]]
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


ON_PAGES = [c for c in COMMANDS if c.page in (MECHANISM, TASK) and c.words[0] == "python"]
WHOLE = [(c.page, c) for c in ON_PAGES if c.words[2] in SHORT and "-m" not in c.words[3:]]


@pytest.mark.parametrize(("copy", "command"), WHOLE, indirect=["copy"], ids=str)
def test_the_commands_of_a_page_run_to_their_end(copy, command):
    run(copy, *command.words[2:])


@pytest.mark.parametrize("copy", [MECHANISM], indirect=True)
@pytest.mark.parametrize("tests", [EACH, LISTS], ids=["each", "lists"])
def test_tests_pass_with_one_more_mechanism(tests, copy):
    run(copy, "pytest", *tests)
