"""The leaderboard's page in a real Chromium: sorting, filters, widths and both colour schemes; see tests/report."""

import os
import shutil

import pytest

from lra.config import CONF
from lra.leaderboard.__main__ import all_lines
from lra.leaderboard.table import HEAD, markdown

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NEEDED = "needs playwright (pip install .[browser]) and Chromium (apt-get install chromium, or LRA_CHROMIUM=<path>)"
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
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason=NEEDED)
    path = os.environ.get("LRA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(NEEDED)
    arguments = ("--disable-gpu", "--no-first-run", "--disable-background-networking")
    with sync.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=arguments, chromium_sandbox=os.geteuid() != 0)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "leaderboard.html"
    path.write_text(page_text(), encoding="utf-8")
    return f"file://{path}"


@pytest.fixture
def visit(browser, address):
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


def column(page, name):
    """Texts of a column, of the lines that are shown."""
    number = HEAD.index(name) + 1
    return page.eval_on_selector_all(
        "#leaderboard tbody tr:not([hidden])",
        f"rows => rows.map(row => row.querySelector('td:nth-child({number})').textContent.trim())",
    )


def number(text):
    return float(text.split(" ")[0]) if text and text != "FAIL" else None


def test_a_column_is_sorted_down_up_and_as_printed(visit):
    page = visit()
    printed = column(page, "Path-X")
    button = page.locator("#leaderboard th").nth(HEAD.index("Path-X")).get_by_role("button")
    values = sorted((number(text) for text in printed if number(text) is not None), reverse=True)
    button.click()
    falling = column(page, "Path-X")
    assert [number(text) for text in falling[: len(values)]] == values
    assert {number(text) for text in falling[len(values) :]} == {None}
    button.press("Enter")
    assert [number(text) for text in column(page, "Path-X")[: len(values)]] == values[::-1]
    button.click()
    assert column(page, "Path-X") == printed
    page.locator("#leaderboard th").first.get_by_role("button").click()
    models = column(page, "model")
    assert (
        page.evaluate("names => [...names].sort((a, b) => a.localeCompare(b, 'en', {sensitivity: 'base'}))", models)
        == models
    )


def test_filters_narrow_the_table_and_count_lines(visit):
    page = visit()
    everything = len(column(page, "model"))
    page.get_by_label("model").fill("former")
    assert all("former" in name.lower() for name in column(page, "model"))
    page.get_by_label("model").fill("")
    page.get_by_label("protocol").select_option("two-layer")
    page.get_by_label("task").select_option("ListOps")
    page.get_by_label("since").fill("2025")
    assert set(column(page, "protocol")) == {"two-layer"} and all(column(page, "ListOps"))
    assert min(map(int, column(page, "year"))) == 2025
    page.get_by_label("status").select_option("verified")
    shown = column(page, "model")
    assert "cur_abs" in shown and "CURformer" not in shown
    assert page.locator("#leaderboard-filters output").inner_text() == f"{len(shown)} of {everything} lines"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_fits_the_screen_in_both_schemes(visit, width, height, scheme):
    page = visit(width, height, scheme)
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
