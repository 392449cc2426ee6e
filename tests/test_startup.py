"""Start-up of entry points: thread settings, Ctrl-C, missing packages, the lra command, wheel, numba cache."""

import importlib
import os
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec

import pytest

from lra import cli, compiled, console, startup
from lra.config import CONF
from lra.startup import SPINS

ROOT = CONF.parent
INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"


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
    startup.wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


WATCH = """
import os, runpy, sys
class Watch:
    def find_spec(self, name, *_):
        if name == 'torch': sys.exit(os.environ.get('GOMP_SPINCOUNT', 'not settled'))
sys.meta_path.insert(0, Watch())
"""
ENTRIES = {
    "runpy.run_path('examples/arena_cell.py', run_name='__main__')": SPINS,
    "sys.argv[1:] = ['maps']; runpy.run_module('lra.cli', run_name='__main__')": SPINS,
    # A program that only imports the package keeps its own settings.
    "import lra.train.__main__": "not settled",
}
# ``python -m`` does the same as ``lra``.
MODULES = sorted({entry.module for entry in cli.ENTRIES.values() if ":" not in entry.module})
ENTRIES |= {f"runpy.run_module({module!r}, run_name='__main__')": SPINS for module in MODULES}


@pytest.mark.parametrize("code", ENTRIES)
def test_entry_points_set_spin_count_before_importing_torch(code):
    assert process("-c", WATCH + code).stderr.strip() == ENTRIES[code]


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


@pytest.mark.parametrize("system", ["Windows", "FreeBSD"])
def test_unsupported_system_raises(system):
    run = process("-c", f"import platform; platform.system = lambda: {system!r}; import lra.cli; lra.cli.main()")
    assert run.stderr == f"lra: runs on Linux and macOS, not on {system}; on Windows use WSL\n" and run.returncode == 1


