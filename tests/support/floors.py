"""python -m tests.support.floors: the folders of the suite by floor, what each imports, and the longest chain.

A node is a folder of ``lra`` with all folders below it, ``data_prep``, or ``lra``: the package's own files, which
every module imports by being in the package. Imports inside functions count as all others do.
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
    """The names that the import statements among nodes may import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            base = package[: len(package) + 1 - node.level] if node.level else []
            whole = ".".join([*base, *filter(None, [node.module])])
            names |= {whole, *(f"{whole}.{alias.name}" for alias in node.names)}
    return names


@cache
def _paths() -> dict[str, Path]:
    return {_name(path): path for top in ("lra", "data_prep") for path in sorted((ROOT / top).rglob("*.py"))}


@cache
def imports() -> dict[str, set[str]]:
    """Module -> the modules of the suite that it imports, and the packages that it lies in, which Python imports."""
    targets = {}
    for module, path in _paths().items():
        parts = module.split(".")
        packages = {".".join(parts[:end]) for end in range(1, len(parts))}
        names = packages | _imported(module, path, ast.walk(ast.parse(path.read_text())))
        targets[module] = (names & _paths().keys()) - {module}
    return targets


@cache
def closure(module: str) -> set[str]:
    """The modules, without packages, that Python loads with a module: imports inside functions do not count."""
    path = _paths()[module]
    direct = (_imported(module, path, ast.parse(path.read_text()).body) & _paths().keys()) - {module}
    modules = direct.union(*map(closure, direct))
    return {name for name in modules if _paths()[name].stem != "__init__"}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def chain() -> list[str]:
    """The modules at which the longest chain of imports enters another folder.

    A chain goes from module to module. Its length is the number of folders that it enters, its first included; a
    folder that it leaves and enters again counts twice.

    Raises:
        ValueError: modules of several folders import each other in a circle.
    """
    depth, then = dict.fromkeys(imports(), 1), {}
    grown = True
    while grown:
        grown = False
        for module, targets in imports().items():
            for target in sorted(targets):
                found = depth[target] + (folder(target) != folder(module))
                if found > len(depth):
                    raise ValueError(f"{module} and {target} are in a circle")
                if found > depth[module]:
                    depth[module], then[module], grown = found, target, True
    module = max(depth, key=depth.get)
    entered = [module]
    while module := then.get(module):
        if folder(module) != folder(entered[-1]):
            entered.append(module)
    return entered


def picture() -> str:
    """A line for each folder, the highest floor first: its floor, its name and the folders that it imports."""
    reached = {name: set() for name in FLOOR}
    for module, targets in imports().items():
        reached[folder(module)] |= {folder(target) for target in targets} - {folder(module), "lra"}
    order = sorted(FLOOR, key=lambda name: (-FLOOR[name], name))
    lines = [f"{FLOOR[name]}  {name:<14}{'  '.join(filter(reached[name].__contains__, order))}" for name in order]
    lines += ["", f"longest chain: {len(chain())} folders", *(f"   {module}" for module in chain())]
    return "\n".join(map(str.rstrip, lines))


if __name__ == "__main__":
    print(picture())
