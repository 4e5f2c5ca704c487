"""The pages in a headless browser, opened as files: what they show, how they are used, and what they never do."""

import os
import re
import subprocess
import sys

import pytest

from faultline.base import packages, paths
from faultline.base.text import plain
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells import expected, selection
from faultline.maintain import screenshots
from faultline.observations.store import Stack
from faultline.observations.timeline import UNINSTALLABLE, Timeline, committed
from faultline.releases import is_safe_view, timeline_view
from faultline.releases.is_safe_view import Answer
from faultline.report import page as report_page
from faultline.report import run, terminal
from faultline.runs import results
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.storage import RunInfo
from tests.support import on_gpus, reports
from tests.support.changes import cells as some_cells
from tests.support.changes import compared
from tests.support.entries import EVIL, FAILURE, broken, evil, result
from tests.support.night import sampled
from tests.support.reading import torn
from tests.support.watching import unreadable, watched

pytestmark = pytest.mark.slow

MODES = ("light", "dark")


@pytest.fixture
def example(monkeypatch):
    """A catalogue of one made-up failure."""
    for module in (run, terminal, report_page):
        monkeypatch.setattr(module, "failures", lambda: {"example": FAILURE})


@pytest.fixture
def written(tmp_path):
    def write(matches, **facts):
        report_page.write(tmp_path / "report.html", matches, RunInfo(**{"finished": True} | facts))
        return tmp_path / "report.html"

    return write


@pytest.fixture(scope="module")
def everything():
    """A result of every cell of the catalogue, as the suite makes them; every 40th of them is not as expected."""
    matches, rules = [], {name: expected.rules(failure) for name, failure in loading.failures().items()}
    versions = packages.versions()
    for number, cell in enumerate(selection.select(loading.failures(), selection.Selection())):
        wanted = expected.expect(rules[cell.failure], cell, versions)
        outcome = Outcome(wanted.outcome)
        if number % 40 == 7:
            outcome = Outcome.DIVERGES if outcome is not Outcome.DIVERGES else Outcome.TRAINS
        signature = next(iter(wanted.signatures), "") if outcome == wanted.outcome else ""
        error = reports.error("RuntimeError", f"m{number}") if outcome is Outcome.RAISES else None
        end = reports.end(losses=[1.5], evidence={"wrapper": "Engine", "units": [1, 2]}, error=error)
        ended = Ended([end], seconds=1.0)
        judged = Judgement(outcome, signature, detail=f"detail {number}")
        stated = "expected" if outcome == wanted.outcome else "changed"
        matches.append(results.result(cell, judged, ended, {"torch": "2.13.0"}, wanted, stated))
    return matches


@pytest.fixture(scope="module")
def some(everything):
    """So few of them that a browser lays them out at once."""
    return everything[7::8]  # with some that are not as expected


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


# ----------------------------------------------------------------------------------------------------- the tester


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<script>gone()</script>", "script error"),
        ("<script>Promise.reject(new Error('late'))</script>", "script error"),
        ("<script>console.error('x')</script>", "console error"),
        ("<script>alert(1)</script>", "dialog"),
        ("<script>open('about:blank')</script>", "window"),
        ("<script>fetch('https://example.org/').catch(() => 0)</script>", "request: https://example.org/"),
        ("<img src=//example.org/x.png>", "request"),
        ("<link rel=stylesheet href=https://example.org/x.css>", "request: https://example.org/x.css"),
        ("<style>body { background: url(https://example.org/x.png) }</style>", "request"),
        ("<iframe src=https://example.org/></iframe>", "request"),
        ("<form action=https://example.org/></form><script>document.forms[0].submit()</script>", "request"),
        ("<meta http-equiv=refresh content='0;url=https://example.org/'>", "request"),
        ("<meta http-equiv=Content-Security-Policy content=\"img-src 'none'\"><img src=x.png>", "console error"),
    ],
)
def test_what_a_page_may_not_do_is_seen(chromium, tmp_path, body, fault):
    """Breaks when the other tests here would pass a page that asks the network or whose script fails."""
    file, matches = tmp_path / "bad.html", []
    file.write_text(f"<!doctype html>{body}")
    with watched(chromium, file, matches) as opened:
        opened.wait_for_timeout(200)
    assert any(each.startswith(fault) for each in matches), matches


def test_a_page_that_does_nothing_wrong_passes(chromium, tmp_path):
    """A link that nobody follows, a picture within the page and a caught error are no faults."""
    file = tmp_path / "good.html"
    file.write_text(
        "<!doctype html><link rel=icon href=data:,><a href=https://example.org/>x</a><p>fetch('https://example.org')</p>"
        "<script>try { gone() } catch {}; location.hash = '#x'</script>"
    )
    with watched(chromium, file) as opened:
        opened.click("p")


