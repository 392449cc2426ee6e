"""Imports between folders: none runs upward, inside a floor only along the listed edges, and chains are short."""

import ast
import re

import pytest
from support.floors import FLOOR, ROOT, chain, folder, imports

MOST = 7  # folders in a chain, see ``support.floors.chain``
LEVEL = {  # edges inside a floor
    ("model", "attention"),  # the contract only
    ("train", "runs"),
    ("sweep", "bench"),  # measures a step where no record tells its time
    ("bench", "report"),  # prints its own tables
    ("report", "integrations"),  # publishes to Weights & Biases
}
# These alone of data_prep know the command line.
ENTRIES = {
    "data_prep.__main__",
    "data_prep.bench",
    "data_prep.export",
    "data_prep.floors",
    "data_prep.load",
    "data_prep.show",
}


def edges() -> list[tuple[str, str]]:
    return [(module, target) for module, targets in imports().items() for target in targets]


def test_every_folder_has_a_floor():
    assert {folder(module) for module in imports()} == set(FLOOR)


def test_no_import_runs_upward_and_floors_are_crossed_on_listed_edges():
    level = set()
    for source, target in edges():
        here, there = folder(source), folder(target)
        assert FLOOR[there] <= FLOOR[here], f"{source} imports {target}, which is above it"
        if here != there and FLOOR[there] == FLOOR[here]:
            level.add((here, there))
    assert level == LEVEL


def test_chains_of_imports_are_short():
    """From module to module, each import that leads into another folder counts; ``lra`` itself is the last folder."""
    longest = chain()
    assert 4 < len(longest) <= MOST, " > ".join(longest)


@pytest.mark.parametrize(
    "here, only",
    {
        "attention": ("lra.ops", "lra.attention.base"),
        "model": ("lra.ops", "lra.attention.base", "lra.model"),
        "data": ("lra.data", "lra.disk"),
        "data_prep": ("lra.data.source", "lra.data.store", "data_prep"),
        "disk": ("lra.disk",),
        "ops": ("lra.ops",),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_lower_floors_know_only(here, only):
    for source, target in edges():
        if folder(source) == here and source not in ENTRIES and folder(target) != "lra":
            inside = any(f"{target}.".startswith(f"{name}.") or name.startswith(f"{target}.") for name in only)
            assert inside, f"{source} imports {target}"


def test_operators_are_no_modules_and_name_no_section_of_a_configuration():
    for path in (ROOT / "lra/ops").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = map(ast.unparse, node.bases) if isinstance(node, ast.ClassDef) else ()
            assert not any("Module" in base or "nn." in base for base in bases), path
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<!\.)\b(attn|model|task)\.\w", node.value), path


@pytest.mark.parametrize("library, place", [("triton", "lra/ops/triton"), ("omegaconf", "lra/config")])
def test_a_library_is_known_to_one_folder_alone(library, place):
    line = re.compile(rf"^\s*(from|import) {library}\b", re.MULTILINE)
    knowing = {path.parent for path in (ROOT / "lra").rglob("*.py") if line.search(path.read_text())}
    assert knowing == {ROOT / place}


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
