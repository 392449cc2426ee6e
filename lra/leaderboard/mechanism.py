"""Facts about each name of ``attn=``, from its file and its class, and the index of docs/mechanisms.md."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..config import CONF
from ..results.table import in_markdown

# Folder that holds the package ``lra``: the repository, or site-packages.
ROOT = Path(__file__).parents[2]
FOLDER = CONF / "attn"
# Names without facts, since they stand for a class of the user.
EXCLUDED = ("custom",)
# Key of a defaults list that sets the block.
BLOCK = "/block"
# The index of docs/mechanisms.md stands between these lines.
BEGIN = "<!-- index: python -m lra.leaderboard write=true -->"
END = "<!-- end of index -->"


@dataclass(frozen=True)
class MechanismFacts:
    """A name of ``attn=``.

    Args:
        name: the name.
        target: dotted name of its class.
        options: options in conf/attn, with their values as written there.
        docstring: docstring of the class.
        module: path of its file in the repository.
        block: name of conf/block that it needs; empty for the default one.
    """

    name: str
    target: str
    options: dict[str, Any]
    docstring: str
    module: str
    block: str

    @property
    def sentence(self) -> str:
        """First line of the docstring."""
        return self.docstring.partition("\n")[0].replace("``", "`")

    @property
    def markdown_sentence(self) -> str:
        """The sentence as Markdown. Its code in backticks stays code."""
        return in_markdown(self.sentence).replace("\\`", "`")

    @property
    def complexity(self) -> str:
        """Complexity that the docstring states, such as O(L m) time; empty without one."""
        # Later paragraphs have exceptions, so the first one with a statement counts.
        for paragraph in self.docstring.split("\n\n"):
            text = " ".join(paragraph.split())
            stated = re.findall(r"O\((?:[^()]|\([^()]*\))*\)(?: (?:time|memory|parameters))?", text)
            if stated:
                return ", ".join(dict.fromkeys(stated))
        return ""

    @property
    def reference(self) -> str:
        """Path of the reference implementation in plain torch; empty without one."""
        # The docstring names the file unless it has the name of the module.
        named = re.search(r"lra/reference/\w+\.py", self.docstring)
        path = named[0] if named else f"lra/reference/{Path(self.module).name}"
        return path if (ROOT / path).is_file() else ""


@cache
def mechanisms() -> dict[str, MechanismFacts]:
    """Read every name of ``attn=``, without importing its class."""
    by_name = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.stem not in EXCLUDED:
            by_name[path.stem] = _mechanism(path.stem)
    return by_name


def _mechanism(name: str) -> MechanismFacts:
    options = read_options(FOLDER / f"{name}.yaml")
    target = options.pop("_target_", "")
    options.pop("_partial_", None)
    block = options.pop(BLOCK, "")
    docstring, module = read_docstring(target)
    # A mechanism that is a whole layer, such as MEGA, is described by its block.
    if block == name:
        tree = read_options(CONF / "block" / f"{block}.yaml")
        docstring, module = read_docstring(tree["_target_"])
    return MechanismFacts(name, target, options, docstring, module, block)


def read_options(path: Path) -> dict[str, Any]:
    """Read the options of a file of conf/attn, after the options of the files that it extends.

    The name of another block than the default one is under the key ``BLOCK``.
    """
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    options: dict[str, Any] = {}
    for entry in tree.pop("defaults", []):
        if isinstance(entry, dict):
            for key, block in entry.items():
                if BLOCK in key:
                    options[BLOCK] = block
            continue
        base = path.parent / f"{entry.partition('@')[0]}.yaml"
        if base.is_file():
            options |= read_options(base)
    for key, value in tree.items():
        if isinstance(value, dict) and isinstance(options.get(key), dict):
            options[key] = options[key] | value
        else:
            options[key] = value
    return options


def read_docstring(target: str) -> tuple[str, str]:
    """Read the docstring of a class from its file.

    Args:
        target: dotted name of the class.

    Returns:
        The docstring and the path of the file in the repository.

    Raises:
        ValueError: the file has no such class.
    """
    module, _, name = target.rpartition(".")
    path = ROOT / f"{module.replace('.', '/')}.py"
    # The class is not imported, since its module may need a GPU or an extra.
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or "", path.relative_to(ROOT).as_posix()
    raise ValueError(f"{path} has no class {name}")


def distinguishing(mechanism: MechanismFacts) -> dict[str, Any]:
    """Block and options in which a mechanism differs from another name of its class; empty if it is the only one."""
    family = [other for other in mechanisms().values() if other.target == mechanism.target]
    # An option that all names of a class share does not distinguish this one.
    differing = {}
    if mechanism.block and any(other.block != mechanism.block for other in family):
        differing["block"] = mechanism.block
    for key, value in mechanism.options.items():
        if any(other.options.get(key) != value for other in family):
            differing[key] = value
    return differing


def with_index(text: str) -> str:
    """Replace the index in the text of docs/mechanisms.md.

    Args:
        text: text of the page.

    Raises:
        ValueError: the page lacks the marks between which the index stands.
    """
    before, begin, remainder = text.partition(BEGIN)
    _, end, after = remainder.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/mechanisms.md must have the lines {BEGIN} and {END}; the index stands between them")
    return f"{before}{BEGIN}\n{index()}\n{END}{after}"


def index() -> str:
    """Render the table of all mechanisms."""
    lines = ["| name | what it computes | differs in | file |", "| --- | --- | --- | --- |"]
    for name, mechanism in mechanisms().items():
        options = ", ".join(f"{key} {format_option(value)}" for key, value in distinguishing(mechanism).items())
        # A bar would end the cell of the table.
        sentence = mechanism.markdown_sentence.replace("|", "\\|")
        # The option ``otherwise`` of flashcur_* is ``cur_${.score}``; the table shows the name that results.
        options = options.replace("${.score}", str(mechanism.options.get("score"))).replace("|", "\\|")
        file = mechanism.module.rpartition("/")[2]
        lines.append(f"| {name} | {sentence} | {options} | [{file}](../{mechanism.module}) |")
    return "\n".join(lines)


def format_option(value: object) -> str:
    """Format the value of an option; a constructor call as its name and options."""
    if isinstance(value, dict):
        inner = {key: item for key, item in value.items() if key != "_partial_"}
        # The name of the class or function without its package.
        target = str(inner.pop("_target_", "")).rpartition(".")[2]
        options = " ".join(f"{key} {format_option(item)}" for key, item in inner.items())
        return f"{target} {options}".strip()
    if isinstance(value, str) and value.startswith("${of_budget:"):
        # The default of budgets that set none of the keys.
        default = value.removesuffix("}").rpartition(",")[2]
        return "None" if default == "null" else default
    # A value with a dollar sign would begin a formula.
    return f"`{value}`" if "$" in str(value) else str(value)
