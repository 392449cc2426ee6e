"""Imports between folders: none runs upward, inside a floor only along the listed edges, and chains are short."""

import ast
import re
import subprocess
import sys

import pytest
from conftest import KERNELS, MECHANISMS
from support.floors import FLOOR, ROOT, chain, closure, folder, imports

MOST = 7  # folders in a chain, see ``support.floors.chain``
LEVEL = {  # edges inside a floor
    ("model", "attention"),  # the contract only
    ("train", "runs"),
    ("board", "sweep"),  # plans its runs
    ("report", "board"),  # shows its tables
    ("sweep", "bench"),  # measures a step where no record tells its time
    ("bench", "report"),  # prints its own tables
    ("report", "integrations"),  # publishes to Weights & Biases
}
# These alone of data_prep know the command line.
ENTRIES = {f"data_prep.{name}" for name in ("__main__", "baselines", "bench", "export", "load", "show")}


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
        "attention": ("lra.ops", "lra.attention.base", "lra.attention.gated"),
        "model": ("lra.ops", "lra.attention.base", "lra.model"),
        "data": ("lra.data", "lra.io"),
        "data_prep": ("lra.data.progress", "lra.data.source", "lra.data.split", "lra.data.store", "data_prep"),
        "io": ("lra.io",),
        "ops": ("lra.ops",),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_lower_floors_know_only(here, only):
    for source, target in edges():
        if folder(source) == here and source not in ENTRIES and folder(target) != "lra":
            inside = any(f"{target}.".startswith(f"{name}.") or name.startswith(f"{target}.") for name in only)
            assert inside, f"{source} imports {target}"


CLOSURES = {  # modules of lra that a mechanism imports, directly or through others, without base and options
    "cur": 6,
    "dba": 3,
    "flare": 3,
    "linear": 3,
    "linformer": 3,
    "nystrom": 5,
    "psf": 3,
    "s4d": 3,
    "soft": 5,
}


@pytest.mark.parametrize("name", CLOSURES)
def test_a_mechanism_is_readable_from_its_file(name):
    """Imports inside functions do not count: the kernels, and what only packed sequences need."""
    modules = closure(f"lra.attention.{name}") - {"lra.attention.base", "lra.options"}
    assert len(modules) <= CLOSURES[name], sorted(modules)


def test_the_kernels_are_loaded_on_their_first_use():
    for module in imports():
        is_kernel = module.startswith("lra.ops.triton")
        assert is_kernel or not any(name.startswith("lra.ops.triton") for name in closure(module)), module


BUILD = """
import sys
from lra.config.compose import compose
from lra.config.experiment import Experiment

for name in sys.argv[1:]:
    compose(Experiment, ("task=listops", "budget=smoke", "model.layers=1", f"attn={name}")).classifier()
print([name for name in sys.modules if name.partition(".")[0] == "triton" or name.startswith("lra.ops.triton")])
"""
EAGER = [name for name in MECHANISMS if name not in KERNELS]


@pytest.mark.parametrize("names", [["cur_abs", "nystrom"], pytest.param(EAGER, marks=pytest.mark.slow)], ids=len)
def test_no_mechanism_loads_the_kernels_unless_asked(names):
    found = subprocess.run([sys.executable, "-c", BUILD, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_reference_files_are_short_and_import_torch_and_shapes_alone():
    for path in (ROOT / "lra/reference").glob("*.py"):
        source = path.read_text()
        packages = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE))
        assert packages <= {"math", "collections.abc", "jaxtyping", "torch", "torch.nn.functional"}, path
        assert len(source.splitlines()) <= 120, path


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
