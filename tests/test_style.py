"""Rules of docstrings, files and names that a program can check."""

import ast
import re
from collections import Counter

from lra.config import CONF

ROOT = CONF.parent
SOURCES = sorted(path for top in ("lra", "data_prep") for path in (ROOT / top).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
UNMENDED = ()  # may only shrink
TANGLED = ("studies",)  # test folders; may only shrink
PREPOSITION = re.compile(
    r"(after|among|as|at|before|between|by|for|from|in|into|of|on|over|per|to|under|with|within|without)\b"
)
QUESTION = re.compile(r"(What|How|Where|Which|Who)\b")


def entries(docstring: str) -> list[str]:
    """The entries of ``Args``, each from its colon to the end of its first line."""
    args = re.search(r"^Args:\n((?: .*\n|\n)*)", docstring + "\n", re.MULTILINE)
    return re.findall(r"^    [*\w, `]+: (.*)", args[1], re.MULTILINE) if args else []


def faults(source: str) -> list[str]:
    """Docstring lines that break a rule of style."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    found = [docstring for docstring in map(ast.get_docstring, nodes) if docstring]
    summaries = [docstring.splitlines()[0] for docstring in found if QUESTION.match(docstring)]
    return summaries + [entry for docstring in found for entry in entries(docstring) if PREPOSITION.match(entry)]


def test_the_check_finds_faults():
    source = 'def f(a, b):\n    """What f does.\n\n    Args:\n        a: of b.\n        b: size of a.\n    """\n'
    assert faults(source) == ["What f does.", "of b."]


def test_a_summary_is_no_question_and_an_entry_stands_alone():
    found = {str(path.relative_to(ROOT)): faults(path.read_text()) for path in SOURCES}
    assert not {path: lines for path, lines in found.items() if lines and not path.startswith(UNMENDED)}


def test_a_file_is_short_and_its_name_says_what_is_in_it():
    assert not [path for path in SOURCES if len(path.read_text().splitlines()) > 300]
    assert not [path for path in SOURCES + TESTS if path.stem in ("utils", "util", "helpers", "common", "misc")]


def test_no_test_module_imports_another_and_no_two_have_one_name():
    names = Counter(path.stem for path in TESTS if path.stem.startswith("test_"))
    assert not [name for name, count in names.items() if count > 1]  # pytest would refuse the second one
    modules = {path.stem for path in TESTS if path.stem.startswith("test_")}
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())) if path.parent.name not in TANGLED else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not modules & {part for name in names for part in name.split(".")}, path


def test_one_noun_names_one_class():
    """A command's options are named after it (SweepOptions), so that ``Options`` is no exception either."""
    trees = [ast.parse(path.read_text()) for path in SOURCES]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    doubled = {name for name, count in names.items() if count > 1 and not name.startswith("_")}
    assert len(names) > 200 and not doubled