def test_a_text_that_is_hard_to_read_is_seen(chromium, tmp_path):
    """Breaks when the contrast of colours isn't measured; #767676 is the lightest grey that white allows."""
    file = tmp_path / "grey.html"
    file.write_text(
        "<!doctype html><body style='background: #fff; color: #767676'>well<p style='color: #787878'>worse</p>"
        "<p style='color: #949494; font-size: 24px'>large</p><p style='color: #979797; font-size: 24px'>larger</p>"
        "<p style='color: #000'><i style='opacity: .3'>faint</i></p><div hidden style='color: #eee'>unseen</div>"
        "<p style='background: #000'><b style='color: #333'>black</b></p><svg><text y=9 fill='#aaa'>drawn</text></svg>"
        "<p style='color: #fff; background: rgb(0 0 0 / .3)'>veiled</p><input placeholder=hint style='color: #000'>"
    )
    with watched(chromium, file) as opened:
        opened.add_style_tag(content="input::placeholder { color: #ccc }")
        printed = unreadable(opened)
    assert [each.split(": ")[-1] for each in printed] == [
        "worse",
        "larger",
        "faint",
        "black",
        "drawn",
        "veiled",
        "hint",
    ]


def test_where_there_is_no_browser_the_tests_say_so(tmp_path):
    """Breaks when whoever lacks a browser believes that the pages were tested, or can't test anything else."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"{__file__}::test_the_pages_of_nothing_are_whole",
    ]
    none = os.environ | {"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    done = subprocess.run(words, cwd=paths.ROOT, env=none, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    printed = [line for line in done.stdout.splitlines() if "playwright install" in line]
    assert printed == [f"the HTML pages were not tested (1 skipped): {screenshots.HINT}"]


# ------------------------------------------------------------------------------------------------ a run of all cells


def test_the_whole_matrix_can_be_filtered(chromium, written, everything):
    """Breaks when a filter leaves other cells than it says, or hides a failure that has some."""
    with watched(chromium, written(everything)) as opened:
        assert visible(opened) == sorted(entry.cell.id for entry in everything)
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


def test_claims_and_records_are_searched_too(chromium, written, everything):
    """Breaks when a word of a report upstream leads nowhere, or one that says where a cell is leads to everything."""
    with watched(chromium, written(everything)) as opened:
        opened.fill("#text", "MiniCPM")
        shown = {name.split("/")[0] for name in visible(opened)}
        records = {name: " ".join(failure.records).lower() for name, failure in loading.failures().items()}
        assert {name for name, text in records.items() if "minicpm" in text} <= shown < {*records}
        opened.fill("#text", "MiniCPM raises")
        outcomes = {entry.cell.id: entry.outcome for entry in everything}
        assert {outcomes[name] for name in visible(opened)} == {"raises"}


def test_the_filters_are_in_the_address(chromium, written, everything):
    """Breaks when a page that was sent to somebody shows them something else."""
    with watched(chromium, written(everything)) as opened:
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


@pytest.mark.parametrize("width", [390, 1440])
def test_a_run_on_gpus_stands_beside_the_cpu(chromium, written, width):
    """Breaks when the page of a run on GPUs lacks its table, is wider than a phone, or a difference leads nowhere."""
    every = [on_gpus.did(on_gpus.on("zero2"), "diverges", "differs"), on_gpus.did(on_gpus.on("ddp"), share=2)]
    with watched(chromium, written(every, machine=on_gpus.MACHINE), viewport={"width": width, "height": 900}) as page:
        part = page.locator("#gpus")
        assert part.locator("tbody tr").all_inner_texts() == [f"{on_gpus.NAME}\t1\t\t1\t\t"]
        assert "1 cell ran with several ranks on one GPU" in part.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        part.locator("summary").click()
        part.locator("a").click()
        assert on_gpus.on("zero2").id in page.locator("#dialog").inner_text()
        assert not unreadable(page)


def test_a_run_on_the_cpu_has_no_part_about_gpus(chromium, written, everything):
    """Breaks when the page of a run on the CPU shows an empty heading about GPUs."""
    with watched(chromium, written(everything[:3])) as page:
        assert not page.locator("#gpus").is_visible()


def test_the_title_says_what_the_page_is(chromium, tmp_path):
    folder = tmp_path / "2026-11-23T16-06-18"
    folder.mkdir()
    report_page.write(folder / "report.html", [broken(), result(strategy="zero2")], RunInfo(finished=True))
    with watched(chromium, folder / "report.html") as opened:
        assert opened.title() == opened.inner_text("h1") == "Faultline run: 2 cells, 1 unexpected, 2026-11-23"


@pytest.mark.parametrize("width", sampled([390, 768, 1440], 3))
def test_no_word_is_torn(chromium, written, some, tmp_path, width):
    """Breaks when a narrow column breaks a verdict letter by letter, or a text is cut off."""
    size = {"viewport": {"width": width, "height": 900}}
    with watched(chromium, written(some), **size) as opened:
        assert torn(opened) == []
        for outcome in ("raises", "diverges"):
            opened.evaluate("name => show(run.cells.find(cell => cell.outcome === name).id)", outcome)
            assert torn(opened) == [], outcome
    timeline_view.page(tmp_path / "timeline.html", committed())
    with watched(chromium, tmp_path / "timeline.html", **size) as opened:
        assert torn(opened) == []
    names = {"candidate": "trl==1.2.0", "baseline": "what is installed", "packages": [("trl", "1.1.0", "1.2.0")]}
    changed = compared(["trains", "trains"], ["raises:torn:Torn apart", "diverges:differs:"])
    (tmp_path / "verdict.html").write_text(is_safe_view.page(Answer(comparison=changed, **names)), encoding="utf-8")
    with watched(chromium, tmp_path / "verdict.html", **size) as opened:
        assert torn(opened) == []


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_a_link_of_the_contents_shows_the_heading(chromium, written, some, width):
    """Breaks when the heading that a link leads to is behind the bar of filters."""
    with watched(chromium, written(some), viewport={"width": width, "height": 900}) as opened:
        opened.evaluate("byId('contents').open = true")
        assert opened.locator("#contents li").count() == len(loading.failures())
        under = """() => {
          const bar = getComputedStyle(document.querySelector('.bar')).position === 'sticky'
          const bottom = bar ? document.querySelector('.bar').getBoundingClientRect().bottom : 0
          return document.querySelector('#zero_double_reduction h2').getBoundingClientRect().top - bottom
        }"""
        opened.click("#contents a[href='#zero_double_reduction']")
        assert 0 <= opened.evaluate(under) < 100
        address = opened.url
        opened.goto("about:blank")
        opened.goto(address)
        assert 0 <= opened.evaluate(under) < 100, "a page that was opened there scrolls elsewhere"


def test_the_timeline_shows_versions_without_a_pointer(chromium, tmp_path):
    drawn = committed()
    timeline_view.page(tmp_path / "timeline.html", drawn)
    with watched(chromium, tmp_path / "timeline.html") as opened:
        shown = opened.locator("table").first.inner_text()
    assert all(version in shown for stack in drawn.stacks for version in stack.versions.values())


def test_a_cells_details_are_its_own(chromium, written, everything):
    """Breaks when the panel shows another cell's error, or the address leads to another cell."""
    with watched(chromium, written(everything)) as opened:
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


