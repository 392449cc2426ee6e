"""Tables as Markdown, CSV and LaTeX: no number is lost, nothing is acted on, the document is whole and compiles."""

import csv
import io
import re
import shutil
import subprocess

import pytest
from support import records
from support.records import add

from lra.report import latex
from lra.report.export import export
from lra.results import summary
from lra.results.figures import COLUMN, TEXT
from lra.results.table import Cell, Table, frame

HEAD = ("mechanism", "listops", "text", "remarks")
ROWS = [
    ["cur_abs", Cell(text="38.01 ± 1.50", value=38.0125, std=1.5, n=4, mark="best"), Cell(), "short"],
    ["a|b & 50%", Cell(text="FAIL"), Cell(text="+1,024.5", value=1.0, mark="tied", note="as printed"), "a text " * 9],
]


def table(head=HEAD, rows=ROWS, title="A & B", words=("mechanism", "remarks")):
    keys = [("s", "cur_abs", ""), ("", "", "")][-len(rows) :]
    return Table(name="g", title=title, about="Said 5% of.", cells=frame(head, rows, keys), words=words)


def test_markdown():
    assert table().markdown().splitlines() == [
        "| mechanism | listops | text | remarks |",
        "| --- | ---: | ---: | --- |",
        "| `cur_abs` | **38.01 ± 1.50** |  | short |",
        f"| a\\|b & 50% | FAIL | +1,024.5 ≈ | {'a text ' * 9} |",
    ]


def test_csv_holds_the_numbers_in_full():
    first, second = csv.DictReader(io.StringIO(table().csv()))
    numbers = {"listops": "38.0125", "listops std": "1.5", "listops n": "4"}
    assert first == {"mechanism": "cur_abs", **numbers, "text": "", "remarks": "short"}
    assert (second["listops"], second["text"]) == ("FAIL", "1.0")
    cells = frame(("mechanism", "error"), [["a", Cell(text="3.2e-07", value=3.2e-7, std=6.4e-8, n=2)]])
    small = Table(name="x", title="x", about="x", cells=cells, errors=("error",))
    assert small.csv() == "mechanism,error,error se,error n\na,3.2e-07,6.4e-08,2\n"


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@sum(a1)", "\t=1", "\r=1", "\n=1"])
def test_csv_holds_no_formula(text):
    hostile = table((text, "listops"), [[text, text]])
    told = "'" + text.replace("\r", "\n")
    assert list(csv.reader(io.StringIO(hostile.csv(), newline=""))) == [[told, "listops"], [told, told]]
    plain = table(("a", "b"), [["-", Cell(text="-1.5", value=-1.5)]])
    assert list(csv.reader(io.StringIO(plain.csv())))[1] == ["-", "-1.5"]


