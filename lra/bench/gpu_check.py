"""python -m lra.bench.gpu_check: the tests marked gpu and the GPU presets on a machine that has one, within 8 minutes;
one file of results."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from dataclasses import asdict
from pathlib import Path

import torch

from .. import record
from ..config import CONF
from ..report import efficiency
from . import record as bench_record

TOTAL = 450  # seconds for everything
TESTS = 200  # of them at most for the tests
SHARE = {"figure4": 0.5, "table2": 0.55, "table2_graphs": 1.0}  # of what is left when it begins
START = 20  # seconds that a benchmark takes around what its budget counts: imports, rates, its last case


def check(runs: Path = Path("runs")) -> Path:
    """Writes runs/gpu-check/<hardware>.json and .md, and returns the latter. Raises OSError where it cannot."""
    began = time.monotonic()
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    env.setdefault("CUDA_VISIBLE_DEVICES", "0")
    folder = runs / "gpu-check"
    folder.mkdir(parents=True, exist_ok=True)
    found = {"tests": tests(folder, env), "benchmarks": [], "failed": []}
    for preset, share in SHARE.items():
        left = (TOTAL - (time.monotonic() - began)) * share
        command = [sys.executable, "-m", "lra.bench", f"preset={preset}", "device=cuda", f"runs={folder}"]
        try:
            done = subprocess.run([*command, f"budget_s={max(left - START, 1):.0f}"], env=env, timeout=left + START)
            if done.returncode:
                found["failed"].append(f"{preset}: exit status {done.returncode}")
        except subprocess.TimeoutExpired:  # what it had measured is written already
            found["failed"].append(f"{preset}: stopped after {left + START:.0f} s")
    records, damaged = bench_record.scan(folder)
    records = [r for r in records if r.git == record.git_commit()]
    found["failed"] += damaged
    found["benchmarks"] = [asdict(r) for r in records]
    found["seconds"] = round(time.monotonic() - began, 1)
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name()).lower()
    record.write(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")
    summary = [f"Tests: {found['tests']['summary']}.", *found["failed"]]
    text = "\n\n".join(["# GPU check", *summary, efficiency.markdown(efficiency.tables(records))])
    record.write(folder / f"{name}.md", text)
    return folder / f"{name}.md"


def tests(folder: Path, env: dict[str, str]) -> dict:
    """Counts of the tests marked gpu, each that failed by name, and one line that says so."""
    report = folder / "tests.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report.resolve()}"]
    try:
        subprocess.run(command, cwd=CONF.parent, env=env, timeout=TESTS)
    except subprocess.TimeoutExpired:
        return {"summary": f"stopped after {TESTS} s", "failed": []}
    if not report.exists():
        return {"summary": "pytest did not run", "failed": []}
    suite = xml.parse(report).getroot().find("testsuite")
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    summary = ", ".join(f"{value} {key}" for key, value in counts.items())
    return counts | {"summary": summary, "failed": failed}


def main() -> None:
    if not torch.cuda.is_available():
        print("gpu-check: torch sees no GPU here, nothing was run")
        return
    path = check()
    print(path.read_text())
    print(f"written to {path} and {path.with_suffix('.json')}")


if __name__ == "__main__":
    main()
