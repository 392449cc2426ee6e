"""Imports between folders: none runs upward, and inside a floor only along the listed edges."""

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter

import pytest

from lra.config import CONF

ROOT = CONF.parent
FLOORS = [
    {"startup", "console", "ops", "disk", "data.store"},
    {"attention", "model", "data", "data_prep"},
    {"config", "runs", "train"},
    {"sweep", "bench", "maps", "report", "integrations", "laws"},
    {"studies"},
]
FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
LEVEL = {  # edges inside a floor
    ("data.store", "disk"),
    ("model", "attention"),  # the contract only
    ("runs", "config"),
    ("train", "config"),
    ("train", "runs"),
    ("sweep", "bench"),  # measures a step where no record tells its time
    ("bench", "report"),  # prints its own tables
    ("report", "integrations"),  # publishes to Weights & Biases
}
# These alone of data_prep know the command line.
ENTRIES = {"data_prep.__main__", "data_prep.bench", "data_prep.floors", "data_prep.show"}


def folder(module: str) -> str:
    """lra.attention.cur -> attention; the store and the command line of data_prep count apart."""
    if module.startswith("data_prep"):
        return "data_prep"
    name = module.removeprefix("lra.")
    return "startup" if name == "__init__" else name if name in FLOOR else name.split(".")[0]


def imports(path):
    """(module, imported module) for every import of this repository's modules in a file, functions included."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            whole = ".".join([*base, *filter(None, [node.module])])
            for name in dict.fromkeys([whole, *(f"{whole}.{alias.name}" for alias in node.names)]):
                file = ROOT / name.replace(".", "/")
                if file.with_suffix(".py").exists() or (file / "__init__.py").exists():
                    yield module, name
        elif isinstance(node, ast.Import):
            yield from ((module, alias.name) for alias in node.names)


@cache
def edges() -> list[tuple[str, str]]:
    files = [path for top in ("lra", "data_prep") for path in sorted((ROOT / top).rglob("*.py"))]
    ours = ("lra.", "data_prep.")
    return [edge for path in files for edge in imports(path) if edge[1].startswith(ours)]


def test_every_folder_has_a_floor():
    assert {folder(module) for edge in edges() for module in edge} - {"lra"} <= set(FLOOR)


def test_no_import_runs_upward_and_floors_are_crossed_on_listed_edges():
    level = set()
    for source, target in edges():
        here, there = folder(source), folder(target)
        if source in ENTRIES:
            continue
        assert FLOOR[there] <= FLOOR[here], f"{source} imports {target}, which is above it"
        if here != there and FLOOR[there] == FLOOR[here]:
            level.add((here, there))
    assert level == LEVEL


def test_no_folder_depends_on_itself_through_another():
    graph = defaultdict(set)
    for source, target in edges():
        if folder(source) != folder(target) and source not in ENTRIES:
            graph[folder(source)].add(folder(target))
    list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize(
    "here, only",
    {
        "attention": ("lra.ops", "lra.attention.base"),
        "model": ("lra.ops", "lra.attention.base", "lra.model"),
        "data": ("lra.data", "lra.disk"),
        "data_prep": ("lra.console", "lra.data.store", "lra.disk", "data_prep"),
        "data.store": ("lra.disk",),
        "disk": ("lra.console", "lra.disk"),
        "ops": ("lra.ops",),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_lower_floors_know_only(here, only):
    for source, target in edges():
        if folder(source) == here and source not in ENTRIES and not source.endswith("__init__"):
            inside = any(target == name or target.startswith(f"{name}.") for name in only)
            assert inside, f"{source} imports {target}"


def test_triton_is_imported_in_one_folder_only():
    for path in (ROOT / "lra").rglob("*.py"):
        if path.is_relative_to(ROOT / "lra/ops/triton"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "triton" for name in names), path


def test_omegaconf_is_known_to_the_configuration_alone():
    knowing = {path for path in (ROOT / "lra").rglob("*.py") if re.search(r"(from|import) omegaconf", path.read_text())}
    assert {path.parent for path in knowing} == {ROOT / "lra/config"}


def test_a_study_is_known_to_itself_alone():
    studies = sorted(path.parent.name for path in (ROOT / "lra/studies").glob("*/__init__.py"))
    assert len(studies) > 1
    for source, target in edges():
        study = target.removeprefix("lra.studies.").partition(".")[0]
        assert study not in studies or source.startswith(f"lra.studies.{study}."), f"{source} imports {target}"
    names = re.compile(rf"studies[./]({'|'.join(studies)})\b|[\"']({'|'.join(studies)})[./]")
    for path in (path for top in ("lra", "data_prep") for path in (ROOT / top).rglob("*.py")):
        if not path.is_relative_to(ROOT / "lra/studies"):
            assert path.stem not in studies and not names.search(path.read_text()), path
