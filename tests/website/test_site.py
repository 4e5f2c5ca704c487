"""The site in a headless browser, opened as files: what it shows, and what it never does."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from axe_playwright_python.sync_playwright import Axe

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.catalogue import REMEDIES
from faultline.catalogue.loading import failures
from faultline.maintain import reports
from faultline.report import page as report_page
from faultline.runs.storage import RunInfo
from tests.support.entries import broken, result
from tests.support.night import sampled
from tests.support.reading import torn
from website import answers, build, docs, facts, pages

WIDTHS = (390, 768, 1440)
PAGES = "index failures/index failures/zero_double_reduction failures/grpo_lora_no_grad stacks/index".split()
SERIOUS = ("serious", "critical")


def every_page(site):
    return sorted(file for file in site.rglob("*.html") if "_static" not in file.parts)


@pytest.mark.slow
def test_every_failure_stack_and_committed_page_is_there(site):
    """Breaks when a page was added and nobody can get to it."""
    missing = [name for name in failures() if not (site / "failures" / f"{name}.html").exists()]
    missing += [name for name in facts.stacks() if not (site / "stacks" / f"{name}.html").exists()]
    sidebar = (site / "docs" / "index.html").read_text(encoding="utf-8").partition("sidebar-tree")[2]
    names = [Path(place).stem for place in docs.places().values() if place.startswith("docs/")]
    missing += [f"docs/{name}" for name in names if name != "index" and f'href="{name}.html"' not in sidebar]
    assert not missing, "the site, or its navigation, lacks these pages"
    files = {file.stem: file.read_text() for file in site.rglob("files/*.py")}
    shown = {name: reports.cell_to_report(failure) for name, failure in failures().items()}
    assert files == {name: cell.id for name, cell in shown.items() if cell}, "other files than of the reports' cells"


@pytest.mark.slow
def test_all_links_within_the_site_hold(site):
    broken = []
    for file in every_page(site):
        for address in re.findall(r'(?:href|src)="([^"]+)"', file.read_text(encoding="utf-8")):
            target, _, fragment = address.partition("#")
            if re.match(r"https?:|mailto:|data:|javascript:", address):
                continue
            there = file.parent / unquote(target.partition("?")[0]) if target else file
            named = f'id="{unquote(fragment)}"' if fragment and there.suffix == ".html" else ""
            if not there.exists() or (named and named not in there.read_text("utf-8")):
                broken.append(f"{file.relative_to(site)}: {address}")
    assert not broken, "links lead nowhere"


@pytest.mark.slow
@pytest.mark.parametrize("pages", ["of each kind", pytest.param("all", marks=pytest.mark.nightly)])
def test_no_text_is_cut_or_torn(page, site, pages):
    """Breaks when a page scrolls sideways, or a narrow column breaks words letter by letter."""
    faults = {}
    every = [*every_page(site)]
    long = {file.parent: file for file in sorted(every, key=lambda file: file.stat().st_size)}
    for file in every if pages == "all" else long.values():
        page.goto(file.as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            faults[str(file.relative_to(site)), width] = torn(page)
    assert not {place: words for place, words in faults.items() if words}


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_a_deep_link_shows_its_heading(page, site, width):
    """Breaks when the heading that an address names is behind the bar at the top."""
    page.set_viewport_size({"width": width, "height": 900})
    hidden = []
    for name in ("failures/zero_double_reduction", "docs/diagnose"):
        address = (site / f"{name}.html").as_uri()
        page.goto(address)
        for fragment in page.evaluate("[...document.querySelectorAll('section[id]')].map(each => each.id)"):
            page.goto("about:blank")
            page.goto(f"{address}#{fragment}")
            at = page.evaluate(
                """id => {
                  const heading = document.getElementById(id).querySelector('h1, h2, h3, h4').getBoundingClientRect()
                  const bar = document.querySelector('.mobile-header').getBoundingClientRect()
                  return [heading.top - bar.bottom, innerHeight - heading.bottom]
                }""",
                fragment,
            )
            if min(at) < 0:
                hidden.append(f"{name}#{fragment}")
    assert not hidden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "width"),
    sampled([("dark", 1440), ("light", 390), ("light", 1440), ("dark", 768)], 4, lambda *looks: looks[0]),
)
def test_axe_has_nothing_serious_to_say(page, site, scheme, width):
    """Breaks when a page can't be used by everybody."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    serious = []
    for name in (*PAGES, "stacks/today", "docs/diagnose"):
        page.goto((site / f"{name}.html").as_uri())
        violations = [each for each in Axe().run(page).response["violations"] if each["impact"] in SERIOUS]
        serious += [f"{name}: {each['id']}: {each['nodes'][0]['html'][:120]}" for each in violations]
    assert not serious


