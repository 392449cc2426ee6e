"""The layers of folders, and the imports of each module.

A node is a top-level folder of ``lra``, ``data_prep``, or ``lra`` for the files of the package itself, which every
module imports implicitly. Imports inside functions count like all others.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOORS = [
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
FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}


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
    return {_name(path): path for top in ("lra", "data_prep") for path in sorted((ROOT / top).rglob("*.py"))}


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
    modules = direct.union(*map(closure, direct))
    return {name for name in modules if _paths()[name].stem != "__init__"}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