def test_an_address_leads_to_a_cell(chromium, written):
    entry = broken()
    with watched(chromium, written([entry])) as opened:
        opened.evaluate("id => { location.hash = '#' + id }", entry.cell.id)
        opened.wait_for_selector("#dialog[open]")
        assert opened.inner_text("#name") == entry.cell.id


def test_everything_can_be_done_with_the_keyboard(chromium, written, everything):
    """Breaks when someone without a mouse can't filter, open a cell, go to the next or come back."""
    with watched(chromium, written(everything)) as opened:
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


# ------------------------------------------------------------------------------------------------------ hostile texts


def pages(folder):
    """Every kind of page with hostile text in whatever may hold some, by name."""
    report_page.write(
        folder / "run.html", [evil(), broken(detail=EVIL), result(strategy="zero2")], RunInfo(finished=True)
    )
    texts = {"candidate": EVIL, "baseline": EVIL, "stack": EVIL, "repeat": EVIL, "packages": [(EVIL, EVIL, "1")]}
    answer = Answer(comparison=compared(["trains", "trains"], [f"raises:other:{EVIL}", f"crashes:x:{EVIL}"]), **texts)
    (folder / "verdict.html").write_text(is_safe_view.page(answer), encoding="utf-8")
    cells = some_cells(3)
    days = ("2026-01-01", "2026-02-01")
    stacks = [Stack(days[0], {EVIL: EVIL}, days[0]), Stack(days[1], {}, days[1], EVIL)]
    did = [(Did("trains"), UNINSTALLABLE), (Did("raises", EVIL), Did("trains")), (Did(EVIL), Did("hangs"))]
    timeline_view.page(folder / "timeline.html", Timeline(stacks, dict(zip(cells, did, strict=True))))
    return {file.stem: file for file in folder.glob("*.html")}


