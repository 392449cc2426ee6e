"""Shared fixtures and helpers: mechanism names, small experiments, and entry points called in this process."""

import contextlib
import errno
import functools
import gc
import os
import resource
import signal
import sys
import time

# Tests run on the CPU, one process per core, and kernels in Triton's interpreter, unless a GPU is made visible.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if not os.environ["CUDA_VISIBLE_DEVICES"]:
    os.environ.setdefault("TRITON_INTERPRET", "1")

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from hydra._internal.hydra import Hydra

# Check the shapes in signatures (see pytest_runtest_setup), unless LRA_CHECK_SHAPES=0. The import hook must precede all
# imports of lra. Excluded are lra.ops.triton and lra.model.dropout, whose source Triton and numba compile.
if os.environ.get("LRA_CHECK_SHAPES", "1") == "1":
    in_commands = False

    def check_shapes(function):
        """Check annotations of tensors only; options have their own checks, whose messages are tested."""
        hints = function.__annotations__
        # jaxtyping has each function checked twice, the first time without its result.
        if hints.get("return", Any) is not Any:
            hints = {"return": hints["return"]}
        function.__annotations__ = {name: hint for name, hint in hints.items() if "Tensor" in str(hint)}
        return beartype(function)

    ops = [f"lra.ops.{path.stem}" for path in (Path(__file__).parents[1] / "lra/ops").glob("*.py")]
    model = [f"lra.model.{path.stem}" for path in (Path(__file__).parents[1] / "lra/model").glob("[!_d]*.py")]
    checked_modules = [*ops, *model, "lra.attention", "lra.reference", "lra.varlen"]
    jaxtyping.install_import_hook(checked_modules, "conftest.check_shapes")
    # torch.compile and torch.export cannot trace the checks, so they see the plain functions.
    type(jaxtyping.config).jaxtyping_disable = property(lambda _: torch.compiler.is_compiling() or in_commands)

from support.faster import interpret_faster, read_yamls_once, share_compositions

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import StoreError

CHECK_SHAPES = os.environ.get("LRA_CHECK_SHAPES", "1") == "1"
# A shell starts background jobs with SIGINT ignored, which subprocesses would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

KERNELS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if "option/triton" in path.read_text())
MECHANISMS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")
if find_spec("triton") is None:
    MECHANISMS, KERNELS = [name for name in MECHANISMS if name not in KERNELS], []
# Significance level of chi-square tests; with fixed seeds a correct generator always passes.
LEVEL = 1e-4
SMOKE = ("task=listops", "budget=smoke")
# The sizes that lra.checks uses.
CHECK_SIZES = ("task.length=128", "model.dim=16")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all but the first of the mechanisms with kernels as slow, since they share kernels; run ``first`` first.

    Tests of compiled models are skipped while shapes are checked.
    """
    skip_compiled = pytest.mark.skip(reason="LRA_CHECK_SHAPES=0 pytest -m compiles")
    for item in items:
        if CHECK_SHAPES and item.get_closest_marker("compiles"):
            item.add_marker(skip_compiled)
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if not set(KERNELS[1:]).isdisjoint(value for value in values if isinstance(value, str)):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_runtest_setup(item):
    """Check shapes in the tests of mechanisms and models; in tests of commands that would take a fifth of the time."""
    global in_commands
    in_commands = item.path.parent.name not in ("attention", "maps", "model", "ops", "studies")


def pytest_collection_finish():
    gc.collect()
    # Imported objects live until exit; scanning them again would take a sixth of the time to compose.
    gc.freeze()


# Settings of a developer's shell do not reach the tests.
for name in ("LRA_RELEASE", "LRA_TRACEBACK"):
    os.environ.pop(name, None)
if KERNELS and os.environ.get("TRITON_INTERPRET") == "1":
    interpret_faster()
read_yamls_once()
Hydra.get_mode = lambda *_, **__: None  # it would compose the configuration once more


@pytest.fixture(scope="session", autouse=True)
def compositions(tmp_path_factory):
    folder = of_session(tmp_path_factory, "compositions")
    folder.mkdir(exist_ok=True)
    share_compositions(folder)


def experiment(*words: str) -> Experiment:
    """Compose the experiment of a command line, once for all tests."""
    return composed(os.environ.get("LRA_DATA"), *words)


@functools.cache
def composed(data_root: str | None, *words: str) -> Experiment:
    return compose(Experiment, words)


def config(attn: str, *overrides: str) -> Experiment:
    """Compose a smoke experiment; attn is a name of conf/attn or the path of a class, followed by overrides."""
    word, *words = attn.split()
    mechanism = [f"attn={word}"] if "." not in word else ["attn=custom", f"attn._target_={word}"]
    return experiment(*SMOKE, *mechanism, *words, *overrides)


@pytest.fixture
def call(monkeypatch, capfd):
    """Call an entry point in this process: call(entry, *words) -> exit message (None on success), stdout, stderr."""

    def run(entry, *words):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["lra", *words])
        try:
            entry()
            stop = None
        except SystemExit as error:
            stop = error.code
        return stop, *capfd.readouterr()

    return run


@pytest.fixture
def without_figures(monkeypatch):
    """Skip drawing the figures of a report, which other tests cover."""
    monkeypatch.setattr("lra.results.figures.save", lambda *_: {})
    monkeypatch.setattr("lra.report.export._draw_studies", lambda *_: {})


def slow(*values):
    """Mark a case of a parametrised test as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def assert_error(message: str, call, *args, **options) -> str:
    """Assert that the call raises a one-line ValueError with this message that is no StoreError; return the text."""
    with pytest.raises(ValueError, match=message) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value) and not isinstance(caught.value, StoreError)
    return str(caught.value)


