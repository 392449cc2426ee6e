"""python -m lra.bench.gpu_check minutes=25: check a GPU in about this time and pack the results.

The parts, in order, are the tests marked gpu, the speed tests ``preset=figure4`` and ``preset=table2``, steps by
``trainer=gpu``, a profile, and trainings at the paper's budget (conf/sweep/window.yaml). A part that is stopped leaves
its finished tests, lengths and checkpoints. Run the same command to resume, also where the archive is unpacked: parts
that ended by themselves are skipped, and interrupted trainings continue from their last checkpoint.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import contextlib
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as xml
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from ..config import CONF
from ..config.quoting import override
from ..config.workers import killed_by
from ..console import log
from ..io import atomic
from ..report import bench_tables
from ..results import bench_record
from ..runs import record

STUDY = "gpu-check"
# Number of trainings that share the GPU, one CPU core each: a single run of ListOps or Text leaves it idle.
AT_ONCE = max(1, min(12, (os.cpu_count() or 1) - 1))
TEST_PROCESSES = min(3, AT_ONCE)
# Seconds that a benchmark takes beyond its budget: imports, rates of the machine, its last measurement.
OVERHEAD = 20
# Seconds for an interrupted process to write its results.
GRACE = 10
REPORT = "tests.xml"


class CheckPart(NamedTuple):
    """A command, and the largest share of the time that it may take.

    Args:
        name: name of its files.
        command: arguments; {seconds} is the budget of a benchmark, {minutes} the time of this part.
        share: share of all the minutes.
    """

    name: str
    command: list[str]
    share: float


def parts(home: Path) -> list[CheckPart]:
    """List the parts of the check in a folder."""
    python = [sys.executable, "-m"]

    # Tests of the kernels, with the values that they measured.
    report = f"--junitxml={home / 'parts' / REPORT}"
    tests = [*python, "pytest", "-q", "-m", "gpu", report, f"--rootdir={CONF.parent}", *map(str, gpu_test_files())]
    if find_spec("xdist"):
        # Most of their time goes into compilation.
        tests += ["-n", str(TEST_PROCESSES)]
    # The papers' speed tests, a training step, and its profile.
    bench = [*python, "lra.bench", "device=cuda", override("runs", home)]
    listops = ["tasks=listops", "n=2048", "batch=32"]
    step = ["what=step", "trainer=gpu", "modes=training", "mechanisms=[sdpa,cur_abs,nystrom]", "reference=sdpa"]
    # Trainings take the time that is left.
    sweep = [
        "sweep=window",
        f"study={STUDY}",
        override("runs", home.parent),
        "measure=20",
        "minutes={minutes}",
        "hydra/launcher=joblib",
        f"hydra.launcher.n_jobs={AT_ONCE}",
    ]
    return [
        CheckPart("tests", tests, 0.35),
        CheckPart("figure4", [*bench, "preset=figure4", "budget_s={seconds}"], 0.2),
        CheckPart("table2", [*bench, "preset=table2", "budget_s={seconds}"], 0.2),
        CheckPart("step", [*bench, *step, *listops, "budget_s={seconds}"], 0.1),
        CheckPart("profile", [*bench, "what=profile", "mechanisms=cur_abs", *listops], 0.05),
        CheckPart("trainings", [*python, "lra.sweep", *sweep], 1.0),
    ]


def gpu_test_files() -> list[Path]:
    """List the files of tests/ with a test marked gpu."""
    files = sorted((CONF.parent / "tests").rglob("test_*.py"))
    return [path for path in files if "pytest.mark.gpu" in path.read_text()]


def check(minutes: float, home: Path, todo: list[CheckPart], env: dict[str, str], name: str) -> Path:
    """Run the parts one after the other, each up to its share of the time.

    A part is interrupted OVERHEAD seconds after its share, so the check may end OVERHEAD + GRACE seconds late.

    Args:
        minutes: time of all parts together; none starts in the last OVERHEAD seconds, which would not suffice.
        home: folder of the results, runs/gpu-check.
        todo: parts in their order.
        env: environment of their processes.
        name: name of the hardware.

    Returns:
        The archive <home>.tar, which is rewritten after each part, like <home>/<name>.md.
    """
    end = time.monotonic() + 60 * minutes
    (home / "parts").mkdir(parents=True, exist_ok=True)
    # The parts may all have ended already, on another GPU.
    write_summary(home, name)
    path = pack(home)
    # A part that has ended is not repeated, so that the same command resumes.
    for part in todo:
        left = end - time.monotonic()
        if left > OVERHEAD and not _done(home, part.name).exists():
            seconds = min(part.share * 60 * minutes, left)
            outcome = run_part(home, part, seconds, env)
            log(f"gpu-check: {part.name}, {outcome}")
            write_summary(home, name)
            path = pack(home)
    return path


def run_part(home: Path, part: CheckPart, seconds: float, env: dict[str, str]) -> str:
    """Run a command, whose output goes to parts/<name>.log, and return how it ended; a stopped part is not done."""
    # Fill in the budget.
    budget = f"{max(1.0, seconds - OVERHEAD):.0f}"
    minutes = f"{seconds / 60:.2f}"
    command = [word.replace("{seconds}", budget).replace("{minutes}", minutes) for word in part.command]

    path = home / "parts" / f"{part.name}.log"
    with open(path, "ab") as output:
        limit = seconds + OVERHEAD
        status = _limited(command, limit, stdout=output, stderr=subprocess.STDOUT, cwd=CONF.parent, env=env)
    # A part that is stopped gets no file that marks it as done, so it is repeated.
    if status is None:
        return f"stopped after {limit:.0f} s"
    # So is a part that a signal ended, perhaps because memory ran out.
    if status < 0:
        return killed_by(-status)
    atomic.write(_done(home, part.name), f"{status}\n")
    return f"exit status {status}"


def _limited(command: list[str], seconds: float, **options) -> int | None:
    """Run a command; after ``seconds`` interrupt it, kill all processes that it started and return None."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        # The command may write what it has before it ends.
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summarise_tests(report: Path) -> list[str]:
    """Summarise pytest's JUnit report in paragraphs: counts, failed tests, and the values that tests measured."""
    if not report.exists():
        return ["No test has ended."]
    try:
        (suite,) = xml.parse(report).getroot().findall("testsuite")
    # A full disk may have cut the report.
    except (xml.ParseError, ValueError):
        return [f"{report} is damaged; delete it and {report.parent}/tests.done to run the tests again."]

    # Tests that failed or raised an error, each name once: a test whose teardown fails too has a second entry.
    failures = []
    for case in suite.iter("testcase"):
        tags = {child.tag for child in case}
        line = f"Failed: {case.get('classname')}.{case.get('name')}."
        if tags & {"failure", "error"} and line not in failures:
            failures.append(line)

    # Counts, and the values that tests recorded.
    counts = ", ".join(f"{suite.get(key)} {key}" for key in ("tests", "failures", "errors", "skipped"))
    values = [entry.get("value") for entry in suite.iter("property") if entry.get("name") == "measured"]
    measured = "\n".join(f"* {value}" for value in values)
    return [f"Tests: {counts}.", *failures, measured]


