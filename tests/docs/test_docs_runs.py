"""README.md and docs/: commands run to their end, with words that make them short."""

import runpy
import sys

import pytest
from docs_pages import COMMANDS, OWN, ROOT, Command, write_examples
from hydra._internal.hydra import Hydra

TINY = {  # a second each
    "lra.train": ("budget=smoke", "seeds=[0]", "trainer.threads=1"),
    "lra.studies.transfer": ("examples=4", "spectrum=1", "trainer.threads=1"),
    "data_prep": ("budget=smoke",),
    "data_prep.show": ("budget=smoke",),
}
BENCH = ("n=[64]", "batch=1", "heads=1", "head_dim=16", "repeats=1", "warmup=0", "device=cpu")
LONGER = {  # a minute each; tests/ops/test_triton_resources.py runs lra.ops.triton.resources
    "data_prep": ("budget=smoke",),
    "data_prep.bench": ("--examples", "50", "--repeats", "1", "--workers", "1"),
    "lra.bench": (*BENCH, "budget=quick", "budget_s=30"),
    "lra.studies.factorise": ("iterations=1",),
    "lra.sweep": ("seeds=[0]", "measure=0"),
    "lra.train": TINY["lra.train"],
}
ELSEWHERE = {  # downloads, files, GPUs, other hosts, packages that are not there; hours; data that other tests share
    *("preset=figure4", "preset=table2", "sweep=board", "optim.steps=6000", "force=true"),
    *("experiment=s4d_image_small", "experiment=s4d_text", "experiment=lru_text"),
    *("task=all", "task=text", "task=text_2k", "task=image", "task=retrieval", "task=genome", "verify=true"),
    *("trainer=gpu", "trainer=ddp", "trainer=ddp_multinode", "logger=wandb", "hydra/launcher=submitit_slurm"),
}
ONCE = {c.words: c for c in COMMANDS if c.page not in ("docs/train.md", *OWN) and c.words[0] == "python"}.values()


def run(command: Command, patch: pytest.MonkeyPatch, short: dict = TINY) -> None:
    """The command in this process with words that make it short, in the study that it would have made without them."""
    _, _, entry, *words = command.words
    words += short.get(entry, ())
    if entry == "lra.train" and not any(word.startswith(("study=", "experiment=")) for word in words):
        budget = next((word for word in command.words if word.startswith("budget=")), "budget=paper")
        words.append(f"study=paper-{budget.removeprefix('budget=')}")
    if any(word.startswith("steps=") for word in words):
        words.append("steps=2")
    patch.setattr(sys, "argv", [entry, *words])
    patch.setattr(Hydra, "get_mode", lambda *_, **__: None)  # hydra would compose once more to learn what -m says
    try:
        runpy.run_module(entry, run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, f"{command}: {stop.code}"


@pytest.mark.first
def test_the_first_pages_from_top_to_bottom(work, monkeypatch):
    """One command after the other, in one folder, to its end."""
    write_examples(work, "README.md")
    monkeypatch.syspath_prepend(str(work))
    pages = ("README.md", "docs/train.md", "docs/report.md")
    done = {c.words: c for page in pages for c in COMMANDS if c.page == page and c.words[0] == "python"}
    for command in (c for c in done.values() if "attn=glob(*)" not in c.words):
        run(command, monkeypatch)
    runs = work / "runs"
    labels = {path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/seed-0")}
    assert labels >= {"paper-paper/listops/cur_abs", "paper-quick/listops/nystrom", "mine/listops/cur_step-count=32"}
    assert (runs / "report" / "index.html").stat().st_size > 10_000 and (work / "mine" / "report.md").exists()
    assert len(list(runs.glob("paper-quick/listops/cur_abs/seed-0/maps/*.png"))) == 2
    assert len(done) > 11


@pytest.mark.slow
def test_transfer_from_top_to_bottom(work, monkeypatch):
    trained = Command("", 0, ("python", "-m", "lra.train", "task=listops", "attn=softmax"))
    page = [c for c in COMMANDS if c.page == "docs/transfer.md" and "lra.studies.transfer" in " ".join(c.words[:3])]
    for command in (trained, *(c for c in page if "-m" not in c.words[3:])):
        run(command, monkeypatch)
    assert (work / "runs" / "transfer" / "transfer.md").exists() and len(page) == 5


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in ONCE if c.words[2] in LONGER and not ELSEWHERE & {*c.words}], ids=str)
def test_what_takes_longer_runs_to_its_end(command, work, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # kernels are left out, not crawled through
    run(command, monkeypatch, LONGER)