# All that can be used, marked in its order; a switch that is invisible is there if its label is.
STOPS = """() => {
  const wide = element => element.getBoundingClientRect().width > 0
  const visible = element => element.checkVisibility({ visibilityProperty: true }) && wide(element)
  const wanted = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]'
  const stops = [...document.querySelectorAll(wanted)].filter(visible)
  stops.forEach((element, i) => { element.dataset.stop = i })
  return stops.length
}"""
# The number of what has the focus, whether that is seen, and whether it is on the screen.
FOCUSED = """() => {
  const element = document.activeElement
  const outlined = ({ outlineStyle, outlineWidth }) => outlineStyle !== 'none' && parseFloat(outlineWidth) > 0
  const shown = [element, ...(element.labels ?? [])].filter(each => outlined(getComputedStyle(each)))
  const { top, bottom } = element.getBoundingClientRect()
  const bar = document.querySelector('.mobile-header').getBoundingClientRect()
  const above = element.closest('.sidebar-drawer, .toc-drawer, .mobile-header, .sidebar-toggle, .skip-to-content')
  const there = (above || bottom > bar.bottom) && top < innerHeight
  return [Number(element.dataset.stop ?? -1), shown.length > 0, Boolean(there)]
}"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1440])
def test_the_keyboard_reaches_everything(page, site, width):
    """Breaks when something can only be clicked, the order jumps, or nobody sees where the focus is."""
    page.set_viewport_size({"width": width, "height": 900})
    for name in ("index", "failures/zero_double_reduction", "stacks/index"):
        page.goto((site / f"{name}.html").as_uri())
        stops = []
        for _ in range(page.evaluate(STOPS)):
            page.keyboard.press("Tab")
            stops.append(page.evaluate(FOCUSED))
        assert [number for number, _, _ in stops] == [*range(len(stops))], name
        named = page.evaluate("[...document.querySelectorAll('[data-stop]')].map(each => each.outerHTML.slice(0, 120))")
        assert not [named[number] for number, seen, _ in stops if not seen], f"{name}: nobody sees the focus on these"
        assert not [named[number] for number, _, there in stops if not there], f"{name}: these have it off the screen"
    # Menus and filters are operable by it.
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto((site / "index.html").as_uri())
    drawer = page.locator(".sidebar-drawer")
    assert not drawer.is_visible()
    page.focus("#__navigation")
    page.keyboard.press("Space")
    assert drawer.is_visible()
    page.keyboard.press("Space")
    page.focus("select[name=strategy]")
    page.keyboard.type("zero2")
    assert "strategy=zero2" in page.url
    page.keyboard.press("Home")
    assert "strategy" not in page.url


@pytest.mark.slow
def test_the_sites_own_search_finds_pages(page, site):
    """Breaks when the search needs a server."""
    page.goto(f"{(site / 'search.html').as_uri()}?q=reentrant")
    page.get_by_text("found").first.wait_for()
    assert page.locator("#search-results li a").count() > 5


def test_what_the_browser_gets_is_as_it_can_read_it():
    """Breaks when a pattern of Python's fails in a browser, or names aren't broken after their signs and only there."""
    assert answers.for_browser(r"(?s)\A(?P<a>x)\Z") == [r"(?<![\s\S])(?<a>x)(?![\s\S])", "s"]
    broken = '<p a="x_y">a_<wbr>b <code>c.<wbr>d/<wbr>e_<wbr>f 1.2</code></p>'
    assert build.breakable('<p a="x_y">a_b <code>c.d/e_f 1.2</code></p>') == broken
    whole = "<pre>a_b <code>c_d</code></pre><script>let a_b = '<p>c_d'</script>"
    assert build.breakable(whole) == whole
    coloured = '<td><span class="trains">\u2713</span><span class="raises">\u2717</span></td><p>\u2713 trains</p>'
    assert build.breakable("<td>\u2713\u2717</td><p>\u2713 trains</p>") == coloured
    # Claims are escaped, every strategy is code, and a month has its name where its releases are also a stack by name.
    months = {each.month for each in facts.stacks().values() if each.kind == "month"}
    assert facts.stacks()["trl-0.15.2"].title == "2025-03-01 (trl-0.15.2)"
    assert months == {each.title[:10] for each in facts.stacks().values() if each.kind == "month"}
    assert pages.html("`a` <script>") == "<code>a</code> &lt;script&gt;"
    typed = "raises: `ddp`, `zero*`, `fsdp1-full`; with ddp-like"
    assert pages.typed("raises: ddp, `zero*`, fsdp1-full; with ddp-like") == typed


@pytest.mark.parametrize(
    ("name", "claimed"),
    [("zero_double_reduction", "comes back in another form at ZeRO-3"), ("grpo_lora_no_grad", "shows it beforehand")],
)
def test_what_is_no_remedy_stands_apart_from_what_is_recommended(name, claimed):
    """Breaks when a page says "verified" beside a way to fail, as if that were a remedy."""
    made = report_page.template(build.TEMPLATES / "failure.md.j2").render(page=pages.failure(failures()[name]))
    recommended, _, also = made.partition("## What helps")[2].partition("### Also claimed")
    assert claimed in also and claimed not in recommended
    assert recommended.count("<tr><td") == sum(each.kind in REMEDIES for each in failures()[name].claims.values())
    (sentence,) = pages.others(failures()["zero2_ga_wrong_gradient"])
    assert "ddp-static-graph" in sentence and "(ddp_static_graph_no_sync.md)" in sentence, "another failure is unnamed"


def test_a_committed_page_links_to_the_site_and_says_what_only_a_clone_has():
    """Breaks when a link leads nowhere, or somebody who installed the package is told to type what they haven't."""
    text = "[one](../repros/rank0_only_save/README.md#x) [two](https://example.org)"
    relinked = "[one](../failures/rank0_only_save.md#x) [two](https://example.org)"
    assert docs.relinked(text, ROOT / "docs", "docs/a.md") == relinked
    with pytest.raises(UsageError, match="leads nowhere"):
        docs.relinked("[a page](no-such-page.md)", ROOT / "docs", "docs/x.md")
    note = "*Only [a clone](../README.md#install) has `make`.*"
    assert docs.noted("# A\n\nIt tests.\n\n    make test\n") == f"# A\n\nIt tests.\n\n{note}\n\n    make test\n"
    plain = "# A\n\nIt tests.\n\nThey make it: faultline check"
    assert docs.noted(plain) == plain


LOOK = """class_ => {
  const shown = document.createElement('p')
  shown.className = class_
  document.body.append(shown)
  const of = element => getComputedStyle(element)
  const font = of(document.body).fontFamily.replaceAll('"', '').split(', ').slice(0, 5).join()
  return [of(document.body).backgroundColor, of(document.body).color, font, class_ && of(shown).color]
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_has_the_sites_colours_and_font(page, site, tmp_path, scheme):
    """Breaks when somebody who comes from the site takes a run's page for that of another program."""
    report_page.write(tmp_path / "run.html", [broken(), result(strategy="zero2")], RunInfo(finished=True))
    page.emulate_media(color_scheme=scheme)
    page.goto((site / "failures" / "zero_double_reduction.html").as_uri())
    wanted = {name: page.evaluate(LOOK, name) for name in ("verified", "refuted", "conditional", "")}
    page.goto((tmp_path / "run.html").as_uri())
    assert {name: page.evaluate(LOOK, name) for name in wanted} == wanted
