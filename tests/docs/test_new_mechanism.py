"""A mechanism needs a class, a yaml and nothing else: the tests that go over all mechanisms pass with one more."""

import os
import shutil
import subprocess
import sys

import pytest
from docs_pages import ROOT

NEWCOMER = {
    "lra/attention/newcomer.py": '''
import torch

from .base import Attention


class Newcomer(Attention):
    """One mean of the values, weighted by the keys, times a gate of each query."""

    hole_free = True

    def forward(self, q, k, v, mask=None):
        weights = k.mean(-1, keepdim=True)
        if mask is not None:
            weights = weights.masked_fill(~mask[:, None, :, None], -torch.inf)
        return q.mean(-1, keepdim=True).sigmoid() * (weights.softmax(2) * v).sum(2, keepdim=True)
''',
    "conf/attn/newcomer.yaml": "_target_: lra.attention.newcomer.Newcomer\n_partial_: true\n",
}
EACH = (
    *("tests/attention/test_laws.py", "tests/config", "tests/maps", "tests/model/test_model.py"),
    *("tests/studies/test_probes.py", "tests/train/test_step.py", "-k", "newcomer"),
)
LISTS = ("tests/docs/test_docs_words.py", "tests/runs/test_published.py", "tests/report/test_repository.py")
FAST = "not slow and not gpu and not peers and not browser"


@pytest.mark.slow
@pytest.mark.parametrize("tests", [EACH, LISTS], ids=["each", "lists"])
def test_tests_pass_with_one_more_mechanism(tests, tmp_path):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in NEWCOMER.items():
        (tmp_path / name).write_text(text)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", FAST, *tests]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
