"""The site in a headless browser, opened as files: what it shows, how it is searched, and what it never does."""

import re
from urllib.parse import unquote

import pytest
from axe_playwright_python.sync_playwright import Axe

from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.site import build, docs, facts, pages

WIDTHS = (390, 768, 1440)
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, built once."""
    patch = pytest.MonkeyPatch()
    patch.setattr(build, "FOLDER", tmp_path_factory.mktemp("generated") / "site")
    build.run()
    yield build.FOLDER
    patch.undo()


@pytest.fixture
def page(chromium, site):
    """A page that notes every request beyond the site's own files, and every error of a script."""
    opened = chromium.new_page()
    opened.strayed = []
    opened.on(
        "request", lambda request: None if request.url.startswith("file:") else opened.strayed.append(request.url)
    )
    opened.on("pageerror", lambda error: opened.strayed.append(str(error)))
    yield opened
    opened.close()
    assert not opened.strayed, "a page asked for something outside of the site, or a script failed"


def every_page(site):
    return sorted(file for file in site.rglob("*.html") if "_static" not in file.parts)


@pytest.mark.slow
def test_every_failure_and_stack_has_a_page(site):
    missing = [name for name in failures() if not (site / "failures" / f"{name}.html").exists()]
    missing += [name for name in facts.stacks() if not (site / "stacks" / f"{name}.html").exists()]
    assert not missing, "the site lacks these pages"


@pytest.mark.slow
def test_all_links_within_the_site_hold(site):
    broken = []
    for file in every_page(site):
        for address in re.findall(r'(?:href|src)="([^"]+)"', file.read_text(encoding="utf-8")):
            target, _, fragment = address.partition("#")
            if re.match(r"https?:|mailto:|data:|javascript:", address):
                continue
            there = file.parent / unquote(target.partition("?")[0]) if target else file
            if not there.exists() or (
                fragment and there.suffix == ".html" and f'id="{unquote(fragment)}"' not in there.read_text("utf-8")
            ):
                broken.append(f"{file.relative_to(site)}: {address}")
    assert not broken, "links lead nowhere"


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_screen(page, site, width):
    page.set_viewport_size({"width": width, "height": 900})
    wide = []
    for file in every_page(site):
        page.goto(file.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(str(file.relative_to(site)))
    assert not wide, "these pages scroll sideways"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "name", ["index", "failures/zero_double_reduction", "stacks/index", "stacks/today", "docs/diagnose"]
)
def test_axe_has_nothing_serious_to_say(page, site, name, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto((site / f"{name}.html").as_uri())
    violations = Axe().run(page).response["violations"]
    serious = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in violations if each["impact"] in SERIOUS]
    assert not serious, "the page can't be used by everybody"


@pytest.mark.slow
def test_a_pasted_error_leaves_the_failures_that_have_it(page, site):
    page.goto((site / "index.html").as_uri())
    page.fill("#error", "AssertionError: The parameter 657 has already been reduced. Gradient computed twice")
    shown = page.locator(".card:visible")
    assert [shown.nth(i).get_attribute("data-failure") for i in range(shown.count())] == ["zero_double_reduction"]
    page.fill("#error", "ValueError: nobody has ever seen this")
    assert page.locator(".card:visible").count() == 0
    assert "None of the catalogue" in page.inner_text("#count"), "an empty page has to say why"
    page.fill("#error", "MiniCPM")
    assert page.locator(".card:visible").count() >= 1, "words of records are searched as well"


@pytest.mark.slow
def test_the_filters_are_in_the_address(page, site):
    page.goto((site / "index.html").as_uri())
    page.select_option("select[name=strategy]", "zero2")
    page.select_option("select[name=stack]", "deepspeed-0.18.2")
    few = page.locator(".card:visible").count()
    assert 0 < few < len(failures())
    page.goto(page.url)
    assert page.locator(".card:visible").count() == few, "an address that was copied shows something else"


@pytest.mark.slow
def test_two_stacks_are_compared(page, site):
    page.goto(f"{(site / 'stacks' / 'index.html').as_uri()}?one=deepspeed-0.18.2&two=today")
    text = page.inner_text("#differences")
    assert "deepspeed 0.18.2 to" in text
    assert "zero2_ga_wrong_gradient" in text.partition("Only on the first")[2].partition("On both")[0]


@pytest.mark.slow
def test_every_pattern_runs_in_a_browser(page, site):
    page.goto((site / "index.html").as_uri())
    bad = page.evaluate(
        """() => {
          const conditions = (error) => error.any_of.flatMap((each) => [...each.present, ...each.absent]);
          const every = FAULTLINE.errors.flatMap((error) => [error.pattern, ...conditions(error)]);
          const runs = ([source, flags]) => { try { return new RegExp(source, flags); } catch { return false; } };
          return every.filter((pattern) => !runs(pattern));
        }"""
    )
    assert not bad, "the entrance passes these over"


def test_a_link_that_leads_nowhere_is_refused():
    with pytest.raises(Exception, match="leads nowhere"):
        docs.relinked("[a page](no-such-page.md)", ROOT / "docs", "docs/x.md")


def test_a_committed_page_links_to_the_pages_of_the_site():
    text = docs.relinked(
        "[one](../repros/rank0_only_save/README.md#x) [two](https://example.org)", ROOT / "docs", "docs/a.md"
    )
    assert text == "[one](../failures/rank0_only_save.md#x) [two](https://example.org)"


def test_a_pattern_of_python_becomes_one_of_the_browser():
    assert facts.for_browser(r"(?s)\A(?P<a>x)\Z") == [r"(?<![\s\S])(?<a>x)(?![\s\S])", "s"]


def test_claims_are_escaped():
    assert pages.html("`a` <script>") == "<code>a</code> &lt;script&gt;"
