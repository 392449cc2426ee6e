"""The report and leaderboard pages in a headless Chromium (LRA_CHROMIUM, else on PATH): sorting, filters, viewports."""

import os
import shutil

import pytest
from support import records

from lra.config import CONF
from lra.leaderboard.__main__ import all_lines
from lra.leaderboard.table import HEAD, markdown

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")
NEEDED = "needs playwright (pip install .[browser]) and Chromium (apt-get install chromium, or LRA_CHROMIUM=<path>)"
DOCS = CONF.parent / "docs"
# The style sheet reads these variables of the mkdocs theme.
THEME = """
:root { --md-default-bg-color: #fff; --md-default-fg-color: #000; --md-default-fg-color--lighter: #ccc; }
@media (prefers-color-scheme: dark) {
  :root { --md-default-bg-color: #1e2129; --md-default-fg-color: #ddd; --md-default-fg-color--lighter: #555; }
}
body { background: var(--md-default-bg-color); color: var(--md-default-fg-color); }
.wrap { overflow-x: auto; } .wrap table { overflow: hidden; }
"""


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason=NEEDED)
    path = os.environ.get("LRA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(NEEDED)
    with sync.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=ARGUMENTS, chromium_sandbox=os.geteuid() != 0)
        yield chromium
        chromium.close()


def leaderboard_html():
    """Render the leaderboard as the documentation site does, with its script and style sheet."""
    lines = markdown(all_lines()).splitlines()
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    rows = []
    for line in lines[2:]:
        cell_texts = line.removeprefix("| ").removesuffix(" |").split(" | ")
        rows.append("<tr>" + "".join(f"<td>{cell.strip()}</td>" for cell in cell_texts) + "</tr>")
    return f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>{THEME}{(DOCS / "leaderboard.css").read_text()}</style>