def write_summary(home: Path, name: str) -> None:
    """Write the results so far as <home>/<name>.md, with the tables of all benchmarks in the folder."""
    records, damaged = bench_record.scan(home)
    done = sorted((home / "parts").glob("*.done"))
    ended = {path.stem: int(path.read_text()) for path in done}
    paragraphs = ["# GPU check", f"Parts that ended, with their exit status: {ended}."]
    paragraphs += damaged
    paragraphs += summarise_tests(home / "parts" / REPORT)
    if records:
        paragraphs.append(bench_tables.markdown(bench_tables.tables(records)))
    else:
        paragraphs.append("No benchmark left a record.\n")
    atomic.write(home / f"{name}.md", "\n\n".join(paragraphs))


def pack(home: Path) -> Path:
    """Write <home>.tar: all files of the check but the checkpoints of runs that have ended."""
    path = home.with_name(f"{home.name}.tar")
    with atomic.replacing(path) as work, tarfile.open(work, "w") as archive:
        for file in sorted(home.rglob("*")):
            is_obsolete = file.suffix == ".ckpt" and (file.parent / record.NAME).exists()
            is_hidden = file.name.startswith(".")
            if file.is_file() and not is_hidden and not is_obsolete:
                archive.add(file, file.relative_to(home.parent))
    return path


def _done(home: Path, name: str) -> Path:
    return home / "parts" / f"{name}.done"


def main() -> None:
    """Run the check if there is a GPU."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print("usage: lra bench gpu-check minutes=25    (default: 8)")
        return
    arguments = " ".join(sys.argv[1:]) or "minutes=8"
    match = re.fullmatch(r"minutes=(\d+(?:\.\d+)?)", arguments)
    minutes = float(match[1]) if match else 0.0
    if not minutes:
        sys.exit(f"lra: {arguments}: minutes must be a number above 0: lra bench gpu-check minutes=25")
    if not torch.cuda.is_available():
        log("gpu-check: torch sees no GPU, nothing was run")
        return
    if not gpu_test_files():
        sys.exit("lra: bench gpu-check needs a checkout of the repository, whose tests it runs")

    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    env.setdefault("CUDA_VISIBLE_DEVICES", "0")
    # Tests compile the kernels; shapes are checked by the tests on the CPU.
    env.pop("TRITON_INTERPRET", None)
    env.setdefault("LRA_CHECK_SHAPES", "0")

    # SIGTERM of a scheduler stops the check like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The parts are interrupted by SIGINT. In the background of a script it is ignored, and they would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    home = Path("runs").absolute() / STUDY
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name()).lower()
    try:
        path = check(minutes, home, parts(home), env, name)
    except KeyboardInterrupt:
        sys.exit("lra: gpu-check was stopped; the same command resumes")
    except OSError as error:
        file = error.filename or home
        sys.exit(f"lra: {file} cannot be written: {error.strerror or error}; the same command resumes")
    print((home / f"{name}.md").read_text())
    size = path.stat().st_size / 2**20
    print(f"gpu-check: {size:.1f} MB in {path}; unpack it with tar xf {path.name} -C runs to resume elsewhere")


if __name__ == "__main__":
    main()