def test_pip_command_depends_on_checkout_or_installation(tmp_path, monkeypatch):
    assert console.pip_install("slurm") == "pip install '.[slurm]'"
    monkeypatch.setattr(console, "__file__", str(tmp_path / "site-packages" / "lra" / "console.py"))
    assert console.pip_install("slurm") == "pip install 'lra-suite[slurm]'"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("studies.pretrained.__main__", "transformers", "hf"),
        ("studies.pretrained.dinov2_onnx", "onnx", "onnx"),
        ("integrations.huggingface", "transformers", "hf"),
    ],
)
def test_missing_package_error_names_extra(module, package, extra, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lra.integrations.", "lra.studies.pretrained."))]:
        monkeypatch.delitem(sys.modules, name)
    for missing in ("transformers", "onnx"):
        monkeypatch.setitem(sys.modules, missing, None)
    line = re.escape(f"{package} is not installed, or too old: pip install '.[{extra}]'")
    if module.startswith("studies"):
        with pytest.raises(SystemExit, match=f"^lra: {line}$"):
            runpy.run_module(f"lra.{module}", run_name="__main__")
    with pytest.raises(ImportError, match=f"^{line}$"):
        importlib.import_module(f"lra.{module}")


INTERRUPTED = (1, "lra: interrupted\n")
SWALLOWED = f"try:\n    {INTERRUPT}except BaseException:\n    print('swallowed')\n"
EMBEDDING_PROGRAM = "try:\n    import lra.ops.pinv\nexcept KeyboardInterrupt:\n    raise SystemExit(7)"


@pytest.mark.parametrize(
    "code, command, ending",
    [
        *((INTERRUPT, ["-m", module], INTERRUPTED) for module in ("lra.train", "lra.sweep", "data_prep")),
        (INTERRUPT, ["-m", "lra.cli", "train"], INTERRUPTED),
        (SWALLOWED, ["-m", "lra.train"], INTERRUPTED),
        # A program that imports lra handles interrupts itself.
        (INTERRUPT, ["-c", EMBEDDING_PROGRAM, "-m", "lra.train"], (7, "")),
    ],
)
def test_interrupt_during_imports_prints_one_message(code, command, ending, tmp_path):
    (tmp_path / "torch.py").write_text(code)
    run = process(*command, folders=(tmp_path, ROOT), cwd=tmp_path)
    assert (run.returncode, run.stderr) == ending


def test_interrupt_after_imports_raises_keyboard_interrupt(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        startup.end_quietly()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        startup.interruptible()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_wheel_contains_all_runtime_files(tmp_path):
    process(
        "-m", *["pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", ".", "-w"], tmp_path
    ).check_returncode()
    (wheel,) = tmp_path.glob("*.whl")
    members = set(zipfile.ZipFile(wheel).namelist())
    runtime_files = [*(ROOT / "lra/report/web").iterdir(), ROOT / "lra/results/published.csv"]
    tracked = subprocess.run(["git", "ls-files", "lra", "data_prep"], cwd=ROOT, capture_output=True, text=True)
    assert {path.relative_to(ROOT).as_posix() for path in runtime_files} <= members
    assert {f"lra/conf/{path.relative_to(CONF).as_posix()}" for path in CONF.rglob("*.yaml")} <= members
    assert set(tracked.stdout.split()) <= members and not tracked.returncode
    assert {f"lra/runs/published/{name}/runs.csv" for name in ("board", "board-rates")} <= members


MAX_CPU_SECONDS = 0.3


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_help_and_version_are_fast_and_do_not_import_torch(arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = process("-m", "lra.cli", *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MAX_CPU_SECONDS
    assert run.returncode == 0 and run.stderr == ""
    if arguments != ("--version",):
        command_names = {line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")}
        commands = "data train sweep report leaderboard evaluate submit bench check maps publish study"
        assert command_names >= {*commands.split()}
    code = "from lra import cli; cli.main(); import sys; print('torch' in sys.modules)"
    assert process("-c", code, *arguments).stdout.endswith("\nFalse\n")


EXPECTED_ERRORS = {
    "trian task=listops": "lra: trian: no such command; did you mean train? the commands are data, train, sweep, ",
    "task=listops": "lra: task=listops: no such command; the commands are data, train, ",
    "study": "lra: study <name>: no such study; name one of dropin, factorise, inverses, ",
    "study transfre run=x": "lra: study transfre: no such study; name one of dropin, ",
}


@pytest.mark.parametrize("arguments", EXPECTED_ERRORS)
def test_unknown_command_error_lists_commands(arguments):
    run = process("-m", "lra.cli", *arguments.split())
    assert run.returncode == 1 and run.stderr.startswith(EXPECTED_ERRORS[arguments]) and run.stderr.count("\n") == 1


def test_every_command_has_an_entry_point():
    for name, entry in cli.entries().items():
        assert find_spec(entry.module.partition(":")[0]), name
    assert {name for name in cli.entries() if name.startswith("study ")} >= {"study probes", "study transfer show"}
    assert '[project.scripts]\nlra = "lra.cli:main"\n' in (ROOT / "pyproject.toml").read_text()


EQUIVALENT = [
    ("data", "data_prep", ["task=nope"]),
    ("bench gpu-check", "lra.bench.gpu_check", ["25"]),
    pytest.param("train", "lra.train", ["--help"], marks=pytest.mark.slow),
    pytest.param("data show", "data_prep.show", ["task=listops", "budget=smoke", "count=0"], marks=pytest.mark.slow),
    pytest.param("study lengths", "lra.studies.lengths", ["--version"], marks=pytest.mark.slow),
    pytest.param("check", "lra.checks", ["attn=cur_best"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, module, arguments", EQUIVALENT)
def test_lra_command_equals_python_m(name, module, arguments):
    ours, theirs = process("-m", "lra.cli", *name.split(), *arguments), process("-m", module, *arguments)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.stdout or ours.stderr.startswith("lra: ")


REGISTER = "from lra import cli; cli.ENTRIES['data inspect'] = cli.EntryPoint({!r}); cli.main()"


@pytest.mark.parametrize(
    ("target", "ending"),
    [
        ("mine:main", (3, "['a b', '--x']\n", "")),
        ("mine.missing:main", (1, "", "lra: mine.missing is not part of this installation\n")),
    ],
)
def test_function_entry_point_is_imported_lazily_with_arguments(tmp_path, target, ending):
    (tmp_path / "mine.py").write_text("import sys\ndef main(argv):\n    print(argv)\n    return 3\n")
    code = REGISTER.format(target)
    run = process("-c", code, "data", "inspect", "a b", "--x", folders=(tmp_path, ROOT), cwd=tmp_path.parent)
    assert (run.returncode, run.stdout, run.stderr) == ending


def test_console_script_imports_from_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text("def main(argv):\n    print(argv)\n")
    script = tmp_path / "bin" / "lra"
    script.parent.mkdir()
    script.write_text(REGISTER.format("mine:main"))
    run = process(str(script), "data", "inspect", "x", cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("['x']\n", "")


PACKAGE = ROOT / "data_prep"
LABELS = """
from data_prep import adding
print(adding.__file__, adding.Adding(train=3, val=1, test=1).load("")["train"].labels.tolist())
print(sum(adding._answers.stats.cache_hits.values()), sum(adding._answers.stats.cache_misses.values()))
"""


def output(code, folder, **variables):
    """Run code with imports and the user cache in a folder; returns the printed lines."""
    variables = {"XDG_CACHE_HOME": str(folder / "cache")} | variables
    run = process("-c", code, folders=(folder, ROOT), cwd=folder, **variables)
    run.check_returncode()
    return run.stdout.splitlines()


@pytest.fixture
def copy(tmp_path):
    """A folder with a copy of data_prep and no numba cache."""
    shutil.copytree(PACKAGE, tmp_path / "data_prep", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def draw_labels(copy, **variables):
    """Draw labels with the copy; returns them and the counts of cached and newly compiled functions."""
    labels, counts = output(LABELS, copy, **variables)
    assert labels.startswith(str(copy))
    return labels, counts


@pytest.mark.slow
def test_numba_cache_is_invalidated_by_edited_helper_module(copy):
    helper = copy / "data_prep" / "counter_rng.py"
    text = helper.read_text()
    before, counts = draw_labels(copy)
    assert counts == "0 1"
    assert draw_labels(copy) == (before, "1 0")
    times = os.stat(helper)
    # Edit a constant of ``mix`` and restore the file time, which numba alone would compare.
    helper.write_text(text.replace("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB"))
    os.utime(helper, ns=(times.st_atime_ns, times.st_mtime_ns))
    after, counts = draw_labels(copy)
    assert after != before and counts == "0 1"
    old_cache, new_cache = sorted((copy / "cache" / "lra-suite").glob("numba-*"), key=os.path.getmtime)
    os.utime(old_cache, (0, 0))
    # A cache that was unused for a month is removed.
    assert draw_labels(copy) == (after, "1 0") and new_cache.exists() and not old_cache.exists()


@pytest.mark.slow
def test_numba_cache_dir_is_respected(copy, tmp_path):
    numba_dir = tmp_path / "elsewhere"
    before, _ = draw_labels(copy, NUMBA_CACHE_DIR=str(numba_dir))
    assert list(numba_dir.glob("numba-*/*/*.nbi")) and not list(copy.rglob("data_prep/**/*.nbi"))
    assert draw_labels(copy, NUMBA_CACHE_DIR=str(numba_dir)) == (before, "1 0")


def test_numba_cache_is_outside_the_package(tmp_path):
    """pip would leave a cache inside the package behind, and data_prep would stay importable."""
    code = f"from pathlib import Path; from lra.compiled import cache_folder as f; print(f(Path({str(PACKAGE)!r})))"
    (line,) = output(code, tmp_path)
    assert line.startswith(str(tmp_path / "cache" / "lra-suite" / "numba-"))


def test_full_or_read_only_disk_disables_numba_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    assert compiled.cache_folder.__wrapped__(PACKAGE) is None
    monkeypatch.undo()
    # The machine code of all functions takes 3.5 MB.
    usage = shutil.disk_usage(tmp_path)._replace(free=4 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert compiled.cache_folder.__wrapped__(PACKAGE) is None
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert compiled.cache_folder.__wrapped__(PACKAGE) is None


def test_numba_is_imported_only_where_its_cache_is_managed():
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "lra").rglob("*.py")]
    uncached = [path.name for path in paths if re.search("njit|import numba", path.read_text())]
    # chord.py compiles with its own fastmath flags.
    assert sorted(uncached) == ["chord.py", "compiled.py"]
