"""python -m lra.bench.gpu_check: the tests marked gpu and the GPU presets, within 8 minutes on a machine with a GPU.

The results are one file, rewritten after each part. The command runs in the Python that starts it and installs nothing.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from ..config import CONF
from ..console import log
from ..disk import atomic
from ..report import bench_tables
from ..runs import bench_record

TOTAL = 430  # seconds for everything
TESTS = 200  # seconds of them for the tests, at most; they come first, since most of it is the compilation of kernels
SHARE = {"figure4": 0.5, "table2": 1.0}  # of the time that is left when a preset begins
START = 20  # seconds that a benchmark takes beyond its budget: imports, rates, its last case
GRACE = 10  # seconds for an interrupted process to write its results
MARK = "pytest.mark.gpu"
PROCESSES = 8  # in parallel, for compilation and tests


def check(runs: Path = Path("runs")) -> Path:
    """Run the check and write runs/gpu-check/<hardware>.json and .md.

    Returns:
        The path of the .md file.

    Raises:
        OSError: a file cannot be written.
    """
    began = time.monotonic()
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    env.setdefault("CUDA_VISIBLE_DEVICES", "0")
    env.pop("TRITON_INTERPRET", None)
    folder = runs / "gpu-check"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "bench", ignore_errors=True)  # of an earlier check
    results = {"tests": {"summary": "not run"}, "benchmarks": [], "failed": []}
    for part in ("tests", *SHARE):
        log(f"gpu-check: {part}")
        try:
            if part == "tests":
                results["tests"] = tests(folder, env)
            else:
                left = (TOTAL - (time.monotonic() - began)) * SHARE[part]
                results["failed"] += benchmark(part, folder, env, left)
        except Exception as error:  # the other parts go on
            results["failed"].append(f"{part}: {error!r}")
        results["seconds"] = round(time.monotonic() - began, 1)
        path = write(folder, results)
    return path


def benchmark(preset: str, folder: Path, env: dict[str, str], seconds: float) -> list[str]:
    """Run a preset, which writes its record below ``folder`` after each length.

    Args:
        preset: of conf/preset.
        folder: of the check.
        env: environment of the process.
        seconds: until it is stopped.

    Returns:
        One line for each failure.
    """
    command = [sys.executable, "-m", "lra.bench", f"preset={preset}", "device=cuda", f"runs={folder}"]
    status = limited([*command, f"budget_s={max(seconds - START, 1):.0f}"], seconds + START, env=env)
    if status is None:
        return [f"{preset}: stopped after {seconds + START:.0f} s"]
    return [f"{preset}: exit status {status}"] if status else []


def gpu_test_files() -> list[Path]:
    """List the files of tests/ with a test marked gpu."""
    return [path for path in sorted((CONF.parent / "tests").rglob("test_*.py")) if MARK in path.read_text()]


def tests(folder: Path, env: dict[str, str]) -> dict:
    """Run the tests marked gpu.

    Args:
        folder: of the check.
        env: environment of the process.

    Returns:
        Their counts, the names of failed tests, the values that they measured, and a summary of one line.
    """
    report = folder / "tests.xml"
    report.unlink(missing_ok=True)
    files = map(str, gpu_test_files())
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report.resolve()}", *files]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(PROCESSES, os.cpu_count() or 1))]
    status = limited(command, TESTS, cwd=CONF.parent, env=env)
    stopped = f"stopped after {TESTS} s" if status is None else f"pytest ended with status {status}"
    if not report.exists():
        return {"summary": f"{stopped} and wrote no report", "failed": []}
    suite = xml.parse(report).getroot().find("testsuite")
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    measured = [entry.get("value") for entry in suite.iter("property") if entry.get("name") == "measured"]
    summary = ", ".join([*(f"{value} {key}" for key, value in counts.items()), *([stopped] if status != 0 else [])])
    return counts | {"summary": summary, "failed": failed, "measured": measured}


def limited(command: list[str], seconds: float, **options) -> int | None:
    """Run a command for at most ``seconds``, then interrupt it and kill all processes that it started.

    Returns:
        The exit status, None if it was interrupted.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write(folder: Path, results: dict) -> Path:
    """Write the results so far, with the tables of all benchmarks in the folder; returns the path of the .md file."""
    records, damaged = bench_record.scan(folder)
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name()).lower()
    complete = results | {"failed": [*results["failed"], *damaged], "benchmarks": [asdict(r) for r in records]}
    atomic.write(folder / f"{name}.json", json.dumps(complete, indent=1) + "\n")
    lines = [
        f"Tests: {results['tests']['summary']}.",
        *(f"Failed: {name}." for name in results["tests"].get("failed", [])),
    ]
    measured = "\n".join(f"* {line}" for line in results["tests"].get("measured", []))
    tables = bench_tables.markdown(bench_tables.tables(records)) if records else "No benchmark left a record."
    text = "\n\n".join(["# GPU check", *lines, *complete["failed"], measured, tables])
    atomic.write(folder / f"{name}.md", text)
    return folder / f"{name}.md"


def main() -> None:
    """Run the check if there is a GPU, and print its results."""
    if not torch.cuda.is_available():
        log("gpu-check: torch sees no GPU, nothing was run")
        return
    path = check()
    print(path.read_text())
    print(f"written to {path} and {path.with_suffix('.json')}")


if __name__ == "__main__":
    main()
