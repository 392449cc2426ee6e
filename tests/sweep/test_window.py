"""A sweep and a lent GPU with a limit of time: what is started, what a cut leaves, going on elsewhere."""

import os
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_sweep import finish, four, sweep  # noqa: F401 a fixture
from test_train import result, smoke, train_config

from lra.sweep import gpu_window, job, plan, window
from lra.sweep.gpu_window import STUDY, Part
from lra.sweep.window import Window
from lra.train.callbacks import Checkpoints


def run(name, seconds, steps=100, eval_every=10):
    return plan.Run(
        overrides=(), task="t", label=name, seed=0, folder=Path("none", name), steps=steps, eval_every=eval_every,
        disk=0, seconds=seconds,
    )  # fmt: skip


def test_what_reaches_its_end_comes_first_and_what_reaches_no_checkpoint_is_left(monkeypatch):
    monkeypatch.setattr(window, "START", 0.0)
    long, short, unknown, endless = run("long", 900), run("short", 100), run("unknown", None), run("endless", 90_000)
    limited = Window(10)  # 585 seconds before the end
    assert limited.worth([long, short, unknown, endless]) == [short, unknown, long]
    assert limited.end - limited.latest(long) == pytest.approx(90) and limited.latest(unknown) == limited.end
    monkeypatch.setattr(window, "steps", lambda run: 50)
    assert limited.worth([long, short]) == [long, short]
    forever = Window(None)
    assert forever.worth([endless]) == [endless] and forever.latest(endless) is None


def test_the_sweep_stops_at_the_end_of_its_window_and_says_what_is_left(tmp_path, monkeypatch, capfd):
    begun = []

    def launch(runs, *more):
        begun.extend(runs)
        finish(runs[0])
        more[-1]._stop()  # what its timer calls
        time.sleep(60)

    stop, said = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}", "minutes=30")
    assert stop is None and len(begun) == 4
    assert "1 of 4 done" in said and "3 runs left, the same command goes on" in said
    stop, said = sweep(monkeypatch, capfd, lambda runs, *_: [finish(run) for run in runs] and None, f"runs={tmp_path}")
    assert stop is None and "4 of 4 done" in said and "left, the same" not in said


def test_minutes_are_not_for_a_cluster(tmp_path, monkeypatch, capfd):
    from lra.sweep import __main__ as leader

    monkeypatch.setattr(leader, "workers", lambda: (None, None))
    stop, _ = sweep(monkeypatch, capfd, None, f"runs={tmp_path}", "minutes=3")
    assert stop.startswith("lra: minutes is for runs on this machine")


def test_a_run_whose_time_has_passed_is_not_started(tmp_path, monkeypatch):
    hydra = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)))
    monkeypatch.setattr(job.HydraConfig, "get", lambda: hydra)
    monkeypatch.setattr(job.subprocess, "Popen", None)
    job.job(None, cwd=".", threads=1, gpus=[], sweep=0, latest={str(tmp_path): time.time() - 1})
    assert not list(tmp_path.iterdir())


def python(code):
    return [sys.executable, "-c", code]


def test_a_part_that_is_cut_leaves_its_results_and_is_run_again(tmp_path, monkeypatch, capfd):
    """The training apart, which is a sweep."""
    swept, here = [], tmp_path / STUDY
    limited = gpu_window.limited
    monkeypatch.setattr(
        gpu_window, "limited", lambda c, s, **o: swept.append(c) if "lra.sweep" in c else limited(c, s, **o)
    )
    write = "import time, pathlib; print('begun', flush=True); pathlib.Path({!r}).write_text({!r}); time.sleep({})"
    quick = Part("quick", python(write.format(str(here / "parts" / "a.json"), "{seconds}", 0)), 0.5)
    slow = lambda seconds: Part("slow", python(write.format(str(here / "parts" / "b.json"), "half", seconds)), 0.2)
    gpu_window.window(0.5, tmp_path, [quick, slow(100)], ("sweep=window",), dict(os.environ))
    said = capfd.readouterr().out
    assert "gpu-window: quick, exit status 0" in said and "gpu-window: slow, stopped after 6 s" in said
    assert f"study={STUDY}" in swept[0] and f"runs={tmp_path}" in swept[0]
    with tarfile.open(tmp_path / f"{STUDY}.tar") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    there = tmp_path / "elsewhere" / STUDY / "parts"
    assert sorted(path.name for path in there.iterdir()) == ["a.json", "b.json", "quick.done", "quick.log", "slow.log"]
    assert (there / "b.json").read_text() == "half" and (there / "slow.log").read_text().startswith("begun\n")
    assert (there / "a.json").read_text() == "1"
    gpu_window.window(0.5, tmp_path / "elsewhere", [quick, slow(0)], (), dict(os.environ))
    assert capfd.readouterr().out == "gpu-window: slow, exit status 0\n"


def test_a_run_that_was_cut_is_carried_over_and_finished_elsewhere(data_root, tmp_path, monkeypatch):
    words = ["optim.steps=6", "optim.eval_every=3", f"study={STUDY}"]
    train_config(smoke(tmp_path / "whole", *words))
    saved = Checkpoints.on_validation_end

    def cut(self, trainer, module):
        saved(self, trainer, module)
        raise RuntimeError("the machine was taken back")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="taken back"):
        patch.setattr(Checkpoints, "on_validation_end", cut)
        train_config(smoke(tmp_path / "lent", *words))
    path = gpu_window.pack(tmp_path / "lent" / STUDY)
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "home", filter="data")
    train_config(smoke(tmp_path / "home", *words))
    whole, home = (tmp_path / name / STUDY / "listops" / "cur_random" / "seed-0" for name in ("whole", "home"))
    assert result(home) == result(whole)
    a, b = (torch.load(folder / "best.ckpt", weights_only=True) for folder in (whole, home))
    assert all(torch.equal(a[key], b[key]) for key in a | b)
    with tarfile.open(gpu_window.pack(tmp_path / "home" / STUDY)) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert "record.json" in names and not {"last.ckpt", "best.ckpt"} & names


def test_without_a_gpu_nothing_is_run(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_window", "25"])
    gpu_window.main()
    assert capsys.readouterr().out == "gpu-window: torch sees no GPU here, nothing was run\n"


@pytest.mark.parametrize("words", [[], ["25m"], ["1", "2"]])
def test_minutes_are_a_number(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_window", *words])
    with pytest.raises(SystemExit, match=r"^lra: python -m lra.sweep.gpu_window MINUTES, a number such as 25$"):
        gpu_window.main()


def test_a_file_that_shrinks_or_vanishes_while_it_is_packed_ends_nothing(tmp_path, monkeypatch):
    home = tmp_path / STUDY
    home.mkdir()
    for name in ("a", "b", "c"):
        (home / name).write_text("long" * 100)
    there = tarfile.TarFile.gettarinfo

    def shrinks(self, *words, fileobj, **more):
        info = there(self, *words, fileobj=fileobj, **more)
        (home / "a").write_text("short")
        (home / "b").unlink(missing_ok=True)
        return info

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", shrinks)
    with tarfile.open(gpu_window.pack(home)) as archive:
        found = {Path(name).name: archive.extractfile(name).read() for name in archive.getnames()}
    assert set(found) == {"a", "c"} and found["c"] == b"long" * 100
