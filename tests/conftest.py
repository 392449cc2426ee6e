"""Shared by the tests: the names of the mechanisms, small builds of them, and commands run in this process."""

import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # the CPU is the reference; tests marked gpu ask for more

if not os.environ["CUDA_VISIBLE_DEVICES"]:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels run in triton's interpreter, at a crawl

from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest
import torch
from beartype import beartype

# Packages whose signatures have shapes are checked at every call, from before the first import of one; with
# LRA_CHECK_SHAPES=0 they are not. Of lra.ops the modules, not the kernels, since triton compiles their source; of
# lra.model all but dropout, whose loops numba compiles.
if os.environ.get("LRA_CHECK_SHAPES", "1") == "1":

    def check_shapes(function):
        """Check the annotations of tensors alone; options have their own checks, with messages that tests compare."""
        hints = function.__annotations__
        function.__annotations__ = {name: hint for name, hint in hints.items() if "Tensor" in str(hint)}
        return beartype(function)

    ops = [f"lra.ops.{path.stem}" for path in (Path(__file__).parents[1] / "lra/ops").glob("*.py")]
    model = [f"lra.model.{path.stem}" for path in (Path(__file__).parents[1] / "lra/model").glob("[!_d]*.py")]
    shaped = [*ops, *model, "lra.attention", "lra.reference", "lra.varlen"]
    jaxtyping.install_import_hook(shaped, "conftest.check_shapes")
    # torch.compile and torch.export cannot trace the checks, so they see the plain functions.
    type(jaxtyping.config).jaxtyping_disable = property(lambda _: torch.compiler.is_compiling())

from support.faster import interpret_faster, read_yamls_once, share_compositions

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment

CHECK_SHAPES = os.environ.get("LRA_CHECK_SHAPES", "1") == "1"
torch.set_num_threads(1)  # xdist runs one process per core
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of pytest in a shell's background; processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

KERNELS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if "option/triton" in path.read_text())
MECHANISMS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")
if find_spec("triton") is None:
    MECHANISMS, KERNELS = [name for name in MECHANISMS if name not in KERNELS], []
LEVEL = 1e-4  # of a chi-square test on fixed seeds: a right generator always passes
SMOKE = ("task=listops", "budget=smoke")
CHECK_SIZES = ("task.length=128", "model.dim=16")  # sizes of lra.checks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests of ``flashcur_*`` after the first as slow, since the kernels are the same; sort by ``first``.

    Tests of compiled models are skipped while shapes are checked.
    """
    skipped = pytest.mark.skip(reason="LRA_CHECK_SHAPES=0 pytest -m compiles")
    for item in items:
        if CHECK_SHAPES and item.get_closest_marker("compiles"):
            item.add_marker(skipped)
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if not set(KERNELS[1:]).isdisjoint(value for value in values if isinstance(value, str)):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what was imported lives to the end: looking at it again takes a sixth of composing's time


if KERNELS and os.environ.get("TRITON_INTERPRET") == "1":
    interpret_faster()
read_yamls_once()


@pytest.fixture(scope="session", autouse=True)
def compositions(tmp_path_factory):
    folder = of_session(tmp_path_factory, "compositions")
    folder.mkdir(exist_ok=True)
    share_compositions(folder)


def experiment(*words: str) -> Experiment:
    """The experiment of a command line, composed once for all tests."""
    return composed(os.environ.get("LRA_DATA"), *words)


@functools.cache
def composed(data_root: str | None, *words: str) -> Experiment:
    return compose(Experiment, words)


def config(attn: str, *overrides: str) -> Experiment:
    """attn: a word of conf/attn, or a class by its path and words after it."""
    word, *words = attn.split()
    chosen = [f"attn={word}"] if "." not in word else ["attn=custom", f"attn._target_={word}"]
    return experiment(*SMOKE, *chosen, *words, *overrides)


def printed(entry, *words, patch, capfd):
    """Exit message of an entry point in this process, None where it ends well, and what it printed: stdout, stderr."""
    capfd.readouterr()
    patch.setattr(sys, "argv", ["lra", *words])
    try:
        entry()
        stop = None
    except SystemExit as error:
        stop = error.code
    return stop, *capfd.readouterr()


def run(entry, *words, patch, capfd):
    """Exit message of an entry point and what it printed on stderr."""
    stop, _, said = printed(entry, *words, patch=patch, capfd=capfd)
    return stop, said


@pytest.fixture
def call(monkeypatch, capfd):
    """Call an entry point in this process: call(entry, *arguments) -> exit message, stdout, stderr."""
    return functools.partial(printed, patch=monkeypatch, capfd=capfd)


@pytest.fixture
def without_figures(monkeypatch):
    """Leave out the figures of a report, which other tests draw."""
    monkeypatch.setattr("lra.results.figures.save", lambda *_: [])
    monkeypatch.setattr("lra.report.export._draw_studies", lambda *_: {})


def p_value(observed, expected=None) -> float:
    """That counts (k,) were drawn with these expected ones, uniform if None: chi-square with k - 1 degrees."""
    observed = torch.as_tensor(observed, dtype=torch.float64)
    expected = observed.mean() if expected is None else torch.as_tensor(expected, dtype=torch.float64)
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, statistic / 2).item()


def until(happened, seconds=60):
    """Wait until something has happened."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk():
    """No file may have more than 10,000 bytes: the system refuses a write where it would for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def of_session(tmp_path_factory, name):
    """A folder of all the processes of a session of tests."""
    own = tmp_path_factory.getbasetemp()  # of a worker of xdist; the one above is that of all of them
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    """One data folder for all the tests of a session, so that the smoke data set is generated once."""
    root = of_session(tmp_path_factory, "lra-data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(root))
        yield root


@pytest.fixture
def work(tmp_path, data_root, monkeypatch):
    """An empty working directory with the files that commands of the manuals name."""
    release = [f"lra_release/new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")]
    for name in ("dog.fa.gz", "donkey.fa.gz", "aclImdb_v1.tar.gz", *release):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def service(tmp_path, monkeypatch):
    """No key, no settings, an empty working directory that stays empty, and a session of wandb for this test alone."""
    wandb = pytest.importorskip("wandb", reason="pip install '.[wandb]'")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_PROJECT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()
    assert not list((tmp_path / "cwd").iterdir())
