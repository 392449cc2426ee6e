"""README.md and docs/: every command is run or parsed, every example is run."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from docs_commands import ENTRIES, checked, enter, inside
from docs_pages import PAGES, ROOT, Command, blocks, commands

from lra.config.compose import compose
from lra.laws.__main__ import Lawful
from lra.laws.laws import LAWS

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
COMMANDS = [c for page, text in TEXTS.items() for c in commands(page, text)]
BLOCKS = [block for page, text in TEXTS.items() for block in blocks(page, text)]
EXAMPLES = {block.file: block for block in BLOCKS if block.file}  # files that a page writes down in full
SNIPPETS = [block for block in BLOCKS if block.language == "python" and not block.file]
HEAVY = ("transformers", "data_prep.tfds")  # take seconds to import, or are not installed
OWN = ("README.md", "docs/mechanism.md", "docs/task.md")  # pages whose commands use their own examples
ONCE = {(c.page in OWN, *c.words): c for c in COMMANDS}.values()
TINY = {  # what makes a command take a second
    "lra.train": ("budget=smoke", "seeds=[0]", "trainer.threads=1"),
    "lra.studies.transfer": ("examples=4", "spectrum=1", "trainer.threads=1"),
    "lra.studies.probes": ("examples=4", "derived=1", "rows=1", "threads=1"),
    "lra.studies.inverses": ("n=1", "steps=[0,2]", "counts=[4]", "length=16", "threads=1"),
    "lra.bench": (
        *("n=[64]", "batch=1", "heads=1", "head_dim=16"),
        *("repeats=1", "warmup=0", "budget=smoke", "device=cpu"),
    ),
    "lra.report": (),
    "lra.laws": (),
    "lra.maps": (),
    "lra.studies.transfer.show": (),
    "data_prep": ("budget=smoke",),
    "data_prep.show": ("budget=smoke",),
}
LONGER = {  # a minute, behind slow; tests/ops/test_triton_resources.py runs lra.ops.triton.resources
    "lra.bench": (*TINY["lra.bench"], "budget=quick", "budget_s=30"),
    "lra.studies.factorise": ("iterations=1",),
    "lra.sweep": ("seeds=[0]", "measure=0"),
    "data_prep": ("budget=smoke",),
    "data_prep.bench": ("--examples", "50", "--repeats", "1", "--workers", "1"),
    "lra.train": TINY["lra.train"],
}
ELSEWHERE = {  # downloads, files, GPUs, other hosts, packages that are not there; data that other tests share
    *("preset=figure4", "preset=table2", "force=true"),
    *("published=true", "runs=runs/published"),  # writes into the checkout; runs that are only there
    *("experiment=s4d_image_small", "experiment=s4d_text", "experiment=lru_text"),
    *("task=all", "task=text", "task=text_2k", "task=image", "task=retrieval", "task=genome", "verify=true"),
    *(
        "trainer=gpu",
        "trainer=ddp",
        "trainer=ddp_multinode",
        "logger=wandb",
        "hydra/launcher=submitit_slurm",
    ),
}


@pytest.fixture
def work(tmp_path, data_root, monkeypatch):
    """An empty working directory with the files that commands name."""
    for name in ("dog.fa.gz", "donkey.fa.gz", "aclImdb_v1.tar.gz"):
        (tmp_path / name).touch()
    (tmp_path / "lra_release").mkdir()
    for split in ("train", "eval", "test"):
        (tmp_path / "lra_release" / f"new_aan_pairs.{split}.tsv").touch()
    with inside(tmp_path):
        yield tmp_path


@pytest.fixture
def own(work, monkeypatch):
    """The examples of OWN as the pages place them: beside this repository's files, and in a package of one's own."""
    for name, block in EXAMPLES.items():
        (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "tree" / name).write_text(block.text)
    for package in ("lra.attention", "data_prep"):
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(work / "tree" / package.replace(".", "/"))])
    mine = EXAMPLES["lra/attention/aft.py"].text.replace("from .base", "from lra.attention.base")
    (work / "mine.py").write_text(mine)
    for group, name, old, new in (
        ("attn", "aft", "lra.attention.aft.AFT", "mine.AFT"),
        ("task", "letters", "data_prep.letters.Letters", "data_prep.letters.Letters"),
    ):
        text = EXAMPLES[f"conf/{group}/{name}.yaml"].text
        assert old in text
        (work / "myconf" / group).mkdir(parents=True, exist_ok=True)
        (work / "myconf" / group / f"{name}.yaml").write_text(text.replace(old, new))
    monkeypatch.syspath_prepend(str(work))
    from lra.bench import contestants

    known = contestants.mechanisms
    monkeypatch.setattr(contestants, "mechanisms", lambda: [*known(), "aft"])
    yield work
    for name in ("mine", "lra.attention.aft", "data_prep.letters"):
        forget(name)


def forget(name):
    sys.modules.pop(name, None)
    package, _, module = name.rpartition(".")
    if package:
        vars(sys.modules[package]).pop(module, None)


def in_own_tree(command: Command, folder: Path) -> Command:
    """The command as it would be with the examples' files in place: hydra is told of their folder."""
    _, m, name, *words = (*command.words, "")[: max(3, len(command.words))]
    if command.words[0] != "python" or name not in ENTRIES or "--config-dir" in words:
        return command
    return command._replace(words=("python", m, name, "--config-dir", str(folder / "tree" / "conf"), *words))


