"""Runs of -m in joblib's workers: one that is killed, or whose worker is, is one failed run, and the others end."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from support.training import wait

from lra.config import CONF
from lra.config.workers import Workers, killed_by
from lra.io import lock
from lra.runs import record


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "compute, failures",
    [
        (lambda: "", {}),
        (lambda: "attn=a: refused", {3: "attn=a: refused"}),
        (kill, {3: "attn=a: ended by SIGKILL, perhaps because memory ran out"}),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), {3: "attn=a: ended by SIGTERM"}),
    ],
)
def test_a_run_ends_alone(compute, failures):
    with Workers() as workers:
        workers.run(3, "attn=a", compute)
        assert workers.failures() == failures
        workers.run(3, "attn=a", kill)  # has ended before and is not run again
        assert workers.failures() == failures
    assert not workers.folder.exists()


def test_of_a_broken_pool_the_run_whose_worker_died_first_fails_and_the_others_are_run_again():
    runs = []

    def start():
        for number in range(4):
            workers.run(number, f"attn={number}", lambda number=number: runs.append(number) or "")
        if not (workers.folder / "again").exists():
            for name in ("again", "4.title", "5.title"):
                (workers.folder / name).write_text("attn=x")
            (workers.folder / "5.orphaned").write_text("7")
            (workers.folder / "4.orphaned").write_text("8")
            (workers.folder / "3.orphaned").write_text("2")  # ended in time
            raise BrokenProcessPool
        workers.run(4, "attn=4", lambda: "")

    with Workers() as workers:
        workers.launch(start)
        assert workers.failures() == {5: f"attn=x: {killed_by(signal.SIGKILL)}"}
        with pytest.raises(BrokenProcessPool):
            workers.launch(lambda: (_ for _ in ()).throw(BrokenProcessPool))


def parent(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^PPid:\t(\d+)", status, re.M)[1])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("victim", ["run", "worker"])
def test_a_killed_process_of_train_is_one_failed_run_and_the_same_command_resumes_it(victim, data_root, tmp_path):
    words = ["task=listops", "budget=smoke", "attn=mean", "seeds=[0],[1],[2]", f"runs={tmp_path}", "optim.steps=120"]
    words += ["optim.eval_every=10", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "trainer.threads=1"]
    command = [sys.executable, "-m", "lra.train", "-m", *words]
    process = subprocess.Popen(command, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait(process, lambda: list(tmp_path.rglob("last.ckpt")))
    (path, *_) = tmp_path.rglob("last.ckpt")
    owner = lock.holder(path.parent / lock.NAME)
    os.kill(owner.pid if victim == "run" else parent(owner.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in err, err
    first, failure = err.splitlines()[-2:]
    seed = path.parent.name.removeprefix("seed-")
    assert first == "lra: 1 run failed, the others finished"
    assert f"seeds=[{seed}]" in failure and failure.endswith("ended by SIGKILL, perhaps because memory ran out")
    records = {found.parent.name for found in tmp_path.rglob(record.NAME)}
    assert records == {"seed-0", "seed-1", "seed-2"} - {path.parent.name}
    again = subprocess.run(command, cwd=CONF.parent, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and (path.parent / record.NAME).exists(), again.stderr
    assert f"seed {seed}: step " in again.stderr and f"seed {seed}: step 10/" not in again.stderr, again.stderr