<table><tr><td>another table, before the filters</td></tr></table>
<div id="leaderboard-filters"></div>
<div class="wrap"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>
<script>{(DOCS / "leaderboard.js").read_text()}</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Paths of a report of two studies and of the leaderboard page."""
    runs, _ = records.written(tmp_path_factory.mktemp("runs"))
    leaderboard = tmp_path_factory.mktemp("page") / "leaderboard.html"
    leaderboard.write_text(leaderboard_html(), encoding="utf-8")
    return {"report": runs / "report" / "index.html", "leaderboard": leaderboard}


@pytest.fixture
def visit(browser, pages):
    """Open a page; on teardown, check that its console is empty and that it made no network request."""
    messages, requests = [], []

    def open_page(name="report", width=1280, height=900, scheme="light", anchor=""):
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"file://{pages[name]}{anchor}")
        return page

    yield open_page
    assert messages == [] and {url.split(":")[0] for url in requests} <= {"file", "data"}


def column(page, table, number):
    """Texts of a column in the visible rows of a table."""
    visible_texts = f"rows => rows.filter(row => row.offsetParent).map(row => row.children[{number}].innerText.trim())"
    return page.eval_on_selector_all(f"{selector(table)} tbody tr", visible_texts)


def selector(table):
    return "#leaderboard" if table == "#leaderboard" else f'table[data-name="{table}"]'


def number(text):
    return float(text.split(" ")[0]) if text and text != "FAIL" else None


@pytest.mark.parametrize(
    ("name", "table", "place"), [("report", "psf-table-3", 3), ("leaderboard", "#leaderboard", HEAD.index("Path-X"))]
)
def test_column_sorts_descending_ascending_and_resets(visit, name, table, place):
    page = visit(name)
    printed_texts = column(page, table, place)
    head = page.locator(f"{selector(table)} thead th").nth(place)
    values = sorted((number(text) for text in printed_texts if number(text) is not None), reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    descending = column(page, table, place)
    assert [number(text) for text in descending[: len(values)]] == values
    # Rows without a number stay at the end.
    assert len(descending) == len(printed_texts) and {number(text) for text in descending[len(values) :]} == {None}
    head.get_by_role("button").press("Enter")
    assert [number(text) for text in column(page, table, place)[: len(values)]] == values[::-1]
    head.get_by_role("button").click()
    assert column(page, table, place) == printed_texts and head.get_attribute("aria-sort") is None
    # Text is sorted without regard to case.
    page.locator(f"{selector(table)} thead button").first.click()
    words = column(page, table, 0)
    in_order = "words => [...words].sort((a, b) => a.localeCompare(b, 'en', {sensitivity: 'base'}))"
    assert page.evaluate(in_order, words) == words and len(words) > 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
@pytest.mark.parametrize(("name", "place"), [("report", "html"), ("leaderboard", "#leaderboard tbody td")])
def test_page_fits_viewport_in_both_colour_schemes(visit, name, place, width, height, scheme):
    page = visit(name, width, height, scheme)
    # Nothing overflows horizontally, and the background follows the colour scheme.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate(f"getComputedStyle(document.querySelector('{place}')).backgroundColor")
    levels = [int(part) for part in background.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(levels) < 60) if scheme == "dark" else (min(levels) > 220)
    # Labels of figures are legible.
    for text in page.locator("svg text:visible").all()[:20]:
        assert text.evaluate("text => text.getBoundingClientRect().height") >= 9


def test_leaderboard_keeps_models_visible_while_scrolling(visit):
    page = visit("leaderboard", width=390, height=844)
    page.evaluate("document.querySelector('.wrap').scrollLeft = 5000")
    assert 0 <= page.evaluate("document.querySelector('#leaderboard tbody td').getBoundingClientRect().left") < 20


def test_mechanism_filter_applies_to_tables_curves_and_runs(visit):
    page = visit()
    num_lines = len(column(page, "curformer-table-1", 0))
    page.get_by_label("Filter mechanisms").fill("softmax")
    assert column(page, "study-paper-paper", 0) == ["softmax"]
    assert column(page, "curformer-table-1", 0)[:2] == ["Transformer", "softmax"]
    visible = page.locator("#curves g.series:visible")
    assert visible.count() == 1 and visible.get_attribute("data-label") == "softmax"
    assert page.locator("details.run:visible").count() == 1
    page.locator("details.run:visible > summary").click()
    seeds = page.locator("details.run:visible g.series")
    assert seeds.count() and not page.locator("details.run:visible g.series.filtered").count()
    page.get_by_label("Filter mechanisms").fill("nonesuch")
    assert page.locator("#nothing").is_visible()
    page.get_by_label("Filter mechanisms").fill("")
    assert len(column(page, "curformer-table-1", 0)) == num_lines and not page.locator("#nothing").is_visible()


def test_study_selector_hides_other_studies(visit):
    page = visit()
    page.get_by_label("Study").select_option("other")
    assert column(page, "study-other", 0) == ["cur_abs"] and column(page, "study-paper-paper", 0) == []
    # Runs of this study have another budget, so no paper table shows them.
    assert set(column(page, "curformer-table-1", 1)) == {"published"}


def test_legend_key_toggles_its_series(visit):
    page = visit()
    key = page.locator("#trade .key button", has_text="softmax").first
    series = page.locator('#trade g.series[data-label="softmax"]')
    assert series.is_visible()
    key.click()
    assert not series.is_visible() and key.get_attribute("aria-pressed") == "false"
    key.click()
    assert series.is_visible()


def test_score_link_opens_its_run(visit):
    page = visit()
    page.locator('table[data-name="study-paper-paper"] tbody tr', has_text="softmax").locator("td a").first.click()
    run = page.locator("details.run[open]")
    assert run.count() == 1 and "softmax" in run.locator("summary").inner_text()
    assert run.get_by_role("link", name="metrics.csv").count() == 3
    assert visit(anchor="#run-paper-paper/listops/softmax").locator("details.run[open]").count() == 1


def test_leaderboard_filters_narrow_table_and_update_count(visit):
    page = visit("leaderboard")
    visible = lambda name: column(page, "#leaderboard", HEAD.index(name))
    num_lines = len(visible("model"))
    page.get_by_label("model").fill("former")
    assert all("former" in name.lower() for name in visible("model"))
    page.get_by_label("model").fill("")
    page.get_by_label("protocol").select_option("two-layer")
    page.get_by_label("task").select_option("ListOps")
    page.get_by_label("since").fill("2025")
    assert set(visible("protocol")) == {"two-layer"} and all(visible("ListOps"))
    assert min(map(int, visible("year"))) == 2025
    page.get_by_label("status").select_option("verified")
    models = visible("model")
    assert "cur_abs" in models and "CURformer" not in models
    assert page.locator("#leaderboard-filters output").inner_text() == f"{len(models)} of {num_lines} lines"
