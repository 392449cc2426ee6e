"""Commands in README.md and docs/ are valid and run, and so do snippets and examples/."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from docs_commands import checked
from docs_pages import BLOCKS, COMMANDS, OWN, ROOT, Command, commands, module_form, write_examples

from lra.bench import contestants
from lra.board import chapter as board
from lra.runs import published

UNIQUE_COMMANDS = {(c.page in OWN, *c.words): c for c in COMMANDS}.values()
PYTHON = [block for block in BLOCKS if block.language == "python" and not block.file]
SNIPPETS = [block for block in PYTHON if "transformers" not in block.text]
# Overrides with which a command takes about a second.
TRAIN = "budget=smoke seeds=[0] trainer.threads=1 data.eval_batch=64"
BENCH = "n=[64] batch=1 heads=1 head_dim=16 repeats=1 warmup=0 device=cpu"
TINY = dict.fromkeys(("data_prep", "data_prep.baselines", "data_prep.show"), "budget=smoke")
TINY |= {"lra.train": TRAIN, "lra.bench": BENCH, "lra.checks": ""}
EXAMPLE_PAGES = ("docs/mechanism.md", "docs/task.md")
COMMANDS_ON_EXAMPLES = [c for c in COMMANDS if c.page in EXAMPLE_PAGES and c.words[0] == "python"]
RUNNABLE = [c for c in COMMANDS_ON_EXAMPLES if c.words[2] in TINY and "-m" not in c.words[3:]]


@pytest.fixture
def own(work, monkeypatch):
    """Write the examples of OWN into the working directory and make them importable as parts of the packages."""
    write_examples(work)
    for package in ("lra.attention", "data_prep"):
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(work / package.replace(".", "/"))])
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    # As with --config-dir.
    monkeypatch.setattr(contestants, "config_dirs", lambda: [work / "conf"])


def on_example(command):
    """Add the configurations of the examples to a command, as in a repository that has them."""
    words = command.words
    if words[0] == "python" and words[2] != "pytest" and "--config-dir" not in words:
        words = (*words[:3], "--config-dir", "conf", *words[3:])
    return command._replace(words=words)


@pytest.mark.parametrize("command", [c for c in UNIQUE_COMMANDS if c.page not in OWN], ids=str)
def test_documented_command_is_valid(command, work, pytestconfig):
    checked(command, pytestconfig)


@pytest.mark.parametrize("command", [c for c in UNIQUE_COMMANDS if c.page in OWN], ids=str)
def test_documented_command_on_example_is_valid(command, own, pytestconfig):
    checked(on_example(command), pytestconfig)


# Each kind of mistake in each class of command; all entry points parse options with the same code.
INVALID = {
    "python -m lra.train task=listops attn=cur_abs optim.lrr=1": "optim.lrr: no such key",
    "python -m lra.train -m task=listops attn=softmax,cur_best,cur_abs": "attn=cur_best: no such choice",
    "python -m lra.trian task=listops attn=cur_abs": "belongs to no class",
    "lra trian task=listops attn=cur_abs": "trian: no such command; did you mean train?",
    "python -m lra.sweep sweep=count tasks=[listop]": "task=listop: no such choice",
    """python -m lra.bench 'mechanisms=["cur_abs-cuont=3"]'""": "attn.cuont: no such key",
    "python -m lra.ops.triton.resources arch=70": "arch=70: no such choice",
    "python -m lra.studies.pretrained.dinov2_onnx model.onnx": "is not",
    "python -m pytest tests/attention/test_checks.py --atn mine.EfficientAttention": "unrecognized arguments: --atn",
    "python train.py": "belongs to no class",
    "make tset": "No rule to make target",
    "make sweep LAUNCHR=joblib": "no such variable",
}


@pytest.mark.parametrize("line", INVALID)
def test_invalid_command_is_detected(line, work, pytestconfig):
    (command,) = commands("page", f"```sh\n{line}  # a comment\n```\n")
    with pytest.raises(AssertionError, match=re.escape(INVALID[line])):
        checked(module_form(command), pytestconfig)


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: f"{block.page}:{block.line}")
def test_python_snippet_runs(block, work):
    (work / "runs").mkdir()
    exec(compile(block.text, f"{block.page}:{block.line}", "exec"), {})


@pytest.mark.peers
def test_transformers_snippet_runs(monkeypatch):
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed: make test-peers")

    def tiny(name, attn_implementation):
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        net = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=96, patch_size=4))
        net.set_attn_implementation(attn_implementation)
        return net.eval()

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", tiny)
    (block,) = (b for b in PYTHON if "transformers" in b.text)
    names = {}
    exec(block.text, names)
    picture, net = torch.randn(1, 3, 96, 96), names["model"]
    cur_output = net(picture).last_hidden_state
    net.set_attn_implementation("sdpa")
    assert cur_output.isfinite().all() and not torch.allclose(cur_output, net(picture).last_hidden_state)


def test_task_example_matches_its_docstring(own):
    source = importlib.import_module("data_prep.letters").Letters(pairs=3, train=50, val=5, test=5)
    splits = source.open(Path("data"))
    tokens, mask = splits["train"].gather(torch.arange(50), 8)
    assert mask.all()
    for ids, label in zip(tokens[:, 0].tolist(), splits["train"].labels.tolist(), strict=True):
        words = [source.alphabet[id] for id in ids]
        answers = dict(zip(words[:6:2], words[1:6:2], strict=True))
        assert len(answers) == 3 and words[6] == "?" and answers[words[7]] == str(label)


def run(command: Command, patch: pytest.MonkeyPatch) -> None:
    """Run a command in this process with overrides that make it fast, in the study of the original command."""
    _, _, entry, *words = command.words
    words += TINY.get(entry, "").split()
    if entry == "lra.train" and not any(word.startswith(("study=", "experiment=")) for word in words):
        budget = next((word for word in command.words if word.startswith("budget=")), "budget=paper")
        words.append(f"study=paper-{budget.removeprefix('budget=')}")
    patch.setattr(sys, "argv", [entry, *words])
    try:
        runpy.run_module(entry, run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, f"{command}: {stop.code}"


@pytest.mark.first
def test_first_pages_run_in_order(work, monkeypatch):
    """All commands run in one working directory and build on each other. Only plain lra report draws figures."""
    write_examples(work, "README.md")
    # Two mechanisms and two tasks of the published board, since the page draws two charts for each pair.
    for study in board.published():
        runs = published.read(study).values()
        runs = [run for run in runs if re.fullmatch(r"(sdpa|mean)(-optim\.lr=.*)?", run.record.label)]
        small_runs = [run for run in runs if run.record.task in ("chain", "recall")]
        published.save(work / "published" / study.name, small_runs)
    monkeypatch.setattr(board, "HOME", work / "published")
    monkeypatch.syspath_prepend(str(work))
    pages = ("README.md", "docs/train.md", "docs/report.md")
    done = {c.words: c for page in pages for c in COMMANDS if c.page == page and c.words[0] == "python"}
    # The published runs need the data of the papers' budget.
    left_out = ("attn=glob(*)", "logger=wandb", "trainer=gpu", "runs=runs/published")
    for command in (c for c in done.values() if not any(word.startswith(left_out) for word in c.words)):
        with monkeypatch.context() as patch:
            if command.words[3:]:
                patch.setattr("lra.results.figures.save", lambda *_: {})
                patch.setattr("lra.report.export._draw_studies", lambda *_: {})
            run(command, patch)
    runs = work / "runs"
    labels = {path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/seed-0")}
    assert labels >= {"paper-paper/listops/cur_abs", "paper-quick/listops/nystrom", "mine/listops/cur_step-count=32"}
    assert (runs / "report" / "index.html").stat().st_size > 10_000 and (work / "mine" / "report.md").exists()
    assert len(list(runs.glob("paper-quick/listops/cur_abs/seed-0/maps/*.png"))) == 2 and len(done) > 11


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNNABLE, ids=str)
def test_command_on_example_completes(command, own, monkeypatch):
    run(on_example(command), monkeypatch)


@pytest.mark.slow
def test_tests_pass_with_an_added_mechanism(tmp_path):
    subprocess.run(f"git archive HEAD | tar -x -C '{tmp_path}'", shell=True, cwd=ROOT, check=True)
    write_examples(tmp_path, "docs/mechanism.md")
    options = ["-q", "-p", "no:xdist", "-m", "not slow and not gpu and not peers", "-k", "efficient_attention"]
    # Tests that run for every mechanism.
    tests = "attention/test_checks.py config/test_config.py maps model/test_model.py studies/test_reach.py"
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "LRA_DATA": str(tmp_path / "data")}
    process = subprocess.run(command, cwd=tmp_path / "tests", env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-5000:]


def example(name, *arguments):
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*arguments)


@pytest.fixture
def pictures(tmp_path, data_root, monkeypatch):
    """An empty working directory with the shared data of the session; open figures are closed on teardown."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


def test_examples_of_cur_and_s4d_compute_what_they_claim(pictures):
    step, magnitude = example("cur_from_scratch", "128").values()
    assert step[0] > 10 * step[-1] and magnitude[0] > 10 * magnitude[-1]
    assert (pictures / "cur_from_scratch.png").exists()
    differences = example("s4d_kernel", "40")
    assert set(differences) == {"S4D-Lin", "S4D-Inv"} and max(differences.values()) < 1e-12
    assert (pictures / "s4d_kernel.png").exists()


def test_examples_of_training_print_scores_and_tables(pictures, capsys):
    lines = [line.split("|")[1].strip(" `") for line in example("arena_cell", "cur_step", "smoke", "1").splitlines()]
    assert lines == ["mechanism", "---", "cur_step", "mean"] and (pictures / "arena_cell.png").exists()
    assert 0 <= example("add_mechanism", "3", "efficient")["efficient"] <= 100
    assert "efficient: test" in capsys.readouterr().out and (pictures / "add_mechanism.png").exists()


@pytest.mark.slow
def test_attention_beats_control_in_example(pictures):
    scores = example("add_mechanism", "100", "efficient", "sdpa", "mean")
    assert min(scores["efficient"], scores["sdpa"]) > 50 + scores["mean"]
