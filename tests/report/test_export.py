"""The report's folder: its files, links and page, and the command that writes it."""

import csv
import json
import re
import unicodedata
from html import escape
from urllib.parse import unquote, urlsplit

import pytest
from conftest import printed
from support import records
from support.records import add, diverged, metrics

from lra.names import stem, unique_names
from lra.report import paper_tables
from lra.report.__main__ import report
from lra.report.export import every_table, export
from lra.results import summary
from lra.results.table import Chapter


def exported(runs, out):
    """The report's Markdown and page."""
    export(out, *summary.collect(runs))
    return (out / "report.md").read_text(), (out / "index.html").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return records.written(tmp_path_factory.mktemp("runs"))


def test_everything_is_written_and_read_back(written):
    runs, unread = written
    assert len(unread) == 1 and "other/listops/cur_abs/seed-0/metrics.csv is not a table of evaluations" in unread[0]
    out = runs / "report"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert {"index.html", "report.md", "tables/leaderboard.tex", "tables/study-other.csv"} <= names
    assert {f"figures/paper-paper-{name}" for name in ("curves.png", "speed.pdf", "seeds.svg")} <= names
    assert not [name for name in names if name.endswith(".part")]
    with open(out / "tables" / "study-paper-paper.csv", newline="") as file:
        rows = {row["mechanism"]: row for row in csv.DictReader(file)}
    assert float(rows["cur_abs"]["listops"]) == 39.0 and rows["cur_abs"]["listops n"] == "3"


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(written):
    page = (written[0] / "report" / "index.html").read_text()
    assert "alert(1)<" not in page and "lost/record.json is no record" in page
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page) and "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert {"results", "curves", "trade", "papers", "runs"} <= set(re.findall(r'id="([^"]+)"', page))


def test_the_same_runs_give_the_same_page(written):
    runs, _ = written
    export(runs / "again", summary.collect(runs)[0], records.LOST)
    for name in ("index.html", "report.md", "figures/paper-paper-curves.pdf"):
        assert (runs / "again" / name).read_bytes() == (runs / "report" / name).read_bytes()


def test_links_to_the_files_of_a_run_are_relative_whatever_its_name(tmp_path):
    """As seen from the folder of the runs themselves a study is the first part of a link."""
    for study in ("javascript:alert(1)", "https:", "a b#c?d%41"):
        metrics(add(tmp_path, study=study), [1.0])
    links = set(re.findall(r'href="([^#"][^"]*)"', exported(tmp_path, tmp_path)[1])) - {"data:,"}
    assert len(links) == 3 * 2 and not any(urlsplit(link).scheme for link in links)
    for link in links:
        assert (tmp_path / unquote(urlsplit(link).path)).exists()


def test_no_seed_finished_is_a_report_too(tmp_path):
    diverged(tmp_path, 3)
    _, page = exported(tmp_path, tmp_path / "report")
    assert "have no metrics.csv" in page and "no seed finished" in page


def test_command(tmp_path, monkeypatch, capfd):
    add(tmp_path)
    damaged, out = add(tmp_path, seed=1), tmp_path / "report"
    damaged.write_text(json.dumps({"kind": "train"}))
    stop, shown, said = printed(report, f"runs={tmp_path}", patch=monkeypatch, capfd=capfd)
    assert stop is None and said.startswith(f"skipped: {damaged} is not a record") and said.count("\n") == 1
    assert "39.62 ± 0.62" in shown
    assert shown.endswith(f"written to {out}: index.html, report.md, main.tex, tables, figures\n")
    text = (out / "report.md").read_text()
    assert "| CURformer T1: 39.62<br>CURformer T4: 39.62 ± 0.62 |" in text
    assert "- CURformer T1: CURformer (Francois et al. 2025, Machine Learning 114:139), Table 1\n" in text
    assert "  - mean and spread over 5 runs; Table 1 prints 78.58 (CURformer select=abs: retrieval)\n" in text
    assert f"<li>{escape(str(damaged))} is not a record" in (out / "index.html").read_text()


def test_a_file_name_has_an_end_and_names_stay_apart():
    names = ["mean of " + ", ".join(f"temporal_order_N{n}" for n in range(k)) for k in (20, 21)]
    stems = [stem(name) for name in names]
    assert len(set(stems)) == 2 and all(len(one) == 120 for one in stems) and stem("a, b") == "a-b"


NAMES_THAT_COLLIDE = [
    ("mine v2", "mine-v2"),  # characters that a file name cannot have
    ("Mine", "mine"),  # a file system that ignores case
    ("m\u00fcller", "mu\u0308ller"),  # one that normalises Unicode
    ("a b", "a\tb", "a-b"),
    ("a" * 130, "a" * 131),
    ("a:b", "a?b"),
]


@pytest.mark.parametrize("studies", NAMES_THAT_COLLIDE)
def test_studies_with_similar_names_have_files_of_their_own(studies):
    for simplify in (stem, lambda title: re.sub(r"\W", "_", title)):
        titles = [f"{kind}/{study}" for study in studies for kind in ("study", "over-mean")]
        names = unique_names(titles, simplify)
        assert names == unique_names(titles[::-1], simplify)  # whatever the order
        folded = {unicodedata.normalize("NFKC", name).casefold() for name in names.values()}
        assert len(folded) == len(titles) and all(simplify(name) == name for name in names.values())
    with pytest.raises(ValueError, match="would both be written as"):
        unique_names(["study/a", "study/a"])


def test_a_study_and_task_are_not_taken_for_another_pair():
    assert len(set(unique_names(["a-b/c", "a/b-c", "a-b-c"]).values())) == 3
    assert unique_names(["a-b/c", "a-b-c"])["a-b-c"] == "a-b-c" and unique_names(["a/b.c"]) == {"a/b.c": "a-b.c"}


def test_the_tables_of_studies_with_similar_names_are_all_written(tmp_path):
    for study, test in (("mine v2", 30.0), ("mine-v2", 40.0)):
        metrics(add(tmp_path, study=study, test=test), [1.0])
    _, page = exported(tmp_path, tmp_path / "report")
    files = list((tmp_path / "report" / "tables").glob("study-mine-v2*.csv"))
    assert sorted(row["listops"] for path in files for row in csv.DictReader(path.open())) == ["30.0", "40.0"]
    assert len(list((tmp_path / "report" / "figures").glob("mine-v2*curves*.pdf"))) == 2
    assert {path.stem for path in files} <= set(re.findall('data-name="([^"]*)"', page))
    (runs,) = {len(ids) for ids in [re.findall('id="(run-[^"]*)"', page)]}
    assert runs == 2


def test_the_legend_is_on_the_page_once_and_captions_are_short(written):
    out = written[0] / "report"
    for name in ("report.md", "index.html"):
        assert (out / name).read_text().count("failed seeds, excluded from the mean") == 1
    for table in every_table(summary.collect(written[0])[0], [Chapter("", "", paper_tables.tables({}))]):
        assert len(re.findall(r"[^.]\. [A-Z]", table.about)) <= 1, table.about
