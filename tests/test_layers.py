"""Dependency rules: imports, also inside functions, go to lower layers or along listed edges.

A node is a top-level folder of ``lra``, ``data_prep``, or ``lra`` for its own files, which every module imports.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"lra"},
    {"ops", "io", "reference"},
    {"attention", "model", "data"},
    {"config"},
    {"runs", "train"},
    {"results"},
    {"evaluate"},
    {"board", "sweep", "bench", "maps", "report", "integrations", "checks", "data_prep"},
    {"studies", "submit"},
    {"leaderboard"},
]
LAYER = {folder: number for number, folders in enumerate(LAYERS) for folder in folders}
# Imports within a layer. model needs only the base class of attention, board plans runs of sweeps, report shows board
# tables and publishes to Weights & Biases, sweep measures unknown step times, and bench prints its own tables.
EDGES_WITHIN_LAYER = {("model", "attention"), ("train", "runs"), ("board", "sweep"), ("report", "board")}
EDGES_WITHIN_LAYER |= {("sweep", "bench"), ("bench", "report"), ("report", "integrations")}
# Entry points of data_prep; no other module of it may depend on the command line.
ENTRIES = {f"data_prep.{name}" for name in ("__main__", "baselines", "bench", "export", "inspect", "load", "show")}


def folder(module: str) -> str:
    """The node of a module: lra.attention.cur -> attention, lra.console -> lra."""
    top, *rest = module.split(".")
    return rest[0] if top == "lra" and rest and (ROOT / "lra" / rest[0]).is_dir() else top


def _imported(module: str, path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    """The names of modules that the import statements among nodes may import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            base = package[: len(package) + 1 - node.level] if node.level else []
            full_name = ".".join([*base, *filter(None, [node.module])])
            names |= {full_name, *(f"{full_name}.{alias.name}" for alias in node.names)}
    return names


@cache
def _paths() -> dict[str, Path]:
    paths = [path for top in ("lra", "data_prep") for path in sorted((ROOT / top).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports() -> dict[str, set[str]]:
    """Map each module to the modules that it imports, including its parent packages, which Python imports first."""
    targets = {}
    for module, path in _paths().items():
        parts = module.split(".")
        packages = {".".join(parts[:end]) for end in range(1, len(parts))}
        names = packages | _imported(module, path, ast.walk(ast.parse(path.read_text())))
        targets[module] = (names & _paths().keys()) - {module}
    return targets


@cache
def closure(module: str) -> set[str]:
    """The modules, without packages, that a module imports directly or indirectly, not counting lazy imports."""
    path = _paths()[module]
    direct = (_imported(module, path, ast.parse(path.read_text()).body) & _paths().keys()) - {module}
    return {name for name in direct.union(*map(closure, direct)) if _paths()[name].stem != "__init__"}


def edges() -> list[tuple[str, str]]:
    return [(module, target) for module, targets in imports().items() for target in targets]


def test_every_folder_has_a_layer_and_imports_go_down_or_along_listed_edges():
    assert {folder(module) for module in imports()} == set(LAYER)
    same_layer = set()
    for source, target in edges():
        here, target_folder = folder(source), folder(target)
        assert LAYER[target_folder] <= LAYER[here], f"{source} imports {target}, which is above it"
        if here != target_folder and LAYER[target_folder] == LAYER[here]:
            same_layer.add((here, target_folder))
    assert same_layer == EDGES_WITHIN_LAYER


def test_lower_layers_import_only_listed_modules():
    listed = {
        "attention": ("lra.ops", "lra.attention.base", "lra.attention.recurrent_parts"),
        "model": ("lra.ops", "lra.attention.base", "lra.model"),
        "data": ("lra.data", "lra.io"),
        "data_prep": ("lra.data.progress", "lra.data.source", "lra.data.split", "lra.data.store", "data_prep"),
    }
    for source, target in edges():
        if folder(source) in listed and source not in ENTRIES and folder(target) != "lra":
            only = listed[folder(source)]
            is_allowed = any(f"{target}.".startswith(f"{name}.") or name.startswith(f"{target}.") for name in only)
            assert is_allowed, f"{source} imports {target}"


def test_mechanisms_import_few_modules_and_no_kernels():
    """Imports inside functions (kernels, packed sequences) do not count."""
    # Number of lra modules that a mechanism imports, directly or indirectly, without base and options.
    limits = {"cur": 6, "dba": 3, "flare": 3, "linear": 3, "linformer": 3, "nystrom": 5, "psf": 3, "s4d": 3, "soft": 5}
    for name, most in limits.items():
        modules = closure(f"lra.attention.{name}") - {"lra.attention.base", "lra.options"}
        assert len(modules) <= most, (name, sorted(modules))
    for module in imports():
        is_kernel = module.startswith("lra.ops.triton")
        assert is_kernel or not any(name.startswith("lra.ops.triton") for name in closure(module)), module


def test_reference_files_are_short_and_import_only_torch_and_jaxtyping():
    for path in (ROOT / "lra/reference").glob("*.py"):
        source = path.read_text()
        packages = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE))
        assert packages <= {"math", "collections.abc", "jaxtyping", "torch", "torch.nn.functional"}, path
        assert len(source.splitlines()) <= 120, path


def test_ops_define_no_nn_modules_and_name_no_options():
    for path in (ROOT / "lra/ops").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = map(ast.unparse, node.bases) if isinstance(node, ast.ClassDef) else ()
            assert not any("Module" in base or "nn." in base for base in bases), path
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<!\.)\b(attn|model|task)\.\w", node.value), path


def test_omegaconf_is_imported_in_config_only():
    line = re.compile(r"^\s*(from|import) omegaconf\b", re.MULTILINE)
    importing = {path.parent for path in (ROOT / "lra").rglob("*.py") if line.search(path.read_text())}
    assert importing == {ROOT / "lra/config"}


def test_studies_are_not_imported_or_named_elsewhere():
    studies = sorted(path.parent.name for path in (ROOT / "lra/studies").glob("*/__init__.py"))
    assert len(studies) > 1
    for source, target in edges():
        study = target.removeprefix("lra.studies.").partition(".")[0]
        assert study not in studies or source.startswith(f"lra.studies.{study}."), f"{source} imports {target}"
    names = re.compile(rf"studies[./]({'|'.join(studies)})\b|[\"']({'|'.join(studies)})[./]")
    for path in (path for top in ("lra", "data_prep") for path in (ROOT / top).rglob("*.py")):
        if not path.is_relative_to(ROOT / "lra/studies"):
            assert path.stem not in studies and not names.search(path.read_text()), path
