"""The manuals name only existing options, files and links, and list every task, experiment, sweep and preset."""

import re
import subprocess
import sys

import pytest
import yaml
from docs_pages import EXAMPLES, PAGES, ROOT, TEXTS, spans
from omegaconf import OmegaConf

from lra.config import CONF
from lra.config.compose import compose
from lra.config.errors import EXTRAS
from lra.config.experiment import Experiment
from lra.config.recipes import choices
from lra.options import flatten
from lra.studies.factorise.matrices import KINDS


def table_rows(page):
    for line in TEXTS[page].splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def code_words(cell):
    return set(re.findall(r"`(\w+)`", cell))


def test_option_rows_list_exactly_the_config_group_or_budgets():
    values = {row[0].strip("`"): code_words(row[1]) for row in table_rows("docs/train.md")}
    for key in ("task", "protocol", "pretrain", "block", "trainer", "logger"):
        assert values[key] == set(choices(key)), key
    for task in (yaml.safe_load(path.read_text()) for path in (CONF / "task").glob("*.yaml")):
        assert "defaults" in task or values["budget"] <= set(task["budgets"])


@pytest.mark.parametrize(
    "page, head, column, group", [("train", "training of", 1, "experiment"), ("mechanisms", "`attn=`", 0, "attn")]
)
def test_every_experiment_and_mechanism_is_listed_once(page, head, column, group):
    rows = list(table_rows(f"docs/{page}.md"))
    (start,) = (i for i, row in enumerate(rows) if row[0] == head)
    names = [name for row in rows[start + 1 :] for name in re.findall(r"`(\w+)`", row[column])]
    assert sorted(names) == sorted(set(choices(group)) - {"custom"})


def test_sweeps_presets_launchers_and_matrix_kinds_are_complete():
    page_values = {word.removeprefix("preset=") for word in re.findall(r"preset=\w+", TEXTS["docs/bench.md"])}
    assert page_values == set(choices("preset"))
    names = [row[0].strip("`") for row in table_rows("docs/sweeps.md")]
    assert sorted(names[names.index("sweep=") + 1 : names.index("option")]) == sorted(choices("sweep"))
    assert {*names[names.index("hydra/launcher=") + 1 :]} == {"basic", "joblib", *EXTRAS}
    assert code_words(re.search(r"`kinds`\s+are\s+((?:`\w+`\s*)+)", TEXTS["docs/figures.md"])[1]) == set(KINDS)


def test_protocol_tables_match_yamls():
    page = list(table_rows("docs/protocol.md"))
    names = {"length": "task.length", "batch": "optim.batch", "lr": "optim.lr", "warm-up": "optim.warmup"}
    names |= {"steps": "optim.steps", "validation every": "optim.eval_every"}
    (start,) = (i for i, row in enumerate(page) if row[:2] == ["task", "length"])
    tasks = [row for row in page[start + 1 :] if len(row) == len(page[start])]
    for row in tasks:
        config = compose(Experiment, [f"task={row[0].strip('`')}", "attn=sdpa"])
        for name, text in zip(page[start][1:], row[1:], strict=True):
            section, key = names[name].split(".")
            assert float(text.replace(",", "")) == getattr(getattr(config, section), key), (row[0], name)
    assert {row[0].strip("`") for row in tasks} == set(choices("task")) - {"text_1k", "text_2k"}
    quirks = {row[0].strip("`"): row[1:3] for row in page if row[0].startswith("`protocol.")}
    for column, protocol in enumerate(("paper", "clean")):
        values = yaml.safe_load((CONF / "protocol" / f"{protocol}.yaml").read_text())
        assert values.pop("name") == protocol
        texts = {key.removeprefix("protocol."): row[column].strip("`") for key, row in quirks.items()}
        assert {key: yaml.safe_load(text) for key, text in texts.items()} == values


def test_token_budget_table_matches_conf():
    row = re.compile(r"(?m)^\| (\w+) \| `(attn|block)\.(\w+)` \| (\d+) \| (\d+) \|$")
    page_values = {tuple(names): (int(a), int(b)) for *names, a, b in row.findall(TEXTS["docs/protocol.md"])}
    actual = {}
    for path in (*(CONF / "attn").glob("*.yaml"), *(CONF / "block").glob("*.yaml")):
        for key in re.findall(r"(?m)^(\w+): \$\{of_budget:allowance\b", path.read_text()):
            trees = [{"budget": "b", "budgets": {"b": {"allowance": c}}, "it": OmegaConf.load(path)} for c in (16, 32)]
            actual[path.stem, path.parent.name, key] = tuple(OmegaConf.create(tree).it[key] for tree in trees)
    assert page_values == actual


def test_option_keys_in_text_exist():
    keys = {"attn._target_", "attn.temperature", "source.pairs", "task.length"}
    for path in (path for path in CONF.rglob("*.yaml") if path.parent.name != "experiment"):
        tree = yaml.safe_load(path.read_text())
        keys |= set(flatten(tree if path.parent.name == "task" or path.stem == "train" else {path.parent.name: tree}))
    key = re.compile(r"\+?((?:attn|block|data|logger|model|optim|protocol|source|task|trainer)\.[\w.]+)(=.*)?")
    for page, text in TEXTS.items():
        for line, span in spans(text):
            match = key.fullmatch(span)
            if match and not match[1].endswith((".py", ".yaml", ".md")):
                assert any(f"{name}.".startswith(f"{match[1]}.") for name in keys), f"{page}:{line} {span}"


def test_links_and_paths_exist():
    missing = []
    for path, (page, text) in zip(PAGES, TEXTS.items(), strict=True):
        for target in re.findall(r"\]\((?!https://)([^)]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
            file, _, anchor = target.partition("#")
            actual = (path.parent / file).resolve() if file else path
            titles = re.findall(r"^#+ (.+)$", actual.read_text(), re.M) if anchor and actual.is_file() else []
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            if not actual.is_file() or (anchor and anchor not in anchors):
                missing.append((page, target))
        for _, span in spans(text):
            path_match = re.fullmatch(r"(lra|conf|data_prep|tests|docs)/[\w./*-]*", span)
            if path_match and span not in EXAMPLES and not list(ROOT.glob(span.rstrip("/"))):
                missing.append((page, span))
    assert not missing
    linked = set(re.findall(r"\]\(([\w./]+\.md)\)", TEXTS["README.md"]))
    assert linked == {page for page in TEXTS if page != "README.md"}


def test_pages_have_at_most_200_lines_and_examples_80():
    # The README and generated pages may be longer.
    max_lines = {"README.md": 250, "docs/results.md": 400, "docs/leaderboard.md": 400}
    assert not [page for page, text in TEXTS.items() if len(text.splitlines()) > max_lines.get(page, 200)]
    assert not [path for path in (ROOT / "examples").glob("*.py") if len(path.read_text().splitlines()) > 80]


def test_site_navigation_lists_every_page_once():
    nav = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())
    site_names = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    site_names["lra/studies/README.md"] = "studies.md"
    assert sorted(nav) == sorted(site_names.get(page, page.removeprefix("docs/")) for page in TEXTS)


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(line, cwd=ROOT, check=True)
    assert (tmp_path / "index.html").exists() and (tmp_path / "api" / "lra.attention.html").exists()
