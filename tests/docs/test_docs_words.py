"""Words, links, paths and extras of README.md and docs/: docs name only existing things, and every existing thing."""

import dataclasses
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
from lra.config.options import flatten
from lra.runs.record import RunRecord


def cells(page):
    for line in TEXTS[page].splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def words(cell):
    return set(re.findall(r"`(\w+)`", cell))


def yamls(group):
    return {path.stem for path in (CONF / group).glob("*.yaml")}


@pytest.mark.parametrize("key", ["task", "protocol", "pretrain", "block", "trainer", "logger"])
def test_keys_list_every_value_and_no_other(key):
    (row,) = (row for row in cells("docs/train.md") if row[0] == f"`{key}`")
    assert words(row[1]) == yamls(key)


def test_every_experiment_is_listed_once():
    rows = list(cells("docs/train.md"))
    start = [row[0] for row in rows].index("training of")
    names = [name for row in rows[start + 1 :] for name in re.findall(r"`(\w+)`", row[1])]
    assert set(names) == yamls("experiment") and len(names) == len(set(names))


def test_budgets_are_those_of_every_task():
    (row,) = (row for row in cells("docs/train.md") if row[0] == "`budget`")
    for task in (yaml.safe_load(path.read_text()) for path in (CONF / "task").glob("*.yaml")):
        assert "defaults" in task or words(row[1]) <= set(task["budgets"])


def test_mechanisms_are_in_conf_attn():
    rows = list(cells("docs/mechanisms.md"))
    (start,) = (i for i, row in enumerate(rows) if row[0] == "`attn=`")
    listed = [word for row in rows[start + 1 :] for word in re.findall(r"`(\w+)`", row[0])]
    assert set(listed) <= yamls("attn") - {"custom"} and len(set(listed)) == len(listed)


def test_sweeps_presets_kinds_and_launchers():
    from lra.studies.factorise.matrices import KINDS

    line = next(line for line in TEXTS["docs/sweeps.md"].splitlines() if line.startswith("`sweep=` is one of"))
    assert words(line) == yamls("sweep")
    said = {word.removeprefix("preset=") for word in re.findall(r"preset=\w+", TEXTS["docs/bench.md"])}
    assert said == yamls("preset")
    names = [row[0].strip("`") for row in cells("docs/sweeps.md")]
    launchers = names[names.index("hydra/launcher=") + 1 :]
    assert set(launchers) == {"basic", "joblib", *EXTRAS}
    kinds = re.search(r"`kinds`\s+are\s+((?:`\w+`\s*)+)", TEXTS["docs/figures.md"])[1]
    assert words(kinds) == set(KINDS)


def test_tables_of_the_protocol_are_the_yamls():
    page = list(cells("docs/protocol.md"))
    names = {"length": "task.length", "batch": "optim.batch", "lr": "optim.lr", "warm-up": "optim.warmup"}
    names |= {"steps": "optim.steps", "validation every": "optim.eval_every"}
    (start,) = (i for i, row in enumerate(page) if row[:2] == ["task", "length"])
    tasks = [row for row in page[start + 1 :] if len(row) == len(page[start])]
    for row in tasks:
        config = compose(Experiment, [f"task={row[0].strip('`')}", "attn=sdpa"])
        for name, text in zip(page[start][1:], row[1:], strict=True):
            section, key = names[name].split(".")
            assert float(text.replace(",", "")) == getattr(getattr(config, section), key), (row[0], name)
    assert {row[0].strip("`") for row in tasks} == yamls("task") - {"text_1k", "text_2k"}
    quirks = {row[0].strip("`"): row[1:3] for row in page if row[0].startswith("`protocol.")}
    for column, protocol in enumerate(("paper", "clean")):
        values = yaml.safe_load((CONF / "protocol" / f"{protocol}.yaml").read_text())
        assert values.pop("name") == protocol
        texts = {key.removeprefix("protocol."): row[column].strip("`") for key, row in quirks.items()}
        assert {key: yaml.safe_load(text) for key, text in texts.items()} == values


def test_the_table_of_allowances_is_that_of_conf():
    row = re.compile(r"(?m)^\| (\w+) \| `(attn|block)\.(\w+)` \| (\d+) \| (\d+) \|$")
    said = {tuple(names): (int(a), int(b)) for *names, a, b in row.findall(TEXTS["docs/protocol.md"])}
    there = {}
    for path in (*(CONF / "attn").glob("*.yaml"), *(CONF / "block").glob("*.yaml")):
        for key in re.findall(r"(?m)^(\w+): \$\{of_budget:allowance\b", path.read_text()):
            trees = [{"budget": "b", "budgets": {"b": {"allowance": c}}, "it": OmegaConf.load(path)} for c in (16, 32)]
            there[path.stem, path.parent.name, key] = tuple(OmegaConf.create(tree).it[key] for tree in trees)
    assert said == there


def test_keys_in_the_text_exist():
    known = {"attn._target_", "attn.temperature", "source.pairs", "task.length"}
    for path in (path for path in CONF.rglob("*.yaml") if path.parent.name != "experiment"):
        tree = yaml.safe_load(path.read_text())
        known |= set(flatten(tree if path.parent.name == "task" or path.stem == "train" else {path.parent.name: tree}))
    key = re.compile(r"\+?((?:attn|block|data|logger|model|optim|protocol|source|task|trainer)\.[\w.]+)(=.*)?")
    for page, text in TEXTS.items():
        for line, span in spans(text):
            found = key.fullmatch(span)
            if found and not found[1].endswith((".py", ".yaml", ".md")):
                assert any(f"{name}.".startswith(f"{found[1]}.") for name in known), f"{page}:{line} {span}"


def test_links_and_paths_lead_somewhere():
    missing = []
    for path, (page, text) in zip(PAGES, TEXTS.items(), strict=True):
        for target in re.findall(r"\]\((?!https://)([^)]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            titles = re.findall(r"^#+ (.+)$", there.read_text(), re.M) if anchor and there.is_file() else []
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            if not there.is_file() or (anchor and anchor not in anchors):
                missing.append((page, target))
        for _, span in spans(text):
            own = re.fullmatch(r"(lra|conf|data_prep|tests|docs)/[\w./*-]*", span)
            if own and span not in EXAMPLES and not list(ROOT.glob(span.rstrip("/"))):
                missing.append((page, span))
    assert not missing
    linked = set(re.findall(r"\]\(([\w./]+\.md)\)", TEXTS["README.md"]))
    assert linked == {page for page in TEXTS if page != "README.md"}


def test_a_page_has_at_most_200_lines():
    longer = {"README.md": 250, "docs/results.md": 400, "docs/leaderboard.md": 400}  # two generated pages
    assert not [page for page, text in TEXTS.items() if len(text.splitlines()) > longer.get(page, 200)]


def test_the_site_lists_every_page_once():
    nav = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())
    moved = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    moved["lra/studies/README.md"] = "studies.md"
    assert sorted(nav) == sorted(moved.get(page, page.removeprefix("docs/")) for page in TEXTS)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(line, cwd=ROOT, check=True)
    assert (tmp_path / "index.html").exists() and (tmp_path / "api" / "lra.attention.html").exists()


def test_the_issue_asks_for_fields_of_a_record():
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/numbers_differ.yml").read_text())
    asked = {entry["id"]: entry["attributes"] for entry in form["body"] if "id" in entry}
    fields = words(asked["record"]["description"]) | words(asked["seeds"]["description"])
    assert {"test", "val", "git"} <= fields <= {field.name for field in dataclasses.fields(RunRecord)}
