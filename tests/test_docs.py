"""README.md and docs/: every command is run or parsed, every example runs, every link, path and word is there."""

import ast
import importlib.util
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
import test_laws
import torch
import yaml
from docs_commands import (
    ENTRIES,
    PAGES,
    ROOT,
    Command,
    all_commands,
    blocks,
    checked,
    commands,
    enter,
    inside,
    spans,
)

from lra.config import _EXTRAS, CONF, compose, flatten

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
COMMANDS = all_commands()
BLOCKS = [block for page, text in TEXTS.items() for block in blocks(page, text)]
EXAMPLES = {block.file: block for block in BLOCKS if block.file}  # files that a page writes down in full
SNIPPETS = [block for block in BLOCKS if block.language == "python" and not block.file]
HEAVY = ("transformers", "data_prep.tfds")  # take seconds to import, or are not installed
OWN = ("docs/mechanism.md", "docs/task.md")  # pages whose commands use their own examples
ONCE = {(c.page in OWN, *c.words): c for c in COMMANDS}.values()
TINY = {  # what makes a command take a second
    "lra.train": ("budget=smoke", "seeds=[0]", "trainer.threads=1"),
    "lra.transfer": ("examples=4", "spectrum=1", "trainer.threads=1"),
    "lra.bench": (
        *("n=[64]", "batch=1", "heads=1", "head_dim=16"),
        *("repeats=1", "warmup=0", "budget=smoke", "device=cpu"),
    ),
    "lra.report": (),
    "lra.show": (),
    "lra.transfer.show": (),
    "data_prep": ("budget=smoke",),
    "data_prep.show": ("budget=smoke",),
}
LONGER = {  # a minute, behind slow; test_kernels.py runs lra.kernels.resources
    "lra.bench": (*TINY["lra.bench"], "budget=quick", "budget_s=30"),
    "lra.factorise": ("iterations=1",),
    "lra.sweep": ("seeds=[0]", "measure=0"),
    "data_prep": ("budget=smoke",),
    "data_prep.bench": ("--examples", "50", "--repeats", "1", "--workers", "1"),
    "lra.train": TINY["lra.train"],
}
ELSEWHERE = {  # downloads, files, GPUs, other hosts, packages that are not there; data that other tests share
    *("preset=figure4", "preset=table2", "force=true"),
    *("task=all", "task=text", "task=text_2k", "task=image", "task=retrieval", "task=genome", "verify=true"),
    *("trainer=gpu", "trainer=ddp", "trainer=ddp_multinode", "logger=wandb", "hydra/launcher=submitit_slurm"),
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
        ("task", "recall", "data_prep.recall.Recall", "data_prep.recall.Recall"),
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
    for name in ("mine", "lra.attention.aft", "data_prep.recall"):
        forget(name)


def forget(name):
    sys.modules.pop(name, None)
    package, _, module = name.rpartition(".")
    if package:
        vars(sys.modules[package]).pop(module, None)


def in_own_tree(command: Command, folder: Path) -> Command:
    """The command as it would be with the examples' files in place: hydra is told of their folder."""
    _, m, name, *words = command.words
    if name not in ENTRIES or "--config-dir" in words:
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


WRONG = [
    "python -m lra.train task=listops attn=cur_best",
    "python -m lra.train task=listops attn=cur_abs optim.lrr=1",
    "python -m lra.train task=listops attn=cur_abs +attn.lines=3",
    "python -m lra.train task=listops attn=cur_abs optim.steps=many",
    "python -m lra.train -m task=listops attn=softmax,cur_best,cur_abs",
    "python -m lra.train experiment=psf_nothing",
    "python -m lra.trian task=listops attn=cur_abs",
    "python -m lra.sweep sweep=learning_rate",
    "python -m lra.sweep sweep=count tasks=[listop]",
    "python -m lra.sweep sweep=count hydra/launcher=jolib",
    "python -m lra.report stduy=mine",
    "python -m lra.show runs=x",
    "python -m lra.transfer run=x attn=cur_step attn.cuont=3",
    "python -m lra.bench mechanisms=[cur_best]",
    "python -m lra.bench preset=figure5",
    "python -m lra.factorise kinds=[photo]",
    "python -m lra.kernels.resources arch=70",
    "python -m lra.integrations.pretrained model=x examples=y pools=cls",
    "python -m lra.integrations.dinov2_onnx model.onnx",
    "python -m data_prep task=list",
    "python -m data_prep task=listops source.seeds=1",
    "python -m data_prep.show task=listops counts=3",
    "python -m data_prep.bench --reps 3",
    "python -m pytest tests/test_laws.py --atn mine.AFT",
    "python -m pytest tests/test_law.py",
    "python train.py",
    "make tset",
    "make sweep LAUNCHR=joblib",
    "pip install '.[wnadb]'",
    "torchrun --nnode-s=2 --rdzv-endpoint=a:1 -m lra.train task=listops attn=cur_abs trainer=ddp_multinode",
    "torchrun --nnodes=2 --nproc-per-node=5 --rdzv-endpoint=a:1 -m lra.train task=listops attn=cur_abs trainer=ddp",
    "srun --node=2 --ntasks-per-node=4 python -m lra.train task=listops attn=cur_abs trainer=ddp_multinode",
    "wandb snyc runs",
    "wandb sync --fast runs",
    "source venv/bin/activate",
    "export MALLOC_MMAP_MAX_=1",
    "apt-get install everything",
    "curl https://example.org",
]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_is_found(line, work, monkeypatch, pytestconfig):
    (command,) = commands("page", f"```sh\n{line}  # a comment\n```\n")
    with pytest.raises(AssertionError):
        checked(command, monkeypatch, pytestconfig)


def test_commands_are_found_wherever_they_stand():
    text = "Say `make test`\nor `pip install\n'.[hf]'`, not `make` or `python`.\n\n```sh\nsource a # b\n\nmake x\n```\n"
    found = [(c.line, *c.words) for c in commands("page", text)]
    assert found == [(6, "source", "a"), (8, "make", "x"), (1, "make", "test"), (2, "pip", "install", ".[hf]")]
    for wrong in ("```\nmake\n```\n", "```bash\nmake\n```\n", "```sh\nmake\n", "```sh\nmake \\\n x\n```\n"):
        with pytest.raises(AssertionError):
            list(commands("page", wrong))


def test_the_readme_from_top_to_bottom(work, monkeypatch):
    """One command after the other, in one folder, to its end."""
    done = {c.words: c for c in COMMANDS if c.page == "README.md" and c.words[0] == "python"}
    for command in (c for c in done.values() if "attn=glob(*)" not in c.words):
        run_to_its_end(command, monkeypatch)
    runs = work / "runs"
    labels = {path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/seed-0")}
    assert labels >= {"paper-paper/listops/cur_abs", "paper-quick/listops/nystrom", "mine/listops/cur_step-count=32"}
    assert (runs / "report" / "index.html").stat().st_size > 10_000 and (work / "mine" / "report.md").exists()
    assert len(list(runs.glob("paper-quick/listops/cur_abs/seed-0/maps/*.png"))) == 2
    assert (work / "pathfinder.png").exists() and len(done) > 10


def test_transfer_from_top_to_bottom(work, monkeypatch):
    trained = Command("", 0, ("python", "-m", "lra.train", "task=listops", "attn=softmax"))
    done = [
        c for c in COMMANDS if c.page == "docs/transfer.md" and c.words[2:3] and c.words[2].startswith("lra.transfer")
    ]
    for command in (trained, *(c for c in done if "-m" not in c.words[3:])):
        run_to_its_end(command, monkeypatch)
    assert (work / "runs" / "transfer" / "transfer.md").exists() and len(done) == 4


def test_the_examples_train(own, monkeypatch):
    ran = [c for c in COMMANDS if c.page in OWN and c.words[2] in TINY and "-m" not in c.words[3:]]
    for command in ran:
        run_to_its_end(in_own_tree(command, own), monkeypatch)
    assert {path.parent.name for path in own.glob("runs/*/*/*/seed-0")} == {
        "aft-temperature=0.5",
        "aft",
        "custom-_target_=mine.AFT-temperature=0.5",
        "softmax",
    }
    assert (own / "recall.png").exists() and len(list(own.glob("runs/bench/bench/*/bench.json"))) == 1


def test_the_example_s_rows_are_what_its_docstring_says(own):
    source = importlib.import_module("data_prep.recall").Recall(pairs=3, train=50, val=5, test=5)
    splits = source.open(own / "data")
    tokens, mask = splits["train"].gather(torch.arange(50), 8)
    assert mask.all()
    for row, label in zip(tokens[:, 0].tolist(), splits["train"].labels.tolist(), strict=True):
        words = [source.alphabet[id] for id in row]
        answers = dict(zip(words[:6:2], words[1:6:2], strict=True))
        assert len(answers) == 3 and words[6] == "?" and answers[words[7]] == str(label)


def laws(name, patch, folder):
    """Every law of test_laws.py on a word of the examples' tree."""
    words = f"hydra.searchpath=[file://{folder}/tree/conf]"
    patch.setattr(test_laws, "config", lambda attn, *others: conftest.config(attn, words, *others))
    for key, law in vars(test_laws).items():
        if key.startswith("test_"):
            takes_pattern = "pattern" in inspect.signature(law).parameters
            for given in [(name, "suffix"), (name, "holes")] if takes_pattern else [(name,)]:
                try:
                    law(*given)
                except pytest.skip.Exception:
                    assert key == "test_fewer_real_tokens_than_kept_ones"


def test_the_example_is_lawful_and_without_its_mask_it_is_not(own, monkeypatch):
    laws("aft", monkeypatch, own)
    file = own / "tree/lra/attention/aft.py"
    file.write_text(file.read_text().replace("if mask is not None", "if False"))
    forget("lra.attention.aft")
    importlib.invalidate_caches()
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    with pytest.raises(AssertionError):
        laws("aft", monkeypatch, own)


@pytest.mark.slow
def test_the_laws_run_on_a_class_of_one_s_own(own, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{own}:{ROOT}")
    for command in (c for c in COMMANDS if "--attn" in c.words):
        line = [sys.executable, *command.words[1:], "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and "9 passed, 1 skipped" in done.stdout, done.stdout


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


# Words. A table whose first column is `key` lists the values of that key in the second.


def cells(page):
    for line in TEXTS[page].splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def words(cell):
    return set(re.findall(r"`(\w+)`", cell))


def yamls(group):
    return {path.stem for path in (CONF / group).glob("*.yaml")}


@pytest.mark.parametrize("key", ["task", "protocol", "block", "trainer", "logger", "experiment"])
def test_keys_list_every_value_and_no_other(key):
    (row,) = (row for row in cells("README.md") if row[0] == f"`{key}`")
    assert words(row[1]) == yamls(key)


def test_budgets_are_those_of_every_task():
    (row,) = (row for row in cells("README.md") if row[0] == "`budget`")
    for path in (CONF / "task").glob("*.yaml"):
        task = yaml.safe_load(path.read_text())
        assert set(task["budgets"]) == words(row[1]) or "defaults" in task


def test_mechanisms_are_those_of_conf_attn():
    rows = list(cells("README.md"))
    (start,) = (i for i, row in enumerate(rows) if row[0] == "`attn=`")
    listed = [word for row in rows[start + 1 :] for word in re.findall(r"`(\w+)`", row[0])]
    assert set(listed) == yamls("attn") - {"custom"} and len(set(listed)) == len(listed)


def test_sweeps_presets_kinds_and_launchers():
    from lra.factorise.matrices import KINDS

    line = next(line for line in TEXTS["docs/sweeps.md"].splitlines() if line.startswith("`sweep=` is one of"))
    assert words(line) == yamls("sweep")
    said = {word.removeprefix("preset=") for word in re.findall(r"preset=\w+", TEXTS["docs/bench.md"])}
    assert said == yamls("preset")
    launchers = [row[0].strip("`") for row in cells("docs/sweeps.md")][1:]
    assert set(launchers) == {"basic", "joblib", *_EXTRAS}
    kinds = re.search(r"`kinds` are ((?:`\w+`\s*)+)", TEXTS["docs/factorise.md"])[1]
    assert words(kinds) == set(KINDS)


def test_tables_of_the_protocol_are_the_yamls():
    page = list(cells("docs/protocol.md"))
    names = {"length": "task.length", "batch": "optim.batch", "lr": "optim.lr", "warm-up": "optim.warmup"}
    names |= {"steps": "optim.steps", "dev every": "optim.eval_every"}
    (start,) = (i for i, row in enumerate(page) if row[:2] == ["task", "length"])
    for row in page[start + 1 :]:
        config = compose("train", [f"task={row[0].strip('`')}", "attn=sdpa"])
        for name, text in zip(page[start][1:], row[1:], strict=True):
            section, key = names[name].split(".")
            assert float(text.replace(",", "")) == config[section][key], (row[0], name)
    assert {row[0].strip("`") for row in page[start + 1 :]} == yamls("task") - {"text_1k", "text_2k"}
    quirks = {row[0].strip("`"): row[1:3] for row in page if row[0].startswith("`protocol.")}
    for column, protocol in enumerate(("paper", "clean")):
        values = yaml.safe_load((CONF / "protocol" / f"{protocol}.yaml").read_text())
        assert values.pop("name") == protocol
        told = {key.removeprefix("protocol."): yaml.safe_load(row[column].strip("`")) for key, row in quirks.items()}
        assert told == values


def test_keys_in_the_text_exist():
    known = {"attn._target_", "attn.temperature", "source.pairs", "task.length"}
    for path in (path for path in CONF.rglob("*.yaml") if path.parent.name != "experiment"):
        tree = yaml.safe_load(path.read_text())
        known |= set(flatten(tree if path.parent.name == "task" or path.stem == "train" else {path.parent.name: tree}))
    for page, text in TEXTS.items():
        for line, span in spans(text):
            found = re.fullmatch(
                r"\+?((?:attn|block|data|logger|model|optim|protocol|source|task|trainer)\.[\w.]+)(=.*)?", span
            )
            if found and not found[1].endswith((".py", ".yaml", ".md")):
                assert any(key == found[1] or key.startswith(f"{found[1]}.") for key in known), f"{page}:{line} {span}"


def test_links_and_paths_lead_somewhere():
    missing = []
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text()
        for target in re.findall(r"\]\(([^)]+)\)", text):
            file, _, anchor = target.partition("#")
            if target.startswith("https://"):
                continue
            there = (path.parent / file).resolve() if file else path
            if not there.is_file():
                missing.append((page, target))
            elif anchor:
                titles = re.findall(r"^#+ (.+)$", there.read_text(), re.M)
                if anchor not in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}:
                    missing.append((page, target))
        for _, span in spans(text):
            own = re.fullmatch(r"(lra|conf|data_prep|tests|docs)/[\w./*-]*", span)
            if own and span not in EXAMPLES and not list(ROOT.glob(span.rstrip("/"))):
                missing.append((page, span))
    assert not missing
    linked = set(re.findall(r"\]\((docs/[\w.]+)\)", TEXTS["README.md"]))
    assert linked == {page for page in TEXTS if page != "README.md"}


@pytest.mark.parametrize("module", ["pretrained", "dinov2_onnx", "huggingface"])
def test_a_missing_package_is_one_line_that_names_the_extra(module, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lra.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("transformers", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    package, extra = ("onnx", "onnx") if module == "dinov2_onnx" else ("transformers", "hf")
    line = re.escape(f"{package} is not installed, or too old: pip install '.[{extra}]'")
    if module != "huggingface":
        with pytest.raises(SystemExit, match=f"^lra: {line}$"):
            runpy.run_module(f"lra.integrations.{module}", run_name="__main__")
    with pytest.raises(ImportError, match=f"^{line}$"):
        importlib.import_module(f"lra.integrations.{module}")


@pytest.mark.slow
def test_a_wheel_carries_what_is_read_at_run_time(tmp_path):
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--disable-pip-version-check",
        ".",
        "-w",
        str(tmp_path),
    ]
    subprocess.run(line, cwd=ROOT, check=True)
    import zipfile

    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    read = [*(ROOT / "lra/report/web").iterdir(), ROOT / "lra/published.csv"]
    tracked = subprocess.run(
        ["git", "ls-files", "lra", "data_prep"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {path.relative_to(ROOT).as_posix() for path in read} <= held
    assert {f"lra/conf/{path.relative_to(CONF).as_posix()}" for path in CONF.rglob("*.yaml")} <= held
    assert set(tracked.stdout.split()) <= held