def environments(text):
    """The bodies of the tabulars; AssertionError if environments or braces do not nest."""
    bodies, stack = [], []
    for found in re.finditer(r"(?<!\\)\\(begin|end)\{(\w+\*?)\}", text):
        if found[1] == "begin":
            stack.append((found[2], found.end()))
        else:
            name, start = stack.pop()
            assert name == found[2]
            bodies += [text[start : found.start()]] * (name == "tabular")
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace(r"\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert not stack and depth == 0 and not re.search(r"[^\x20-\x7eÀ-ſ\n]", text)
    return bodies


def grid(body):
    """The cells of a tabular by line; all lines must have as many."""
    lines = [line for line in body.split("\n") if line.endswith(r"\\")]
    cells = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
    assert len({len(line) for line in cells}) == 1
    return [[cell.strip() for cell in line] for line in cells]


def test_cells_marks_and_footnotes():
    text = latex.table(table())
    (body,) = environments(text)
    assert grid(body) == [
        ["{mechanism}", "{listops}", "{text}"],
        [r"cur\_abs\textsuperscript{a}", r"\bfseries 38.01 {\bfseries ~$\pm$ 1.50}", "{}"],
        [r"a\textbar{}b \& 50\%\textsuperscript{b}", "{FAIL}", r"+1024.5 { $\approx$\textsuperscript{c}}"],
    ]
    assert r"\caption{A \& B.}\label{tab:g}" in text and r"\begin{table*}" in text and r"Said 5\% of." in text
    assert r"\textsuperscript{a}~remarks: short." in text and r"\textsuperscript{c}~as printed." in text
    assert "S[table-format={2.2{" in text and "S[table-format={+4.1{" in text


def test_a_narrow_table_stands_in_blocks_of_columns_with_the_first_one_again():
    head = ("mechanism", *(f"task{i}" for i in range(9)))
    rows = [["cur_abs", *(Cell(text=f"{10 * i}.25 ± 1.50", value=1.0) for i in range(9))]]
    wide, narrow = (environments(latex.table(table(head, rows), width)) for width in (20, COLUMN))
    assert len(wide) == 1 and len(narrow) > 2 and r"\begin{table}" in latex.table(table(head, rows), COLUMN)
    lines = [grid(body) for body in narrow]
    assert {line[0] for block in lines for line in block} == {"{mechanism}", r"cur\_abs"}
    assert [cell for block in lines for cell in block[0][1:]] == [f"{{task{i}}}" for i in range(9)]


def test_a_tall_table_is_continued():
    rows = [[f"m{i}", Cell(text="1.0", value=1.0)] for i in range(120)]
    made = Table(name="g", title="T", about="", cells=frame(("mechanism", "x"), rows))
    text = latex.table(made)
    assert text.count(r"\caption{T (continued).}") == 2 and text.count(r"\label{") == 1
    assert [line[0] for body in environments(text) for line in grid(body)[1:]] == [f"m{i}" for i in range(120)]


@pytest.mark.parametrize(
    ("text", "cell"),
    {"3.2e-07": "3.2e-7", "150%": r"150 {\%}", "5/5": "5 {/5}", "12.5 (rates)": "12.5 {~(rates)}", "-": "{-}"}.items(),
)
def test_what_is_a_number(text, cell):
    (body,) = environments(latex.table(table(("mechanism", "x"), [["a", Cell(text=text)]])))
    assert grid(body)[1][1] == cell


def test_a_newline_ends_no_line():
    text = latex.table(table(("mechanism", "list\n\nops", "\\evil{"), [["a\nb", "c", "d"]], title="one\ntwo"))
    assert grid(environments(text)[0]) == [
        ["{mechanism}", "{list ops}", r"{\textbackslash{}evil\{}"],
        ["a b", "{c}", "{d}"],
    ]
    assert r"\caption{one two.}" in text


@pytest.fixture(params=[COLUMN, TEXT], scope="module")
def written(request, tmp_path_factory):
    """The report of ``support.records`` at a width, with a mechanism that no paper names."""
    runs, _ = records.written(tmp_path_factory.mktemp("runs"))
    add(runs, label="mine", study="my_own.1é")
    export(runs / "paper", summary.collect(runs)[0], [], width=request.param)
    return runs / "paper"


def test_every_file_is_whole_and_in_the_document(written):
    names = [path.stem for path in (written / "tables").glob("*.tex")]
    document = (written / "main.tex").read_text()
    environments(document)
    assert sorted(re.findall(r"\\input\{tables/(.*?)\.tex\}", document)) == sorted(names)
    assert all((written / path).exists() for path in re.findall(r"\\includegraphics\{(.*?)\}", document))
    for name in names:
        for body in environments((written / "tables" / f"{name}.tex").read_text()):
            grid(body)


def test_some_tables_and_figures_are_chosen(tmp_path):
    add(tmp_path, label="mine")
    studies = summary.collect(tmp_path)[0]
    export(tmp_path / "out", studies, [], show=["study-paper-paper"])
    assert (tmp_path / "out" / "main.tex").read_text().count(r"\input") == 1
    with pytest.raises(ValueError, match=r"show: there is no nope; there is study-paper-paper, .*leaderboard"):
        export(tmp_path / "out", studies, [], show=["nope"])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="apt-get install texlive-science")
def test_the_document_compiles_and_nothing_sticks_out(written):
    command = ["pdflatex", "-interaction=nonstopmode", "main.tex"]
    done = subprocess.run(command, cwd=written, capture_output=True, check=False)
    log = (written / "main.log").read_text(errors="replace")
    assert done.returncode == 0 and not re.search("Overfull|Float too large|Error", log), log[-3000:]
