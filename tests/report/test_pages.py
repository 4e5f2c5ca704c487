"""The pages in a headless browser, opened as files: what they show, how they are used, and what they never do."""

import re

import pytest

from faultline.base import packages
from faultline.base.text import plain
from faultline.catalogue import loading
from faultline.cells import expected, selection
from faultline.report import page as report_page
from faultline.report import run, terminal
from faultline.runs.results import RankError, RankResult
from faultline.runs.storage import RunInfo
from tests.support import on_gpus
from tests.support.entries import EVIL, FAILURE, broken, entry, evil, result
from tests.support.night import sampled
from tests.support.reading import torn
from tests.support.watching import unreadable, watched

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def everything():
    """A result of every cell of the catalogue, as the suite makes them; every 40th of them is not as expected."""
    matches, rules = [], {name: expected.rules(failure) for name, failure in loading.failures().items()}
    versions = packages.versions()
    for number, cell in enumerate(selection.select(loading.failures(), selection.Selection())):
        wanted = expected.expect(rules[cell.failure], cell, versions)
        did = wanted.outcome, "".join(wanted.signatures[:1])
        if number % 40 == 7:
            did = "trains" if wanted.outcome == "diverges" else "diverges", ""
        error = RankError("RuntimeError", f"m{number}", f"RuntimeError: m{number}") if did[0] == "raises" else None
        ranks = (RankResult(0, error=error, losses=(1.5,), steps=3),)
        verdict = "changed" if number % 40 == 7 else "expected"
        shown = {"evidence": {"wrapper": "Engine"}, "detail": f"detail {number}", "ranks": ranks, "expected": wanted}
        matches.append(entry(cell, *did, verdict, **shown))
    return matches


@pytest.fixture(scope="module")
def some(everything):
    """So few of them that a browser lays them out at once."""
    return everything[7::8]  # with some that are not as expected


@pytest.fixture(scope="module")
def matrix(chromium, tmp_path_factory, everything):
    """The page of all cells, opened once."""
    file = tmp_path_factory.mktemp("matrix") / "report.html"
    report_page.write(file, everything, RunInfo(finished=True))
    with watched(chromium, file) as page:
        page.address = page.url
        yield page


@pytest.fixture
def opened(matrix):
    """The page of all cells as somebody finds it."""
    matrix.goto("about:blank")
    matrix.goto(matrix.address)
    return matrix


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page of a run with hostile text in whatever may hold some, by name."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        for module in (run, terminal, report_page):
            patch.setattr(module, "failures", lambda: {"example": FAILURE})
        every = [evil(), broken(detail=EVIL), result(strategy="zero2")]
        report_page.write(folder / "hostile run.html", every, RunInfo(finished=True))
    return {file.stem: file for file in folder.iterdir()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory, some):
    """The page of a run that was measured, by name."""
    folder = tmp_path_factory.mktemp("measured")
    report_page.write(folder / "run.html", some, RunInfo(finished=True))
    return {file.stem: file for file in folder.iterdir()}


def visible(page):
    """The ids of the cells that the filters leave, as the page shows them."""
    script = "run.cells.filter(c => c.button.checkVisibility() && !c.button.classList.contains('out')).map(c => c.id)"
    return sorted(page.evaluate(script))


