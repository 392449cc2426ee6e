"""The report command and its output: files, links, the page, and tables as Markdown, CSV and LaTeX."""

import csv
import io
import json
import re
import shutil
import subprocess
from html import escape
from urllib.parse import unquote

import pytest
from support import records
from support.records import add, diverged, metrics

from lra.names import stem, unique_names
from lra.report import latex, paper_tables
from lra.report.__main__ import report
from lra.report.export import every_table, export
from lra.results import summary
from lra.results.figures import COLUMN_WIDTH, TEXT_WIDTH
from lra.results.table import Cell, Chapter, Table, frame


def page_of(runs, out):
    """Write the report into a folder and return the HTML of its page."""
    export(out, *summary.collect(runs))
    return (out / "index.html").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return records.written(tmp_path_factory.mktemp("runs"))


def test_report_writes_all_files_and_scores(written):
    runs, unread = written
    assert len(unread) == 1 and "other/listops/cur_abs/seed-0/metrics.csv is not a table of evaluations" in unread[0]
    out = runs / "report"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert {"index.html", "report.md", "tables/leaderboard.tex", "tables/study-other.csv"} <= names
    assert {f"figures/paper-paper-{name}" for name in ("curves.png", "speed.pdf", "seeds.svg")} <= names
    # The labels of vertical axes are upright, and no temporary file is left.
    assert "rotate(-90" in (out / "index.html").read_text() and not any(name.endswith(".part") for name in names)
    rows = {row["mechanism"]: row for row in csv.DictReader((out / "tables" / "study-paper-paper.csv").open())}
    assert float(rows["cur_abs"]["listops"]) == 39.0 and rows["cur_abs"]["listops n"] == "3"
    # A second report of the same runs is byte-identical.
    export(runs / "again", summary.collect(runs)[0], records.LOST)
    for name in ("index.html", "report.md", "figures/paper-paper-curves.pdf"):
        assert (runs / "again" / name).read_bytes() == (out / name).read_bytes()


