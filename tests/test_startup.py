"""Entry points: settings before torch is imported, Ctrl-C, installed files, the examples, the command lra."""

import importlib
import os
import re
import resource
import runpy
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec

import matplotlib.pyplot as plt
import pytest

from lra import cli, console, startup
from lra.config import CONF
from lra.startup import SPINS

ROOT = CONF.parent
INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("name, value, spins", [("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "active", None)])
def test_threads_wait_as_the_environment_says(name, value, spins, monkeypatch):
    for other in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    startup.wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def python(code):
    """Run code in a process of its own, whose environment does not say how threads wait."""
    env = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)


WATCH = """
import os, runpy, sys
class Watch:
    def find_spec(self, name, *_):
        if name == 'torch': sys.exit(os.environ.get('GOMP_SPINCOUNT', 'not settled'))
sys.meta_path.insert(0, Watch())
"""


ENTRIES = {
    "runpy.run_path('examples/arena_cell.py', run_name='__main__')": SPINS,
    "runpy.run_module('lra.train', run_name='__main__')": SPINS,
    "sys.argv[1:] = ['maps']; runpy.run_module('lra.cli', run_name='__main__')": SPINS,
    "import lra.train.__main__": "not settled",  # for a program that uses the suite, nothing is set
}


@pytest.mark.parametrize("code", ENTRIES)
def test_otherwise_entry_points_settle_it_before_torch_is_imported(code):
    assert python(WATCH + code).stderr.strip() == ENTRIES[code]


EFFECTS = """
import importlib, os, pkgutil, signal, torch
def state():
    return dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), torch.get_num_threads()
environ, *others = state()
import lra, data_prep
names = [name for top in (lra, data_prep) for _, name, _ in pkgutil.walk_packages(top.__path__, f"{top.__name__}.")]
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert "is not installed" in str(error), (name, error)
after, *others_after = state()
libraries = {"PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"}  # set by lightning and by torch
changed = {key for key in environ.keys() | after.keys() if environ.get(key) != after.get(key)} - libraries
print(len(names) > 200, changed, others == others_after)
"""


def test_importing_every_module_changes_nothing_in_the_process():
    run = python(EFFECTS)
    assert run.stdout == "True set() True\n", run.stderr


@pytest.mark.parametrize("system", ["Windows", "FreeBSD"])
def test_another_system_gets_one_line(system):
    code = f"import platform; platform.system = lambda: {system!r}; import lra.cli; lra.cli.main()"
    run = python(code)
    assert run.stderr == f"lra: runs on Linux and macOS, not on {system}; on Windows use WSL\n" and run.returncode == 1


def test_an_extra_is_installed_from_the_checkout_or_by_the_name_of_the_package(tmp_path, monkeypatch):
    assert console.pip_install("slurm") == "pip install '.[slurm]'"
    monkeypatch.setattr(console, "__file__", str(tmp_path / "site-packages" / "lra" / "console.py"))
    assert console.pip_install("slurm") == "pip install 'lra-suite[slurm]'"


@pytest.mark.parametrize(
    "module", ["studies.pretrained.__main__", "studies.pretrained.dinov2_onnx", "integrations.huggingface"]
)
def test_a_missing_package_is_one_line_that_names_the_extra(module, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lra.integrations.", "lra.studies.pretrained."))]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("transformers", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    package, extra = ("onnx", "onnx") if module.endswith("dinov2_onnx") else ("transformers", "hf")
    line = re.escape(f"{package} is not installed, or too old: pip install '.[{extra}]'")
    if module.startswith("studies"):
        with pytest.raises(SystemExit, match=f"^lra: {line}$"):
            runpy.run_module(f"lra.{module}", run_name="__main__")
    with pytest.raises(ImportError, match=f"^{line}$"):
        importlib.import_module(f"lra.{module}")


LINE = (1, "lra: interrupted\n")
SWALLOWED = f"try:\n    {INTERRUPT}except BaseException:\n    print('swallowed')\n"
OTHER = "try:\n    import lra.ops.pinv\nexcept KeyboardInterrupt:\n    raise SystemExit(7)"


@pytest.mark.parametrize(
    "code, command, ending",
    [
        *((INTERRUPT, ["-m", module], LINE) for module in ("lra.train", "lra.sweep", "data_prep")),
        (INTERRUPT, ["-m", "lra.cli", "train"], LINE),
        (SWALLOWED, ["-m", "lra.train"], LINE),
        (INTERRUPT, ["-c", OTHER, "-m", "lra.train"], (7, "")),  # a program that imports lra keeps its interrupts
    ],
)
def test_an_interrupt_while_a_command_imports_torch_is_one_line(code, command, ending, tmp_path):
    (tmp_path / "torch.py").write_text(code)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run([sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == ending


def test_past_the_imports_an_interrupt_is_an_exception(monkeypatch):
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
def test_a_wheel_carries_what_is_read_at_run_time(tmp_path):
    line = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", ".", "-w")
    subprocess.run([*line, str(tmp_path)], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    read = [*(ROOT / "lra/report/web").iterdir(), ROOT / "lra/results/published.csv"]
    tracked = subprocess.run(["git", "ls-files", "lra", "data_prep"], cwd=ROOT, capture_output=True, text=True)
    assert {path.relative_to(ROOT).as_posix() for path in read} <= held
    assert {f"lra/conf/{path.relative_to(CONF).as_posix()}" for path in CONF.rglob("*.yaml")} <= held
    assert set(tracked.stdout.split()) <= held and not tracked.returncode
    assert {f"lra/runs/published/{name}/runs.csv" for name in ("board", "board-rates")} <= held


def example(name, *arguments):
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*arguments)


@pytest.fixture
def pictures(tmp_path, data_root, monkeypatch):
    """An empty working directory, and a folder of data that the session shares."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


def test_cur_from_scratch_approaches_exact_attention(pictures):
    step, magnitude = example("cur_from_scratch", "128").values()
    assert (
        step[0] > 10 * step[-1] and magnitude[0] > 10 * magnitude[-1] and (pictures / "cur_from_scratch.png").exists()
    )


def test_the_kernel_of_s4d_is_its_recurrence(pictures):
    differences = example("s4d_kernel", "40")
    assert set(differences) == {"S4D-Lin", "S4D-Inv"} and max(differences.values()) < 1e-12
    assert (pictures / "s4d_kernel.png").exists()


def test_a_cell_of_the_arena_goes_from_data_to_a_table(pictures):
    table = example("arena_cell", "cur_step", "smoke", "1")
    lines = [line.split("|")[1].strip(" `") for line in table.splitlines()]
    assert lines == ["mechanism", "---", "cur_step", "mean"] and (pictures / "arena_cell.png").exists()


def test_an_added_mechanism_trains_and_scores(pictures, capsys):
    assert 0 <= example("add_mechanism", "3", "efficient")["efficient"] <= 100
    assert "efficient: test" in capsys.readouterr().out and (pictures / "add_mechanism.png").exists()
    with pytest.raises(SystemExit, match="mechanisms are efficient, softmax, mean, got best"):
        example("add_mechanism", "3", "best")


@pytest.mark.slow
def test_attention_beats_its_control_in_the_example(pictures):
    scores = example("add_mechanism", "100", "efficient", "softmax", "mean")
    assert min(scores["efficient"], scores["softmax"]) > 50 + scores["mean"]


def test_an_example_is_short():
    assert not [path for path in (ROOT / "examples").glob("*.py") if len(path.read_text().splitlines()) > 80]


LRA = [sys.executable, "-m", "lra.cli"]
AT_MOST = 0.3  # seconds of processor time


def call(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_it_answers_at_once_without_torch(arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = call(*LRA, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < AT_MOST
    assert run.returncode == 0 and run.stderr == ""
    if arguments != ("--version",):
        named = {line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")}
        commands = "data train sweep report leaderboard evaluate submit bench check maps publish study"
        assert named >= {*commands.split()}
    code = "from lra import cli; cli.main(); import sys; print('torch' in sys.modules)"
    assert call(sys.executable, "-c", code, *arguments).stdout.endswith("\nFalse\n")


WRONG = {
    "trian task=listops": "lra: trian: no such command; did you mean train? the commands are data, train, sweep, ",
    "task=listops": "lra: task=listops: no such command; the commands are data, train, ",
    "study": "lra: study <name>: no such study; name one of dropin, factorise, inverses, ",
    "study transfre run=x": "lra: study transfre: no such study; name one of dropin, ",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_an_unknown_command_names_the_valid_ones(arguments):
    run = call(*LRA, *arguments.split())
    assert run.returncode == 1 and run.stderr.startswith(WRONG[arguments]) and run.stderr.count("\n") == 1


def test_every_command_has_an_entry_point():
    later = ("lra.leaderboard", "lra.evaluate", "lra.submit", "data_prep.inspect:main", "data_prep.export:main")
    for name, entry in cli.entries().items():
        module = entry.module.partition(":")[0]
        assert find_spec(module) or entry.module in later, name
    assert {name for name in cli.entries() if name.startswith("study ")} >= {"study probes", "study transfer show"}


SAME = [
    ("train", "lra.train", ["--help"]),
    ("bench gpu-check", "lra.bench.gpu_check", ["25"]),
    pytest.param("data", "data_prep", ["task=nope"], marks=pytest.mark.slow),
    pytest.param("data show", "data_prep.show", ["task=listops", "budget=smoke", "count=0"], marks=pytest.mark.slow),
    pytest.param("study lengths", "lra.studies.lengths", ["--version"], marks=pytest.mark.slow),
    pytest.param("check", "lra.checks", ["attn=cur_best"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, module, arguments", SAME)
def test_it_does_what_python_m_does(name, module, arguments):
    ours, theirs = call(*LRA, *name.split(), *arguments), call(sys.executable, "-m", module, *arguments)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.stdout or ours.stderr.startswith("lra: ")


def test_a_function_gets_the_arguments_and_is_imported_when_it_is_needed(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\ndef main(argv):\n    print(argv)\n    return 3\n")
    code = "from lra import cli; cli.ENTRIES['data inspect'] = cli.EntryPoint('mine:main'); cli.main()"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", code, "data", "inspect", "a b", "--x"]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (3, "['a b', '--x']\n")
    code = "from lra import cli; cli.ENTRIES['data inspect'] = cli.EntryPoint('mine.missing:main'); cli.main()"
    run = subprocess.run([*command[:2], code, "data", "inspect"], env=env, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr == "lra: mine.missing is not part of this installation\n"


def test_a_console_script_finds_classes_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text("def main(argv):\n    print(argv)\n")
    script = tmp_path / "bin" / "lra"
    script.parent.mkdir()
    script.write_text("from lra import cli\ncli.ENTRIES['data inspect'] = cli.EntryPoint('mine:main')\ncli.main()\n")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), "data", "inspect", "x"]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("['x']\n", "")


def test_the_console_script_is_declared():
    assert '[project.scripts]\nlra = "lra.cli:main"\n' in (ROOT / "pyproject.toml").read_text()
