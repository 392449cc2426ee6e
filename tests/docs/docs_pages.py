"""Blocks, inline code and commands of the manuals: lines of ``sh``, and inline code with a program and arguments."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lra import __main__ as cli
from lra.config import CONF

ROOT = CONF.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "lra/studies/README.md",
]
LANGUAGES = ("sh", "python", "yaml", "text")
# Pages whose commands use the example files that they define.
OWN = ("README.md", "docs/board.md", "docs/mechanism.md", "docs/task.md", "docs/tutorial.md")
RUN_WITHOUT_OPTIONS = ("data_prep", "data_prep.bench", "lra.report", "lra.studies.dropin", "lra.studies.inverses")
RUN_WITHOUT_OPTIONS += ("lra.studies.transfer.show",)
PROGRAMS = ("lra", "python", "make", "pip", "torchrun", "srun", "wandb")
PROGRAMS += ("source", "export", "apt-get", "git", "cd", "curl")


class Block(NamedTuple):
    """A fenced block; ``file`` is the path with which the paragraph before it begins."""

    page: str
    line: int
    language: str
    text: str
    file: str | None


class Command(NamedTuple):
    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {shlex.join(self.words)}"


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; raise AssertionError for a language that is not in LANGUAGES."""
    lines, start, paragraph = text.splitlines(), None, ""
    for number, line in enumerate(lines, start=1):
        if not line.startswith("```"):
            paragraph = line if line.strip() and start is None else paragraph
        elif start is None:
            language, start = line[3:], number
            assert language in LANGUAGES, f"{page}:{number}: a block is one of {', '.join(LANGUAGES)}, not {language!r}"
        else:
            file = re.match(r"`([\w./-]+\.(?:py|yaml))`", paragraph)
            yield Block(page, start, language, "\n".join(lines[start : number - 1]) + "\n", file and file[1])
            start, paragraph = None, ""
    assert start is None, f"{page}:{start}: a block without an end"


def spans(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of inline code outside of blocks."""
    prose = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    for match in re.finditer(r"`([^`]+)`", prose):
        yield prose[: match.start()].count("\n") + 1, " ".join(match[1].split())


def commands(page: str, text: str) -> Iterator[Command]:
    for block in blocks(page, text):
        if block.language == "sh":
            for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
                assert not line.endswith("\\"), f"{page}:{number}: one line, please"
                words = shlex.split(line, comments=True)
                if words:
                    yield Command(page, number, tuple(words))
    for number, span in spans(text):
        words = span.split(maxsplit=1)
        if len(words) > 1 and words[0] in PROGRAMS:
            yield Command(page, number, tuple(shlex.split(span)))


def module_form(command: Command) -> Command:
    """Return `lra train task=listops` as `python -m lra.train task=listops`; keep mentions and unknown commands."""
    arguments = list(command.words[1:])
    if command.words[0] != "lra" or arguments[0].startswith("-"):
        return command
    try:
        number, entry = cli.find(arguments)
    except SystemExit:
        return command
    # A name without options is a mention, unless the command runs without any; so is --help.
    options = arguments[number:]
    is_mention = options == ["--help"] or (not options and entry.module not in RUN_WITHOUT_OPTIONS)
    is_function = ":" in entry.module
    return command if is_function or is_mention else command._replace(words=("python", "-m", entry.module, *options))


TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
COMMANDS = [module_form(c) for page, text in TEXTS.items() for c in commands(page, text)]
BLOCKS = [block for page, text in TEXTS.items() for block in blocks(page, text)]
# Files that a page shows in full.
EXAMPLES = {block.file: block for block in BLOCKS if block.file}


def write_examples(folder: Path, *pages: str) -> None:
    """Write the example files of pages; mechanism and config examples also as mine.py and myconf."""
    files = {file: block.text for file, block in EXAMPLES.items() if block.page in (pages or OWN)}
    (mechanism,) = (file for file in EXAMPLES if file.startswith("lra/attention/"))
    package = f"lra.attention.{Path(mechanism).stem}"
    for file, text in list(files.items()):
        if file == mechanism:
            files["mine.py"] = text.replace("from .base", "from lra.attention.base")
        elif file.startswith("conf/"):
            files[f"my{file}"] = text.replace(package, "mine")
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
