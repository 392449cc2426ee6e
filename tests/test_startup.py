"""Start-up of entry points: thread settings, Ctrl-C, missing packages, the lra command, wheel, numba cache."""

import importlib
import inspect
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from typing import get_type_hints

import pytest

from data_prep import adding
from lra import __main__ as cli
from lra import compiled, startup
from lra.config import CONF
from lra.startup import SPINS

ROOT = CONF.parent
PACKAGE = ROOT / "data_prep"


def process(*arguments, folders=(ROOT,), cwd=ROOT, **variables):
    """Run Python with the given import path, without inherited thread and numba settings."""
    settings = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "NUMBA_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, folders))} | variables
    return subprocess.run([sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name, value, spins", [("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "active", None)])
def test_spin_count_respects_environment(name, value, spins, monkeypatch):
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    startup.limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


WATCH = """
import os, runpy, sys
os.environ.pop('TRITON_INTERPRET', None)
class Watch:
    def find_spec(self, name, *_):
        if name == 'torch': sys.exit(f"{os.environ.get('GOMP_SPINCOUNT')} {os.environ.get('TRITON_INTERPRET')}")
sys.meta_path.insert(0, Watch())
"""
ENTRIES = ["runpy.run_path('examples/arena_cell.py', run_name='__main__')"]
ENTRIES += ["sys.argv[1:] = ['maps']; runpy.run_module('lra.__main__', run_name='__main__')"]
# ``python -m`` does the same as ``lra``.
MODULES = sorted({entry.module for entry in cli.ENTRIES.values() if ":" not in entry.module})
ENTRIES += [f"runpy.run_module({module!r}, run_name='__main__')" for module in MODULES]


@pytest.mark.parametrize("code", ENTRIES)
def test_entry_points_set_environment_before_importing_torch(code):
    # The checks of mechanisms compute on the CPU, where Triton has to interpret its kernels.
    interprets = find_spec("triton") is not None and re.search(r"lra\.(checks|submit)'", code) is not None
    assert process("-c", WATCH + code).stderr.strip() == f"{SPINS} {'1' if interprets else None}"


EFFECTS = """
import importlib, os, pkgutil, signal, sys, torch
def state():
    return dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), torch.get_num_threads()
def failures(names):
    messages = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            messages[name] = str(error)
    return messages
environ, *others = state()
import lra, data_prep
names = [name for top in (lra, data_prep) for _, name, _ in pkgutil.walk_packages(top.__path__, f"{top.__name__}.")]
optional = ("triton", "tensorflow", "tensorflow_datasets", "wandb")
sys.modules.update(dict.fromkeys(optional))  # None: not installed
print(*failures(names))
from lra.config.compose import compose
from lra.config.experiment import Experiment
for name in ("cur_abs", "nystrom"):
    compose(Experiment, ("task=listops", "budget=smoke", f"attn={name}")).classifier()
for name in optional:
    del sys.modules[name]
print(*(message for message in failures(names).values() if "is not installed" not in message))
after, *others_after = state()
libraries = {"PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"}  # set by lightning and by torch
changed = {key for key in environ.keys() | after.keys() if environ.get(key) != after.get(key)} - libraries
print(len(names) > 200, changed, others == others_after)
"""
# Modules that may fail to import without an optional package.
OPTIONAL_MODULES = ("lra.ops.triton.", "lra.integrations.huggingface", "lra.studies.encoder", "lra.studies.pretrained.")
OPTIONAL_MODULES += ("data_prep.tfds",)


def test_imports_need_no_optional_packages_and_have_no_side_effects():
    run = process("-c", EFFECTS)
    failed_modules, errors, effects = run.stdout.splitlines()
    assert all(name.startswith(OPTIONAL_MODULES) for name in failed_modules.split()), failed_modules
    assert (errors, effects) == ("", "True set() True"), run.stderr


def test_unsupported_system_raises():
    run = process("-c", "import platform; platform.system = lambda: 'Windows'; from lra.__main__ import main; main()")
    assert run.stderr == "lra: runs on Linux and macOS, not on Windows; on Windows use WSL\n" and run.returncode == 1


def test_deleted_working_directory_raises(tmp_path):
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv.pop()); from lra.__main__ import main; main()"
    run = process("-c", code, str(tmp_path))
    assert run.stderr == "lra: the working directory was deleted; change to another one\n" and run.returncode == 1


MISSING = {"studies.pretrained.dinov2_onnx": ("onnx", "onnx"), "integrations.huggingface": ("transformers", "hf")}


