"""Style rules for docstrings, prose, code, files and names that can be checked automatically."""

import ast
import io
import re
import subprocess
import tokenize
from collections import defaultdict
from pathlib import Path

from lra.config import CONF

ROOT = CONF.parent
SOURCES = sorted(path for top in ("lra", "data_prep") for path in (ROOT / top).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Patterns of phrases, with the replacement.
PHRASES = {
    r"(that|those) of": "the noun again",
    r"dev": "validation",
    r"(?<!table )(?<!matrix )rows? (of|in) (a|the|one|each) (batch|data ?set|split)": "sequence, example",
    r"rows side by side": "packed sequences",
    r"told( apart)?|tells? (\w+ )?apart": "reported; significantly different",
    r"beside": "next to, compared with, in addition to",
    r"go(es)? on": "resumes, continues",
    r"share of the way": "normalised score",
    r"(in|with) one line|a line that says": "a message that names the option",
    r"of (one's|its|their|your|his|her|a|our) own": "custom, your own X",
    r"of (ours|yours|theirs)": "our X, your X",
    r"hence|anew|therein|likewise": "so, again, also",
    r"(is|are) refused": "raises an error, is rejected",
    r"words? of (a|the) command line": "override",
    r"in (place of|its place|their place)": "instead of",
}
PROSE = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)
OF = re.compile(r"# (of|that|those|by|from|which) [a-z`*]")
# Permitted number of findings per folder, 0 if absent; a number may only shrink.
FINDINGS = {"data_prep": 6, "lra/attention": 3, "lra/config": 2, "lra/ops": 24, "lra/reference": 9}


def comments_and_strings(text: str):
    """Yield the line and the text of each comment, docstring and message of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def prose(name: str, text: str):
    """Yield the numbered lines of prose: comments and strings of code, comments of yaml, and pages without code."""
    if name.endswith(".py"):
        yield from comments_and_strings(text)
        return
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.startswith("```")
        if name.endswith(".yaml"):
            line = line[line.find("#") :] if "#" in line else ""
        if not is_code:
            yield number, line


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_condition(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("bool", "any", "all")
    return is_call or isinstance(node, ast.Compare | ast.BoolOp)


def dense_code(text: str):
    """Yield the line and the name of each construct that packs several steps into one expression."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.NamedExpr):
            yield node.lineno, "walrus"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if isinstance(node.targets[0], ast.Tuple) and len(node.value.elts) >= 3:
                yield node.lineno, "three values assigned at once"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(is_text, sides)) and any(map(is_condition, sides)):
                yield node.lineno, "text * condition"


def findings(name: str, text: str) -> list[str]:
    """List the phrases and constructs of a file that the style guide replaces."""
    hits = list(dense_code(text)) if name.endswith(".py") else []
    for number, line in prose(name, text):
        hits += [(number, match[0]) for pattern in (PROSE, OF) for match in pattern.finditer(line)]
    return [f"{name}:{number}: {hit}" for number, hit in sorted(hits)]


def test_style_findings_do_not_increase():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    generated = ("docs/results.md", "docs/board_results.md", "docs/leaderboard.md")
    excluded = ("tests/", "runs/", "submissions/", "CHANGELOG.md", *generated)
    matches = defaultdict(list)
    for name in names:
        path = ROOT / name
        if name.endswith((".py", ".md", ".yaml")) and not name.startswith(excluded) and path.exists():
            folder = "/".join(Path(name).parts[:2] if name.startswith("lra/") else Path(name).parts[:1])
            matches[folder] += findings(name, path.read_text())
    for folder, lines in matches.items():
        limit = FINDINGS.get(folder, 0)
        assert len(lines) <= limit, "\n".join([f"{folder} has {len(lines)} findings, not {limit}", *lines])


def test_files_are_short_and_have_specific_names():
    assert not [path for path in SOURCES if len(path.read_text().splitlines()) > 300]
    assert not [path for path in SOURCES + TESTS if path.stem in ("utils", "util", "helpers", "common", "misc")]
