"""The report's and the leaderboard's pages in a real Chromium: sorting, filters, links, widths, both colour schemes.

LRA_CHROMIUM names the browser, else one of the usual names on the path.
"""

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


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason=NEEDED)
    path = os.environ.get("LRA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(NEEDED)
    with sync.sync_playwright() as play:
        made = play.chromium.launch(executable_path=path, args=ARGUMENTS, chromium_sandbox=os.geteuid() != 0)
        yield made
        made.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return records.written(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def visit(browser, written):
    """Opens the page; at the end nothing may have been said on the console and nothing asked of a network."""
    said, asked = [], []

    def opened(width=1280, height=900, scheme="light", place=""):
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda sent: asked.append(sent.url))
        page.goto(f"file://{written[0]}/report/index.html{place}")
        return page

    yield opened
    assert said == []
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}


def column(page, table, number):
    """Texts of one column of a table, of the lines that are shown."""
    rows = page.locator(f'table[data-name="{table}"] tbody tr:visible')
    return [row.locator("th, td").nth(number).inner_text() for row in rows.all()]


def test_columns_of_numbers_and_of_words_are_sorted_and_put_back(visit):
    page = visit()
    head = page.locator('table[data-name="leaderboard"] thead th').nth(3)
    printed = column(page, "leaderboard", 3)
    numbers = sorted((float(text) for text in printed if text), reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = column(page, "leaderboard", 3)
    assert [float(text) for text in falling if text] == numbers
    assert falling[len(numbers) :] == [""] * (len(printed) - len(numbers))
    head.get_by_role("button").press("Enter")
    assert [float(text) for text in column(page, "leaderboard", 3) if text] == numbers[::-1]
    head.get_by_role("button").click()
    assert column(page, "leaderboard", 3) == printed and head.get_attribute("aria-sort") is None
    page.locator('table[data-name="psf-table-3"] thead button').first.click()
    names = column(page, "psf-table-3", 0)
    assert names == sorted(names, key=str.lower) and len(names) > 20


def test_the_filter_leaves_lines_curves_and_runs_of_a_mechanism(visit):
    page = visit()
    everything = len(column(page, "curformer-table-1", 0))
    page.get_by_label("Filter mechanisms").fill("softmax")
    assert column(page, "study-paper-paper", 0) == ["softmax"]
    assert column(page, "curformer-table-1", 0)[:2] == ["Transformer", "softmax"]
    shown = page.locator("#curves g.series:visible")
    assert shown.count() == 1 and shown.get_attribute("data-label") == "softmax"
    assert page.locator("details.run:visible").count() == 1
    page.locator("details.run:visible > summary").click()
    seeds = page.locator("details.run:visible g.series")
    assert seeds.count() and not page.locator("details.run:visible g.series.filtered").count()
    page.get_by_label("Filter mechanisms").fill("nonesuch")
    assert page.locator("#nothing").is_visible()
    page.get_by_label("Filter mechanisms").fill("")
    assert len(column(page, "curformer-table-1", 0)) == everything and not page.locator("#nothing").is_visible()


def test_one_study_is_chosen(visit):
    page = visit()
    page.get_by_label("Study").select_option("other")
    assert column(page, "study-other", 0) == ["cur_abs"] and column(page, "study-paper-paper", 0) == []
    runs = column(page, "curformer-table-1", 1)
    assert set(runs) == {"published"}  # its budget does not compare


def test_a_key_takes_its_series_away(visit):
    page = visit()
    key = page.locator("#trade .key button", has_text="softmax").first
    series = page.locator('#trade g.series[data-label="softmax"]')
    assert series.is_visible()
    key.click()
    assert not series.is_visible() and key.get_attribute("aria-pressed") == "false"
    key.click()
    assert series.is_visible()


def test_a_score_leads_to_its_runs(visit):
    page = visit()
    page.locator('table[data-name="study-paper-paper"] tbody tr', has_text="softmax").locator("td a").first.click()
    run = page.locator("details.run[open]")
    assert run.count() == 1 and "softmax" in run.locator("summary").inner_text()
    assert run.get_by_role("link", name="metrics.csv").count() == 3
    again = visit(place="#run-paper-paper-listops-softmax")
    assert again.locator("details.run[open]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_fits_the_screen_in_both_schemes(visit, width, height, scheme):
    page = visit(width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    levels = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(levels) < 60) if scheme == "dark" else (min(levels) > 220)
    for text in page.locator("svg text:visible").all()[:20]:
        assert text.evaluate("text => text.getBoundingClientRect().height") >= 9


DOCS = CONF.parent / "docs"
# The variables of the theme that the style sheet uses.
THEME = """
:root { --md-default-bg-color: #fff; --md-default-fg-color: #000; --md-default-fg-color--lighter: #ccc; }
@media (prefers-color-scheme: dark) {
  :root { --md-default-bg-color: #1e2129; --md-default-fg-color: #ddd; --md-default-fg-color--lighter: #555; }
}
body { background: var(--md-default-bg-color); color: var(--md-default-fg-color); }
.wrap { overflow-x: auto; }
"""


def page_text():
    """The page as Markdown renders it, with the script and the style sheet of the site."""
    lines = markdown(all_lines()).splitlines()
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    rows = []
    for line in lines[2:]:
        inner = line.removeprefix("| ").removesuffix(" |").split(" | ")
        rows.append("<tr>" + "".join(f"<td>{cell.strip()}</td>" for cell in inner) + "</tr>")
    return f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>{THEME}{(DOCS / "leaderboard.css").read_text()}</style>
<table><tr><td>another table, before the filters</td></tr></table>
<div id="leaderboard-filters"></div>
<div class="wrap"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>
<script>{(DOCS / "leaderboard.js").read_text()}</script>"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "leaderboard.html"
    path.write_text(page_text(), encoding="utf-8")
    return f"file://{path}"


@pytest.fixture
def visit_leaderboard(browser, address):
    """Open the page; at the end the console is empty."""
    messages = []

    def opened(width=1280, height=900, scheme="light"):
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(address)
        return page

    yield opened
    assert messages == []


def leaderboard_column(page, name):
    """Texts of a column, of the lines that are shown."""
    number = HEAD.index(name) + 1
    return page.eval_on_selector_all(
        "#leaderboard tbody tr:not([hidden])",
        f"rows => rows.map(row => row.querySelector('td:nth-child({number})').textContent.trim())",
    )


def number(text):
    return float(text.split(" ")[0]) if text and text != "FAIL" else None


def test_a_column_is_sorted_down_up_and_as_printed(visit_leaderboard):
    page = visit_leaderboard()
    printed = leaderboard_column(page, "Path-X")
    button = page.locator("#leaderboard th").nth(HEAD.index("Path-X")).get_by_role("button")
    values = sorted((number(text) for text in printed if number(text) is not None), reverse=True)
    button.click()
    falling = leaderboard_column(page, "Path-X")
    assert [number(text) for text in falling[: len(values)]] == values
    assert {number(text) for text in falling[len(values) :]} == {None}
    button.press("Enter")
    assert [number(text) for text in leaderboard_column(page, "Path-X")[: len(values)]] == values[::-1]
    button.click()
    assert leaderboard_column(page, "Path-X") == printed
    page.locator("#leaderboard th").first.get_by_role("button").click()
    models = leaderboard_column(page, "model")
    assert (
        page.evaluate("names => [...names].sort((a, b) => a.localeCompare(b, 'en', {sensitivity: 'base'}))", models)
        == models
    )


def test_filters_narrow_the_table_and_count_lines(visit_leaderboard):
    page = visit_leaderboard()
    everything = len(leaderboard_column(page, "model"))
    page.get_by_label("model").fill("former")
    assert all("former" in name.lower() for name in leaderboard_column(page, "model"))
    page.get_by_label("model").fill("")
    page.get_by_label("protocol").select_option("two-layer")
    page.get_by_label("task").select_option("ListOps")
    page.get_by_label("since").fill("2025")
    assert set(leaderboard_column(page, "protocol")) == {"two-layer"} and all(leaderboard_column(page, "ListOps"))
    assert min(map(int, leaderboard_column(page, "year"))) == 2025
    page.get_by_label("status").select_option("verified")
    shown = leaderboard_column(page, "model")
    assert "cur_abs" in shown and "CURformer" not in shown
    assert page.locator("#leaderboard-filters output").inner_text() == f"{len(shown)} of {everything} lines"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_leaderboard_fits_the_screen_in_both_schemes(visit_leaderboard, width, height, scheme):
    page = visit_leaderboard(width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Names of models break between words, not between letters.
    heights = page.eval_on_selector_all("#leaderboard tbody tr", "rows => rows.map(row => row.clientHeight)")
    assert max(heights) < 120
    # The name of the model stays in view.
    page.evaluate("document.querySelector('.wrap').scrollLeft = 5000")
    left = page.evaluate("document.querySelector('#leaderboard tbody td').getBoundingClientRect().left")
    assert 0 <= left < 20
    ground = page.evaluate("getComputedStyle(document.querySelector('#leaderboard tbody td')).backgroundColor")
    levels = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(levels) < 60) if scheme == "dark" else (min(levels) > 220)