@pytest.mark.parametrize("module", MISSING)
def test_missing_package_error_names_extra(module, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lra.integrations.", "lra.studies.pretrained."))]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("transformers", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    line = re.escape("{} is not installed, or too old: pip install -e '.[{}]'".format(*MISSING[module]))
    if module.startswith("studies"):
        with pytest.raises(SystemExit, match=f"^lra: {line}$"):
            runpy.run_module(f"lra.{module}", run_name="__main__")
    with pytest.raises(ImportError, match=f"^{line}$"):
        importlib.import_module(f"lra.{module}")


# A torch whose import is interrupted, and one that swallows the interrupt.
INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
SWALLOWED = f"try:\n    {INTERRUPT}except BaseException:\n    print('swallowed')\n"


@pytest.mark.parametrize("package, code", [("torch", INTERRUPT), ("torch", SWALLOWED), ("lightning", SWALLOWED)])
@pytest.mark.parametrize("command", ["lra.train", "lra train"])
def test_interrupt_during_imports_prints_one_message(package, code, command, tmp_path):
    (tmp_path / f"{package}.py").write_text(code)
    run = process("-m", *command.split(), "task=listops", "attn=mean", folders=(tmp_path, ROOT), cwd=tmp_path)
    assert (run.returncode, run.stderr) == (1, "lra: interrupted\n")


def test_interrupt_after_imports_raises_keyboard_interrupt(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        startup.end_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        startup.interruptible()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_wheel_contains_all_runtime_files(tmp_path):
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", ".", "-w", tmp_path]
    process(*command).check_returncode()
    (wheel,) = tmp_path.glob("*.whl")
    members = set(zipfile.ZipFile(wheel).namelist())
    runtime_files = [*(ROOT / "lra/report/web").iterdir(), ROOT / "lra/results/published.csv"]
    tracked = subprocess.run(["git", "ls-files", "lra", "data_prep"], cwd=ROOT, capture_output=True, text=True)
    assert {path.relative_to(ROOT).as_posix() for path in runtime_files} <= members
    assert {f"lra/conf/{path.relative_to(CONF).as_posix()}" for path in CONF.rglob("*.yaml")} <= members
    assert set(tracked.stdout.split()) <= members and not tracked.returncode
    assert {f"lra/runs/published/{name}/runs.csv" for name in ("bf16", "board", "board-rates")} <= members


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_help_and_version_do_not_import_torch(arguments):
    code = "from lra import __main__ as cli; cli.main(); import sys; print('torch' in sys.modules)"
    run = process("-c", code, *arguments)
    assert run.returncode == 0 and run.stderr == "" and run.stdout.endswith("\nFalse\n")
    if arguments != ("--version",):
        command_names = {line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")}
        commands = "data train sweep report leaderboard evaluate submit bench check maps publish study"
        assert command_names >= {*commands.split()}


def test_help_of_each_command_needs_no_torch():
    """Each names its yaml before its imports and in its options. ``pretrained`` needs an optional package."""
    names = set()
    modules = {entry.module for entry in cli.entries().values() if ":" not in entry.module}
    for module in modules - {"lra.studies.pretrained"}:
        is_package = (ROOT / module.replace(".", "/")).is_dir()
        command = importlib.import_module(f"{module}.__main__" if is_package else module)
        functions = [value.__wrapped__ for value in vars(command).values() if hasattr(value, "__wrapped__")]
        kinds = [kind for function in functions for kind in get_type_hints(function).values() if hasattr(kind, "conf")]
        start = re.split(r"^(?:from|import) ", inspect.getsource(command), flags=re.MULTILINE)[0]
        assert all(f'begin("{kind.conf}")' in start for kind in kinds)
        names |= {kind.conf for kind in kinds}
    assert len(names) == 21
    code = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('lra.train', run_name='__main__')"
    assert "\ntask= adding chain" in process("-c", code, "--help").stdout


UNKNOWN = {
    "trian task=listops": "lra: trian: no such command; did you mean train? the commands are data, train, sweep, ",
    "study": "lra: study <name>: no such study; name one of dropin, factorise, first_tokens, ",
}


@pytest.mark.parametrize("arguments", UNKNOWN)
def test_unknown_command_error_lists_commands(arguments, call):
    stop, *outputs = call(cli.main, *arguments.split())
    assert stop.startswith(UNKNOWN[arguments]) and "\n" not in stop and outputs == ["", ""]


def test_every_command_has_an_entry_point():
    for name, entry in cli.entries().items():
        assert find_spec(entry.module.partition(":")[0]), name
    assert {name for name in cli.entries() if name.startswith("study ")} >= {"study probes", "study transfer show"}
    assert '[project.scripts]\nlra = "lra.__main__:main"\n' in (ROOT / "pyproject.toml").read_text()


def test_function_entry_point_gets_arguments_and_working_directory(tmp_path):
    """A console script also imports from the working directory."""
    (tmp_path / "mine.py").write_text("def main(argv):\n    print(argv)\n    return 3\n")
    script = tmp_path / "bin" / "lra"
    script.parent.mkdir()
    script.write_text("from lra.__main__ import *; ENTRIES['data inspect'] = EntryPoint('mine:main'); main()")
    run = process(str(script), "data", "inspect", "a b", "--x", cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (3, "['a b', '--x']\n", "")


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The function that names the cache of a package, for a user without caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled.SETTINGS, "CACHE_DIR", "")
    return compiled.cache_folder.__wrapped__


def test_numba_cache_depends_on_all_sources_of_the_package(tmp_path, cache_folder, monkeypatch):
    """numba itself compares only the time of the file of the compiled function."""
    package = shutil.copytree(PACKAGE, tmp_path / "data_prep")
    first = cache_folder(package)
    helper = package / "counter_rng.py"
    times = os.stat(helper)
    helper.write_text(helper.read_text().replace("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB"))
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = cache_folder(package)
    assert first != second and first.exists() and second.exists()
    monkeypatch.setattr(compiled.SETTINGS, "CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cache_folder(package).parent == tmp_path / "elsewhere"


def test_numba_cache_is_outside_the_package_and_needs_a_writable_disk(tmp_path, cache_folder, monkeypatch):
    """pip would leave a cache inside the package behind, and data_prep would stay importable."""
    assert adding._answers._cache.cache_path.startswith(str(compiled.cache_folder(PACKAGE)))
    assert cache_folder(PACKAGE).name.startswith("numba-") and cache_folder(PACKAGE).parent == tmp_path / "lra-suite"
    # Less space than the 3.5 MB of the machine code of all functions, or a read-only disk.
    usage = shutil.disk_usage(tmp_path)._replace(free=4 * 2**20)
    for module, name, value in ((shutil, "disk_usage", usage), (os, "access", False)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *_, value=value: value)
            assert cache_folder(PACKAGE) is None, name