def tab_to(page, selector):
    """Press Tab until an element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"no number of tabs leads to {selector}")


def test_what_a_page_may_not_do_is_seen(chromium, tmp_path):
    """Breaks when the others would pass a page that asks the network, whose script fails, or that escapes nothing."""
    file, faults = tmp_path / "bad.html", []
    file.write_text(
        "<!doctype html><meta charset=utf-8><script>gone()</script><script>console.error('x')</script>"
        "<script>open('about:blank')</script><script>fetch('https://example.org/').catch(() => 0)</script>"
        f"<link rel=stylesheet href=https://example.org/x.css><script type=application/json>{plain(EVIL)}</script>"
    )
    with watched(chromium, file, faults) as page:
        page.wait_for_timeout(200)
        assert page.evaluate("window.pwned") == 1 and page.locator("img").count()
    wanted = {"script error: gone is not defined", "console error: x", "window: about:blank", "dialog: 2"}
    assert {*wanted, "request: https://example.org/", "request: https://example.org/x.css"} <= {*faults}


def test_the_whole_matrix_can_be_filtered(opened, everything):
    """Breaks when a filter leaves other cells than it says, or what was sent to somebody shows them something else."""
    assert visible(opened) == sorted(entry.cell.id for entry in everything)
    assert not opened.locator("#gpus").is_visible(), "a run on the CPU says nothing about GPUs"
    assert opened.inner_text("#summary").startswith(f"{len(everything):,} cells, ")

    def left(wanted):
        fitting = sorted(entry.cell.id for entry in everything if wanted(entry))
        assert 0 < len(fitting) < len(everything) and visible(opened) == fitting
        assert opened.inner_text("#count") == f"{len(fitting):,} of {len(everything):,}"
        shown = opened.evaluate("sections.filter(each => !each.element.hidden).map(each => each.name)")
        assert sorted(shown) == sorted({name.split("/")[0] for name in fitting})

    opened.fill("#text", "ZERO3 bf16")
    left(lambda entry: "zero3" in entry.cell.id and "bf16" in entry.cell.id)
    opened.fill("#text", "")
    opened.select_option("#strategy", "zero3")
    opened.select_option("#precision", "bf16")
    left(lambda entry: entry.cell.strategy == "zero3" and entry.cell.precision == "bf16")
    opened.select_option("#strategy", "")
    opened.select_option("#precision", "")
    opened.select_option("#failure", "zero_double_reduction")
    left(lambda entry: entry.cell.failure == "zero_double_reduction")
    opened.check("#unexpected")
    left(lambda entry: entry.cell.failure == "zero_double_reduction" and entry.verdict != "expected")
    opened.select_option("#failure", "")
    left(lambda entry: entry.verdict != "expected")
    assert opened.locator("#list li").count() == 10
    opened.click("#more")
    assert opened.locator("#list li").count() == sum(entry.verdict != "expected" for entry in everything)
    opened.uncheck("#unexpected")
    opened.click(".chip:has-text('raises')")
    left(lambda entry: entry.outcome == "raises")
    opened.click(".chip:has-text('diverges')")
    left(lambda entry: entry.outcome in ("raises", "diverges"))
    assert opened.get_attribute(".chip:has-text('raises')", "aria-pressed") == "true"
    opened.fill("#text", "nothing is called so")
    assert not visible(opened) and opened.inner_text("#count") == f"0 of {len(everything):,}"
    assert "nothing is called so" in opened.inner_text("#nothing"), "an empty page has to say why"
    opened.click("#nothing button")
    assert visible(opened) == sorted(entry.cell.id for entry in everything)
    assert not opened.locator("#nothing").is_visible() and "?" not in opened.url
    # A word that says where a cell is stays with cells; any other may be in its failure's claims and records.
    opened.fill("#text", "MiniCPM")
    shown = {name.split("/")[0] for name in visible(opened)}
    records = {name: " ".join(failure.records).lower() for name, failure in loading.failures().items()}
    assert {name for name, text in records.items() if "minicpm" in text} <= shown < {*records}
    opened.fill("#text", "MiniCPM raises")
    outcomes = {each.cell.id: each.outcome for each in everything}
    assert {outcomes[name] for name in visible(opened)} == {"raises"}
    # The filters are in the address.
    opened.fill("#text", "bf16")
    opened.select_option("#strategy", "zero2")
    opened.click(".chip:has-text('raises')")
    left, address = visible(opened), opened.url
    assert left
    opened.goto("about:blank")
    opened.goto(f"{address}#{left[0]}")
    assert opened.inner_text("#name") == left[0]
    opened.keyboard.press("Escape")
    assert visible(opened) == left and opened.url == address
    opened.goto("about:blank")
    opened.goto(f"{address.partition('?')[0]}?strategy=gone&failure=gone&outcomes=gone")
    assert len(visible(opened)) == len(everything)


def test_a_run_on_gpus_stands_beside_the_cpu(chromium, tmp_path):
    """Breaks when the page of a run on GPUs lacks its table, is wider than a phone, or a difference leads nowhere."""
    every = [on_gpus.did(on_gpus.on("zero2"), "diverges", "differs"), on_gpus.did(on_gpus.on("ddp"), share=2)]
    report_page.write(tmp_path / "report.html", every, RunInfo(finished=True, machine=on_gpus.MACHINE))
    with watched(chromium, tmp_path / "report.html", viewport={"width": 390, "height": 900}) as page:
        part = page.locator("#gpus")
        assert part.locator("tbody tr").all_inner_texts() == [f"{on_gpus.NAME}\t1\t\t1\t\t"]
        assert "1 cell ran with several ranks on one GPU" in part.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        part.locator("summary").click()
        part.locator("a").click()
        assert on_gpus.on("zero2").id in page.locator("#dialog").inner_text()
        assert not unreadable(page)


@pytest.mark.parametrize("width", sampled([360, 768, 1440], 3))
def test_no_word_is_torn(chromium, measured, width):
    """Breaks when a narrow column breaks a verdict letter by letter, a text is cut off, or a page scrolls sideways."""
    for name, file in measured.items():
        with watched(chromium, file, viewport={"width": width, "height": 900}, has_touch=width == 360) as page:
            assert torn(page) == [], name
            for outcome in ("raises", "diverges") if name == "run" else ():
                page.evaluate("name => show(run.cells.find(cell => cell.outcome === name).id)", outcome)
                assert torn(page) == [], outcome


def test_a_link_of_the_contents_shows_the_heading(chromium, measured):
    """Breaks when the heading that a link leads to is behind the bar of filters, which a narrow page doesn't keep."""
    under = """() => {
      const bar = getComputedStyle(document.querySelector('.bar')).position === 'sticky'
      const bottom = bar ? document.querySelector('.bar').getBoundingClientRect().bottom : 0
      return document.querySelector('#zero_double_reduction h2').getBoundingClientRect().top - bottom
    }"""
    with watched(chromium, measured["run"]) as page:
        address = page.url
        for width in (390, 768, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto("about:blank")
            page.goto(address)
            page.evaluate("byId('contents').open = true")
            assert page.locator("#contents li").count() == len(loading.failures())
            page.click("#contents a[href='#zero_double_reduction']")
            assert 0 <= page.evaluate(under) < 100, width
            there = page.url
            page.goto("about:blank")
            page.goto(there)
            assert 0 <= page.evaluate(under) < 100, f"a page that was opened there scrolls elsewhere at {width}"


def test_a_cells_details_are_its_own(opened, everything):
    """Breaks when the panel shows another cell's error, or the address leads to another cell."""
    entry = next(entry for entry in everything if entry.outcome == "raises")
    number = opened.evaluate("id => run.cells.findIndex(cell => cell.id === id)", entry.cell.id)
    opened.click(f".cell[data-cell='{number}']")
    panel = opened.locator("#dialog")
    for text in (entry.cell.id, entry.detail, f"raises ({entry.signature})", f"--cell {entry.cell.id}", "wrapper"):
        assert text in panel.inner_text(), f"the panel lacks {text}"
    assert entry.ranks[0].error.traceback in panel.locator("pre").all_inner_texts()
    assert opened.evaluate("decodeURI(location.hash)") == "#" + entry.cell.id
    panel.get_by_text("Next", exact=True).click()
    assert opened.inner_text("#name") != entry.cell.id
    panel.get_by_text("Previous", exact=True).click()
    assert opened.inner_text("#name") == entry.cell.id
    panel.get_by_text("Copy", exact=True).click()
    panel.get_by_text(re.compile("Copied|Selected")).wait_for()
    panel.get_by_text("Close", exact=True).click()
    assert not panel.is_visible() and opened.evaluate("location.hash") == ""
    opened.evaluate("id => { location.hash = '#' + id }", entry.cell.id)
    opened.wait_for_selector("#dialog[open]")
    assert opened.inner_text("#name") == entry.cell.id


def test_everything_can_be_done_with_the_keyboard(opened, everything):
    """Breaks when someone without a mouse can't filter, open a cell, go to the next or come back."""
    press = opened.keyboard.press
    tab_to(opened, "#text")
    opened.keyboard.type("zero_double_reduction raises")
    tab_to(opened, "#unexpected")
    press("Space")
    assert opened.is_checked("#unexpected")
    press("Space")
    tab_to(opened, ".chip[style*=raises]")
    press("Enter")
    relevant = [entry for entry in everything if entry.cell.failure == "zero_double_reduction"]
    assert visible(opened) == sorted(entry.cell.id for entry in relevant if entry.outcome == "raises")
    tab_to(opened, "#zero_double_reduction .cell")
    first = opened.evaluate("document.activeElement.dataset.cell")
    press("ArrowRight")
    second = opened.evaluate("document.activeElement.dataset.cell")
    assert first != second and not opened.evaluate("document.activeElement.classList.contains('out')")
    press("Enter")
    name = opened.inner_text("#name")
    assert name == opened.evaluate("number => run.cells[number].id", second)
    tab_to(opened, "#dialog nav :last-child")
    press("Enter")
    after = opened.inner_text("#name")
    assert after != name
    assert opened.evaluate("document.activeElement.textContent") == "Next", "Next took the focus away with it"
    press("Enter")
    assert opened.inner_text("#name") != after
    press("Escape")
    assert not opened.locator("#dialog").is_visible()
    assert opened.evaluate("document.activeElement.dataset.cell") == second, "the way back is lost"
    tab_to(opened, "#theme")


def test_hostile_text_is_shown_as_text(chromium, hostile):
    """Breaks when a traceback, log or name of a result can run a script, load a picture or make an element."""
    for name, file in hostile.items():
        with watched(chromium, file) as page:
            if name == "hostile run":
                for number in page.evaluate("run.cells.map((_, number) => number)"):
                    page.evaluate("number => show(run.cells[number].id)", number)
                    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
                page.evaluate("open(run.cells[0])")
                shown = page.locator("#dialog pre").all_inner_texts()
                assert plain(EVIL).strip() in [text.strip() for text in shown], "the traceback was damaged or not shown"
                page.evaluate("dialog.close()")
                page.fill("#text", "<img")
                assert len(visible(page)) == 2, "a text that looks like an element isn't found"
                policy = page.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
                assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'")
            elements = "img, iframe, object, embed, link, base, form, a[href^='javascript']"
            assert not page.locator(elements).count(), name
            assert page.evaluate("window.pwned") is None, f"{name}: a text became a script"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_all_text_can_be_read(chromium, measured, hostile, some, mode):
    """Breaks when a text has less contrast than WCAG's level AA asks for, or a page glares white on a dark desktop."""
    for name, file in (measured | hostile).items():
        with watched(chromium, file, color_scheme=mode) as page:
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            bright = sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 128
            assert bright == (mode == "light"), f"{name} is {ground}"
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            assert unreadable(page) == [], name
            if name == "run":
                for outcome in sorted({entry.outcome for entry in some}):
                    page.evaluate("name => show(run.cells.find(cell => cell.outcome === name).id)", outcome)
                    assert unreadable(page) == [], outcome
                page.evaluate("dialog.close()")
                page.hover(".cell.bad")
                page.hover("#zero_double_reduction .cell:not(.bad)")
                assert unreadable(page) == [], "under the pointer"
                faint = "h1 { opacity: .3 } ::placeholder { color: light-dark(#999, #444) !important }"
                page.add_style_tag(content=faint)
                assert len(unreadable(page)) == 2, "what is hard to read isn't seen"


def test_the_button_chooses_for_good(chromium, measured):
    """Breaks when the choice of light or dark does nothing, or is lost with the page."""
    with watched(chromium, measured["run"], color_scheme="light") as opened:
        paper = "getComputedStyle(document.body).backgroundColor"
        light = opened.evaluate(paper)
        assert opened.inner_text("#theme") == "Dark"
        opened.click("#theme")
        dark = opened.evaluate(paper)
        assert dark != light and opened.inner_text("#theme") == "Light" and unreadable(opened) == []
        opened.reload()
        assert opened.evaluate(paper) == dark
        opened.click("#theme")
        assert opened.evaluate(paper) == light


def test_a_page_says_what_it_is_also_of_nothing_and_without_scripts(chromium, measured, tmp_path):
    file = tmp_path / "2026-11-23T16-06-18" / "report.html"
    file.parent.mkdir()
    report_page.write(file, [], RunInfo(finished=False))
    with watched(chromium, file) as page:
        assert page.inner_text("#summary").startswith("0 cells")
    report_page.write(file, [broken(), result(strategy="zero2")], RunInfo(finished=True))
    with watched(chromium, file) as page:
        assert page.title() == page.inner_text("h1") == "Faultline run: 2 cells, 1 unexpected, 2026-11-23"
    with watched(chromium, file, java_script_enabled=False) as page:
        assert "faultline report" in page.inner_text("noscript")