@pytest.mark.usefixtures("example")
def test_hostile_text_is_shown_as_text(chromium, tmp_path):
    """Breaks when a traceback, log or name of a result can run a script, load a picture or make an element."""
    for name, file in pages(tmp_path).items():
        with watched(chromium, file) as opened:
            if name == "run":
                numbers = opened.evaluate("run.cells.map((_, number) => number)")
                for number in numbers:
                    opened.evaluate("number => show(run.cells[number].id)", number)
                    opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
                opened.evaluate("open(run.cells[0])")
                shown = opened.locator("#dialog pre").all_inner_texts()
                assert plain(EVIL).strip() in [text.strip() for text in shown], "the traceback was damaged or not shown"
                opened.evaluate("dialog.close()")
                opened.fill("#text", "<img")
                assert len(visible(opened)) == 2, "a text that looks like an element isn't found"
            assert not opened.locator("img, iframe, object, embed, link, base, form, a[href^='javascript']").count(), (
                name
            )
            assert opened.evaluate("window.pwned") is None, f"{name}: a text became a script"


def test_a_script_in_the_data_would_be_seen(chromium, written, tmp_path):
    """Breaks when the hostile texts would do no harm on a page that doesn't escape them."""
    file, matches = tmp_path / "open.html", []
    file.write_text(f"<!doctype html><meta charset=utf-8><script type=application/json>{plain(EVIL)}</script>")
    with watched(chromium, file, matches) as opened:
        opened.wait_for_timeout(200)
        assert opened.evaluate("window.pwned") == 1 and opened.locator("img").count()
    assert any(each.startswith("request") for each in matches)


# ------------------------------------------------------------------------------------------------------ light and dark


@pytest.mark.parametrize("mode", sampled(MODES, 2))
def test_all_text_can_be_read(chromium, tmp_path, monkeypatch, some, mode):
    """Breaks when a text of a page has less contrast than WCAG's level AA asks for, in light or dark."""
    report_page.write(tmp_path / "run.html", some, RunInfo(finished=True))
    with watched(chromium, tmp_path / "run.html", color_scheme=mode) as opened:
        assert unreadable(opened) == []
        for outcome in sorted({entry.outcome for entry in some}):
            number = next(i for i, entry in enumerate(some) if entry.outcome == outcome)
            opened.evaluate("id => show(id)", some[number].cell.id)
            assert unreadable(opened) == [], outcome
        opened.evaluate("dialog.close()")
        opened.hover(".cell.bad")
        opened.hover("#zero_double_reduction .cell:not(.bad)")
        assert unreadable(opened) == [], "under the pointer"
    for module in (run, terminal, report_page):
        monkeypatch.setattr(module, "failures", lambda: {"example": FAILURE})
    for name, file in pages(tmp_path).items():
        with watched(chromium, file, color_scheme=mode) as opened:
            opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            assert unreadable(opened) == [], name
    drawn = committed()
    timeline_view.page(tmp_path / "timeline.html", drawn)
    with watched(chromium, tmp_path / "timeline.html", color_scheme=mode) as opened:
        assert unreadable(opened) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_pages_follow_the_systems_choice(chromium, tmp_path, mode):
    """Breaks when a page is glaring white on a dark desktop, or the other way round."""
    for name, file in pages(tmp_path).items():
        with watched(chromium, file, color_scheme=mode) as opened:
            ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
            bright = sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 128
            assert bright == (mode == "light"), f"{name} is {ground}"


def test_the_button_chooses_for_good(chromium, written):
    """Breaks when the choice of light or dark does nothing, or is lost with the page."""
    with watched(chromium, written([broken()]), color_scheme="light") as opened:
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


# ------------------------------------------------------------------------------------------------------- other readers


def test_without_scripts_the_page_says_where_its_tables_are(chromium, written):
    with watched(chromium, written([broken()]), java_script_enabled=False) as opened:
        assert "faultline report" in opened.inner_text("noscript")


def test_on_a_phone_nothing_is_wider_than_the_screen(chromium, written, some):
    """Breaks when the whole page scrolls sideways; wide tables do so by themselves."""
    with watched(chromium, written(some), viewport={"width": 360, "height": 740}, has_touch=True) as opened:
        assert opened.evaluate("document.documentElement.scrollWidth") <= 360
        opened.evaluate("show(run.cells[0].id)")
        assert opened.evaluate("dialog.scrollWidth") <= 360


def test_the_pages_of_nothing_are_whole(chromium, written):
    with watched(chromium, written([], finished=False)) as opened:
        assert opened.inner_text("#summary").startswith("0 cells")
