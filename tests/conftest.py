"""What the tests share: the mechanisms there are, and small builds of them."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # the CPU is the reference; tests marked gpu ask for more

import pytest
import torch

from lra.config import CONF, compose

torch.set_num_threads(1)  # xdist runs one process per core

MECHANISMS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")
SMOKE = ("task=listops", "budget=smoke")


def config(attn: str, *overrides: str):
    return compose("train", [*SMOKE, f"attn={attn}", *overrides])


@pytest.fixture
def data_root(tmp_path_factory, monkeypatch):
    """One data folder for all the tests of a session, so that the smoke data set is generated once."""
    root = tmp_path_factory.getbasetemp().parent / "lra-data"
    monkeypatch.setenv("LRA_DATA", str(root))
    return root