def run_to_its_end(command: Command, patch: pytest.MonkeyPatch, short: dict = TINY) -> None:
    """The command itself with words that make it short, in the study that it would have made without them."""
    _, _, name, *words = command.words
    words += short[name]
    if name == "lra.train" and not any(word.startswith(("study=", "experiment=")) for word in words):
        budget = next((word.split("=")[1] for word in command.words if word.startswith("budget=")), "paper")
        words.append(f"study=paper-{budget}")
    if any(word.startswith("steps=") for word in words):
        words.append("steps=2")
    entry = ENTRIES[name]
    with patch.context() as inside_call:
        enter(getattr(importlib.import_module(entry.module), entry.function), words, inside_call)


@pytest.mark.parametrize("command", [c for c in ONCE if c.page not in OWN], ids=str)
def test_every_command_is_right(command, work, monkeypatch, pytestconfig):
    checked(command, monkeypatch, pytestconfig)


@pytest.mark.parametrize("command", [c for c in ONCE if c.page in OWN], ids=str)
def test_every_command_on_an_example_is_right(command, own, monkeypatch, pytestconfig):
    checked(in_own_tree(command, own), monkeypatch, pytestconfig)


WRONG = {
    "python -m lra.train task=listops attn=cur_best": "attn=cur_best: no such choice",
    "python -m lra.train task=listops attn=cur_abs optim.lrr=1": "optim.lrr: no such key",
    "python -m lra.train task=listops attn=cur_abs +attn.lines=3": "attn.lines: no such key",
    "python -m lra.train task=listops attn=cur_abs optim.steps=many": "optim.steps must be",
    "python -m lra.train -m task=listops attn=softmax,cur_best,cur_abs": "attn=cur_best: no such choice",
    "python -m lra.train experiment=psf_nothing": "experiment=psf_nothing: no such choice",
    "python -m lra.trian task=listops attn=cur_abs": "belongs to no class",
    "python -m lra.sweep sweep=learning_rate": "sweep=learning_rate: no such choice",
    "python -m lra.sweep sweep=count tasks=[listop]": "task=listop: no such choice",
    "python -m lra.sweep sweep=count hydra/launcher=jolib": "hydra/launcher=jolib: no such choice",
    "python -m lra.report stduy=mine": "stduy: no such key",
    "python -m lra.maps runs=x": "runs: no such key",
    "python -m lra.studies.transfer run=x attn=cur_step attn.cuont=3": "attn.cuont: no such key",
    "python -m lra.bench mechanisms=[cur_best]": "mechanisms: cur_best is not one of",
    """python -m lra.bench 'mechanisms=["cur_abs-cuont=3"]'""": "attn.cuont: no such key",
    "python -m lra.bench preset=figure5": "preset=figure5: no such choice",
    "python -m lra.studies.dropin candidates=[cur_best]": "candidates: cur_best is not one of",
    "python -m lra.studies.factorise kinds=[photo]": "kinds: photo is not one of",
    "python -m lra.ops.triton.resources arch=70": "arch=70: no such choice",
    "python -m lra.studies.pretrained model=x examples=y pools=cls": "pools: no such key",
    "python -m lra.studies.pretrained.dinov2_onnx model.onnx": "usage: ",
    "python -m data_prep task=list": "task=list: no such choice",
    "python -m data_prep task=listops source.seeds=1": "source.seeds: no such key",
    "python -m data_prep.show task=listops counts=3": "counts: no such key",
    "python -m data_prep.bench --reps 3": "--reps 3: 2",
    "python -m lra.laws attn=cur_best": "attn=cur_best: no such choice",
    "python -m pytest tests/attention/test_laws.py --atn mine.AFT": "unrecognized arguments: --atn",
    "python -m pytest tests/test_law.py": "tests/test_law.py",
    "python train.py": "python -m",
    "make tset": "No rule to make target",
    "make sweep LAUNCHR=joblib": "no such variable",
    "pip install '.[wnadb]'": "extras are",
    "torchrun --nnode-s=2 --rdzv-endpoint=a:1 -m lra.train task=listops attn=sdpa": "refused by torchrun",
    "torchrun --nnodes=2 --nproc-per-node=5 --rdzv-endpoint=a:1 -m lra.train task=listops attn=sdpa": "10 processes",
    "srun --node=2 --ntasks-per-node=4 python -m lra.train task=listops attn=cur_abs": "--node",
    "wandb snyc runs": "no such command",
    "wandb sync --fast runs": "--fast",
    "source venv/bin/activate": "venv/bin/activate",
    "export MALLOC_MMAP_MAX_=1": "MALLOC_MMAP_MAX_=1",
    "apt-get install everything": "belongs to no class",
    "curl https://example.org": "belongs to no class",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_is_found(line, work, monkeypatch, pytestconfig):
    (command,) = commands("page", f"```sh\n{line}  # a comment\n```\n")
    with pytest.raises(AssertionError, match=re.escape(WRONG[line])):
        checked(command, monkeypatch, pytestconfig)


def test_commands_are_found_wherever_they_stand():
    text = "Say `make test`\nor `pip install\n'.[hf]'`, not `make` or `python`.\n\n```sh\nsource a # b\n\nmake x\n```\n"
    found = [(c.line, *c.words) for c in commands("page", text)]
    assert found == [(6, "source", "a"), (8, "make", "x"), (1, "make", "test"), (2, "pip", "install", ".[hf]")]
    for wrong in ("```\nmake\n```\n", "```bash\nmake\n```\n", "```sh\nmake\n", "```sh\nmake \\\n x\n```\n"):
        with pytest.raises(AssertionError):
            list(commands("page", wrong))


@pytest.mark.first
def test_the_first_pages_from_top_to_bottom(work, monkeypatch):
    """One command after the other, in one folder, to its end."""
    pages = ("docs/train.md", "docs/report.md")
    done = {c.words: c for page in pages for c in COMMANDS if c.page == page and c.words[0] == "python"}
    for command in (c for c in done.values() if not {"attn=glob(*)", "runs=runs/published"} & set(c.words)):
        run_to_its_end(command, monkeypatch)
    runs = work / "runs"
    labels = {path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/seed-0")}
    assert labels >= {"paper-paper/listops/cur_abs", "paper-quick/listops/nystrom", "mine/listops/cur_step-count=32"}
    assert (runs / "report" / "index.html").stat().st_size > 10_000 and (work / "mine" / "report.md").exists()
    assert len(list(runs.glob("paper-quick/listops/cur_abs/seed-0/maps/*.png"))) == 2
    assert len(done) > 9


def test_transfer_from_top_to_bottom(work, monkeypatch):
    trained = Command("", 0, ("python", "-m", "lra.train", "task=listops", "attn=softmax"))
    done = [
        c
        for c in COMMANDS
        if c.page == "docs/transfer.md" and c.words[2:3] and c.words[2].startswith("lra.studies.transfer")
    ]
    for command in (trained, *(c for c in done if "-m" not in c.words[3:])):
        run_to_its_end(command, monkeypatch)
    assert (work / "runs" / "transfer" / "transfer.md").exists() and len(done) == 5


@pytest.mark.first
def test_the_examples_train(own, monkeypatch):
    ran = [
        c
        for c in COMMANDS
        if c.page in OWN and c.words[0] == "python" and c.words[2] in TINY and "-m" not in c.words[3:]
    ]
    for command in ran:
        run_to_its_end(in_own_tree(command, own), monkeypatch)
    assert {path.parent.name for path in own.glob("runs/*/*/*/seed-0")} == {
        "aft-temperature=0.5",
        "aft",
        "AFT",
        "AFT-temperature=0.5",
        "softmax",
    }
    assert (own / "letters.png").exists() and len(list(own.glob("runs/bench/bench/*/bench.json"))) == 1


def test_the_example_s_rows_are_what_its_docstring_says(own):
    source = importlib.import_module("data_prep.letters").Letters(pairs=3, train=50, val=5, test=5)
    splits = source.open(own / "data")
    tokens, mask = splits["train"].gather(torch.arange(50), 8)
    assert mask.all()
    for row, label in zip(tokens[:, 0].tolist(), splits["train"].labels.tolist(), strict=True):
        words = [source.alphabet[id] for id in row]
        answers = dict(zip(words[:6:2], words[1:6:2], strict=True))
        assert len(answers) == 3 and words[6] == "?" and answers[words[7]] == str(label)


def broken_laws(name):
    """Names of the laws that a class breaks."""
    made = compose(Lawful, ["attn=custom", f"attn._target_={name}"])
    return [law.__name__ for law in LAWS if not law(made)]


def test_the_example_is_lawful_and_without_its_mask_it_is_not(own):
    assert broken_laws("mine.AFT") == []
    file = own / "mine.py"
    file.with_name("blind.py").write_text(file.read_text().replace("if mask is not None", "if False"))
    assert "padding_changes_no_real_row" in broken_laws("blind.AFT")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        c
        for c in ONCE
        if c.words[:2] == ("python", "-m") and c.words[2] in LONGER and c.page not in ("README.md", *OWN)
        if not ELSEWHERE & set(c.words)
    ],
    ids=str,
)
def test_what_takes_longer_runs_to_its_end(command, work, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # kernels are left out, not crawled through
    run_to_its_end(command, monkeypatch, LONGER)


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: f"{block.page}:{block.line}")
def test_snippets_run(block, work):
    tree = ast.parse(block.text)
    modules = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if any(node.module.startswith(HEAVY) for node in modules):
        for node in modules:
            if node.module.startswith(("lra", "data_prep")):
                source = ast.parse(Path(importlib.util.find_spec(node.module).origin).read_text())
                names = {n.name for n in source.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
                assert {alias.name for alias in node.names} <= names
    else:
        (work / "runs").mkdir()
        exec(compile(tree, f"{block.page}:{block.line}", "exec"), {})


@pytest.mark.peers
def test_the_snippet_of_transformers_runs(monkeypatch):
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed: make test-peers")

    def tiny(name, attn_implementation):
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        made = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=96, patch_size=4))
        made.set_attn_implementation(attn_implementation)
        return made.eval()

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", tiny)
    (block,) = (b for b in SNIPPETS if "transformers" in b.text)
    names = {}
    exec(block.text, names)
    picture, made = torch.randn(1, 3, 96, 96), names["model"]
    kept = made(picture).last_hidden_state
    made.set_attn_implementation("sdpa")
    assert kept.isfinite().all() and not torch.allclose(kept, made(picture).last_hidden_state)