def set_up(data):
    """Load the splits of a data module and return it."""
    data.setup()
    return data


def error_message(call, *args) -> str:
    """Return the message of the ValueError that a call raises; it must be a single line."""
    return assert_error(".", call, *args)


def p_value(observed, expected=None) -> float:
    """p-value of a chi-square test of counts (k,) with k - 1 degrees of freedom; expected counts default to uniform."""
    observed = torch.as_tensor(observed, dtype=torch.float64)
    expected = observed.mean() if expected is None else torch.as_tensor(expected, dtype=torch.float64)
    statistic = ((observed - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(observed) - 1) / 2, dtype=torch.float64), statistic / 2).item()


def until(condition, seconds=60):
    """Poll until a condition is true; fail after a number of seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk():
    """Limit files to 10,000 bytes, so that writes fail with an OSError as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def run_killed(work, call: int, *functions) -> int:
    """Run work() in a child, killed at a call (from 0) of the functions, each (owner, name); return its exit status.

    The status of a killed child is 9.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    remaining_calls = iter(range(call))

    def limit(function):
        return lambda *args: os._exit(9) if next(remaining_calls, None) is None else function(*args)

    for owner, name in functions:
        setattr(owner, name, limit(getattr(owner, name)))
    work()
    os._exit(0)


def deny_access(monkeypatch, name):
    """Make folders whose path ends with a name unreadable, as folders without permission are."""
    scandir = os.scandir

    def scan(path):
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


def of_session(tmp_path_factory, name):
    """Path of a folder that all processes of a test session share."""
    # Under xdist the base folder belongs to one worker; its parent is common to all workers.
    worker_dir = tmp_path_factory.getbasetemp()
    return (worker_dir.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_dir) / name


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    """The data folder of the test session, so that smoke data sets are generated only once."""
    root = of_session(tmp_path_factory, "lra-data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(root))
        yield root


@pytest.fixture
def work(tmp_path, data_root, monkeypatch):
    """A working directory with empty placeholders for the files that commands of the manuals name."""
    release = [f"lra_release/new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")]
    for name in ("dog.fa.gz", "donkey.fa.gz", "aclImdb_v1.tar.gz", *release):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def service(tmp_path, monkeypatch):
    """Isolate W&B: no API key or settings, a new session, and a working directory that must stay empty."""
    wandb = pytest.importorskip("wandb", reason="pip install -e '.[wandb]'")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_PROJECT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()
    assert not list((tmp_path / "cwd").iterdir())