def test_page_is_self_contained_and_escapes_names(written):
    page = (written[0] / "report" / "index.html").read_text()
    assert "alert(1)<" not in page and "lost/record.json is no record" in page
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page) and "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    files = re.findall(r'href="([^#"]+/record.json)"', page)
    assert len(files) == 10 and all((written[0] / "report" / unquote(file)).exists() for file in files)
    assert {"results", "curves", "trade", "papers", "runs"} <= set(re.findall(r'id="([^"]+)"', page))
    # The legend appears once, and captions are short.
    for text in (page, (written[0] / "report" / "report.md").read_text()):
        assert text.count("failed seeds, excluded from the mean") == 1
    for table in every_table(summary.collect(written[0])[0], [Chapter("", "", paper_tables.tables({}))]):
        assert len(re.findall(r"[^.]\. [A-Z]", table.about)) <= 1, table.about


def test_report_without_finished_seed_is_written(tmp_path):
    (diverged(tmp_path, 3).parents[3] / "fresh_test.csv").write_text("seed\n0\n")
    page = page_of(tmp_path, tmp_path / "report")
    assert "have no metrics.csv" in page and "no seed finished" in page and "fresh_test.csv" in page
    assert "listops failed" in (tmp_path / "report" / "tables" / "study-paper-paper.csv").read_text()


def test_report_command_prints_tables_and_writes_files(tmp_path, call):
    add(tmp_path)
    damaged, out = add(tmp_path, seed=1), tmp_path / "report"
    damaged.write_text(json.dumps({"kind": "train"}))
    stop, stdout, log = call(report, f"runs={tmp_path}")
    assert stop is None and log.startswith(f"skipped: {damaged} is not a record") and log.count("\n") == 1
    assert "39.62 ± 0.62" in stdout
    assert stdout.endswith(f"written to {out}: index.html, report.md, main.tex, tables, figures\n")
    text = (out / "report.md").read_text()
    assert "| CURformer T1: 39.62<br>CURformer T4: 39.62 ± 0.62 |" in text
    assert "- CURformer T1: CURformer (Francois et al. 2025, Machine Learning 114:139), Table 1\n" in text
    assert "  - mean and spread over 5 runs; Table 1 prints 78.58 (CURformer select=abs: retrieval)\n" in text
    assert f"<li>{escape(str(damaged))} is not a record" in (out / "index.html").read_text()


# Equal file names after replacing characters, cutting, or ignoring case.
@pytest.mark.parametrize("studies", [("mine v2", "mine-v2"), ("Mine", "mine"), ("a" * 130, "a" * 131)])
def test_similar_study_names_get_distinct_file_names(studies):
    for simplify in (stem, lambda title: re.sub(r"\W", "_", title)):
        titles = [f"{kind}/{study}" for study in studies for kind in ("study", "over-mean")]
        names = unique_names(titles, simplify)
        assert names == unique_names(titles[::-1], simplify)
        assert len({name.casefold() for name in names.values()}) == len(titles)
        assert all(simplify(name) == name for name in names.values())
    # A file name is short, and a title that is its own name keeps it.
    assert len(stem("a" * 130)) == 120 and stem("a, b") == "a-b"
    assert unique_names(["a-b/c", "a-b-c"])["a-b-c"] == "a-b-c" and unique_names(["a/b.c"]) == {"a/b.c": "a-b.c"}


def test_studies_with_colliding_names_keep_separate_files(tmp_path):
    for study, test in (("mine v2", 30.0), ("mine-v2", 40.0)):
        metrics(add(tmp_path, study=study, test=test), [1.0])
    page = page_of(tmp_path, tmp_path / "report")
    files = list((tmp_path / "report" / "tables").glob("study-mine-v2*.csv"))
    assert sorted(row["listops"] for path in files for row in csv.DictReader(path.open())) == ["30.0", "40.0"]
    assert len(list((tmp_path / "report" / "figures").glob("mine-v2*curves*.pdf"))) == 2
    assert {path.stem for path in files} <= set(re.findall('data-name="([^"]*)"', page))
    assert len(re.findall('id="(run-[^"]*)"', page)) == 2


HEAD = ("mechanism", "listops", "text", "remarks")
ROWS = [
    ["cur_abs", Cell(text="38.01 ± 1.50", value=38.0125, std=1.5, n=4, mark="best"), Cell(), "short"],
    ["a|b & 50%", Cell(text="FAIL"), Cell(text="+1,024.5", value=1.0, mark="tied", note="as printed"), "a text " * 9],
]


def table(head=HEAD, rows=ROWS, title="A & B", words=("mechanism", "remarks")):
    keys = [("s", "cur_abs", ""), ("", "", "")][-len(rows) :]
    return Table(name="g", title=title, about="Said 5% of.", cells=frame(head, rows, keys), words=words)


def test_markdown_rounds_and_csv_has_unrounded_numbers():
    assert table().markdown().splitlines() == [
        "| mechanism | listops | text | remarks |",
        "| --- | ---: | ---: | --- |",
        "| `cur_abs` | **38.01 ± 1.50** |  | short |",
        f"| a\\|b & 50% | FAIL | +1,024.5 ≈ | {'a text ' * 9} |",
    ]
    top_row, bottom_row = csv.DictReader(io.StringIO(table().csv()))
    numbers = {"listops": "38.0125", "listops std": "1.5", "listops n": "4"}
    assert top_row == {"mechanism": "cur_abs", **numbers, "text": "", "remarks": "short"}
    assert (bottom_row["listops"], bottom_row["text"]) == ("FAIL", "1.0")
    cells = frame(("mechanism", "error"), [["a", Cell(text="3.2e-07", value=3.2e-7, std=6.4e-8, n=2)]])
    small = Table(name="x", title="x", about="x", cells=cells, errors=("error",))
    assert small.csv() == "mechanism,error,error se,error n\na,3.2e-07,6.4e-08,2\n"


def environments(text):
    """Return the bodies of the tabular environments; fail if environments or braces are not balanced."""
    bodies, stack = [], []
    for command in re.finditer(r"(?<!\\)\\(begin|end)\{(\w+\*?)\}", text):
        if command[1] == "begin":
            stack.append((command[2], command.end()))
            continue
        name, start = stack.pop()
        assert name == command[2]
        if name == "tabular":
            bodies.append(text[start : command.start()])
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace(r"\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert not stack and depth == 0 and not re.search(r"[^\x20-\x7eÀ-ſ\n]", text)
    return bodies


def grid(body):
    """Split a tabular body into rows of cells; fail if the rows differ in length."""
    lines = [line for line in body.split("\n") if line.endswith(r"\\")]
    cells = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
    assert len({len(line) for line in cells}) == 1
    return [[cell.strip() for cell in line] for line in cells]


def test_latex_cells_marks_and_footnotes():
    text = latex.format_table(table())
    (body,) = environments(text)
    assert grid(body) == [
        ["{mechanism}", "{listops}", "{text}"],
        [r"cur\_abs\textsuperscript{a}", r"\bfseries 38.01 {\bfseries ~$\pm$ 1.50}", "{}"],
        [r"a\textbar{}b \& 50\%\textsuperscript{b}", "{FAIL}", r"+1024.5 { $\approx$\textsuperscript{c}}"],
    ]
    assert r"\caption{A \& B.}\label{tab:g}" in text and r"\begin{table*}" in text and r"Said 5\% of." in text
    assert r"\textsuperscript{a}~remarks: short." in text and r"\textsuperscript{c}~as printed." in text
    assert "S[table-format={2.2{" in text and "S[table-format={+4.1{" in text
    # Marks of footnotes continue after zz.
    footnotes = latex.Footnotes()
    marks = [footnotes.mark(f"note {i}") for i in range(704)]
    assert [marks[i] for i in (0, 25, 26, 51, 52, 701, 702, 703)] == ["a", "z", "aa", "az", "ba", "zz", "aaa", "aab"]
    assert len(set(marks)) == 704 and footnotes.mark("note 3") == "d" and footnotes.mark("") == ""


def test_latex_splits_wide_and_tall_tables():
    head = ("mechanism", *(f"task{i}" for i in range(9)))
    rows = [["cur_abs", *(Cell(text=f"{10 * i}.25 ± 1.50", value=1.0) for i in range(9))]]
    wide, narrow = (environments(latex.format_table(table(head, rows), width)) for width in (20, COLUMN_WIDTH))
    assert len(wide) == 1 and len(narrow) > 2
    assert r"\begin{table}" in latex.format_table(table(head, rows), COLUMN_WIDTH)
    lines = [grid(body) for body in narrow]
    assert {line[0] for block in lines for line in block} == {"{mechanism}", r"cur\_abs"}
    assert [cell for block in lines for cell in block[0][1:]] == [f"{{task{i}}}" for i in range(9)]
    # A tall table continues below another caption.
    rows = [[f"m{i}", Cell(text="1.0", value=1.0)] for i in range(120)]
    text = latex.format_table(Table(name="g", title="T", about="", cells=frame(("mechanism", "x"), rows)))
    assert text.count(r"\caption{T (continued).}") == 2 and text.count(r"\label{") == 1
    assert [line[0] for body in environments(text) for line in grid(body)[1:]] == [f"m{i}" for i in range(120)]


def test_latex_number_cells_are_split_from_their_text():
    cells = {"3.2e-07": "3.2e-7", "150%": r"150 {\%}", "5/5": "5 {/5}", "12.5 (rates)": "12.5 {~(rates)}", "-": "{-}"}
    for text, cell in cells.items():
        (body,) = environments(latex.format_table(table(("mechanism", "x"), [["a", Cell(text=text)]])))
        assert grid(body)[1][1] == cell


def test_latex_document_includes_every_table(written):
    out = written[0] / "report"
    table_paths = list((out / "tables").glob("*.tex"))
    document = (out / "main.tex").read_text()
    environments(document)
    assert sorted(re.findall(r"\\input\{tables/(.*?)\.tex\}", document)) == sorted(path.stem for path in table_paths)
    assert all((out / path).exists() for path in re.findall(r"\\includegraphics\{(.*?)\}", document))
    for path in table_paths:
        for body in environments(path.read_text()):
            grid(body)


def test_show_option_selects_tables(tmp_path, without_figures):
    add(tmp_path, label="mine")
    studies = summary.collect(tmp_path)[0]
    export(tmp_path / "out", studies, [], show=["study-paper-paper"])
    assert (tmp_path / "out" / "main.tex").read_text().count(r"\input") == 1
    with pytest.raises(ValueError, match=r"show: unknown name nope; the names are study-paper-paper, .*leaderboard"):
        export(tmp_path / "wrong", studies, [], show=["nope"])
    assert not list(tmp_path.glob("wrong/*/*"))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="apt-get install texlive-science")
@pytest.mark.parametrize("width", [COLUMN_WIDTH, TEXT_WIDTH])
def test_latex_document_compiles_without_overfull_boxes(tmp_path, width):
    records.write_runs(tmp_path)
    add(tmp_path, label="mine", study="my_own.1é")
    export(tmp_path / "paper", summary.collect(tmp_path)[0], [], width=width)
    command = ["pdflatex", "-interaction=nonstopmode", "main.tex"]
    result = subprocess.run(command, cwd=tmp_path / "paper", capture_output=True, check=False)
    log = (tmp_path / "paper" / "main.log").read_text(errors="replace")
    assert result.returncode == 0 and not re.search("Overfull|Float too large|Error", log), log[-3000:]
