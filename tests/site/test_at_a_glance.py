"""What the site shows first: the matrix of the entrance, its filters, what helps, and what changed between releases."""

import re

import pytest

from faultline.base.packages import TODAY
from faultline.catalogue.loading import failures
from faultline.observations.symptoms import by_symptom, symptom
from faultline.report.run import SYMBOLS
from faultline.site import build, facts, pages


def left(page):
    script = "cards => cards.filter(each => each.checkVisibility()).map(each => each.dataset.failure)"
    return page.eval_on_selector_all(".card", script)


@pytest.mark.slow
def test_the_matrix_shows_every_failure_under_every_family(page, site):
    """Breaks when a cell of it says otherwise than the grid of the failure's page, or a silent one isn't marked."""
    page.goto((site / "index.html").as_uri())
    script = """cards => cards.map(card => [card.dataset.failure,
        [...card.querySelectorAll("td")].map(cell => [cell.dataset.family, cell.className, cell.innerText.trim()])])"""
    rows = dict(page.eval_on_selector_all(".card", script))
    assert rows.keys() == failures().keys()
    for name, cells in rows.items():
        grid = facts.grid(failures()[name], TODAY)
        for family, kind, text in cells:
            columns = [i for i, each in enumerate(grid.strategies) if each.partition("-")[0] == family]
            did = {str(line.cells[i].outcome) for line in grid.lines for i in columns if line.cells[i]}
            marked = {outcome for outcome, symbol in SYMBOLS.items() if symbol in text}
            assert marked <= did and ("diverges" in marked) == (kind == "diverges"), f"{name} under {family}"
            assert marked or did <= {"raises", "impossible"}, f"{name} under {family}"  # another error stops it
    assert any(kind == "diverges" for cells in rows.values() for _, kind, _ in cells)
    seen = page.eval_on_selector_all(".card .sees", "all => all.map(each => each.innerText.split(';')[0])")
    order = [*dict.fromkeys(seen)]
    assert len(order) == len({*seen}) and order[-1] == pages.NOWHERE, "what is seen is not in groups"
    assert not page.locator(".card .helps:visible").count(), "a glance has no lines of details"


@pytest.mark.slow
def test_outcome_and_symptom_leave_what_ends_so(page, site):
    """Breaks when a filter leaves a failure that never ends so in the cells that the other filters leave."""
    page.goto((site / "index.html").as_uri())
    for words, by in by_symptom().items():
        page.select_option("select[name=symptom]", words)
        page.select_option("select[name=release]", TODAY)
        ends = {each.name: facts.on_stacks(each)[TODAY].ends for each in failures().values()}
        wanted = {
            name for name, cells in ends.items() if any(did and symptom(cell, did) == words for cell, did in cells)
        }
        assert {*left(page)} == wanted <= by.keys(), words
    assert page.locator(".card:visible .helps").count() == len(left(page)), "what was asked for has no details"
    page.select_option("select[name=symptom]", "")
    page.select_option("select[name=outcome]", "hangs")
    assert left(page) == ["rank0_only_save"]
    assert "49 more were run there and don't show so" in page.inner_text("#count")
    page.select_option("select[name=strategy]", "ddp")
    assert not left(page), "it hangs elsewhere"
    page.goto(page.url)
    assert not left(page) and page.input_value("select[name=outcome]") == "hangs", "the filter isn't in the address"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "most"), [(390, 2.5), (1440, 1.5)])
def test_what_helps_follows_what_one_sees(page, site, width, most):
    """Breaks when patterns and releases stand above the first remedy again."""
    page.set_viewport_size({"width": width, "height": 900})
    far = {}
    for name in failures():
        page.goto((site / "failures" / f"{name}.html").as_uri())
        titles = page.eval_on_selector_all("article h2", "all => all.map(each => each.firstChild.textContent)")
        assert titles[:2] == ["What you see", "What helps, and what doesn\u2019t"], name
        far[name] = page.evaluate(
            "document.querySelectorAll('article h2')[1].getBoundingClientRect().top / innerHeight"
        )
    assert not {name: screens for name, screens in far.items() if screens > most}
    assert not page.locator(".strip:visible").count(), "boxes of releases are unfolded"


@pytest.mark.slow
def test_no_shadow_lies_over_the_last_column_of_a_phone(page, site):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "failures" / "zero_double_reduction.html").as_uri())
    sizes = page.eval_on_selector(".scroll", "each => getComputedStyle(each).backgroundSize").split(", ")
    assert all(float(size.partition("px")[0]) <= 4 for size in sizes[2:]), "a letter can't be read below it"


@pytest.mark.slow
def test_what_did_not_change_is_folded(page, site):
    page.goto(f"{(site / 'stacks' / 'index.html').as_uri()}?one=deepspeed-0.18.2&two=today")
    folded = page.eval_on_selector_all("#differences details", "all => all.map(each => each.open)")
    titles = page.eval_on_selector_all("#differences summary", "all => all.map(each => each.innerText)")
    assert [re.sub(r": \d+$", "", each) for each in titles] == [
        "On both, as before",
        "On neither",
        "No cell was run on both",
    ]
    assert folded == [False] * 3
    heads = page.eval_on_selector_all("#differences h3", "all => all.map(each => each.innerText)")
    assert heads[0].startswith("Only on ") and heads[-1] == "Versions that differ", "what changed doesn't come first"


def test_symbols_that_stand_alone_have_their_colours():
    coloured = '<td><span class="trains">\u2713</span><span class="raises">\u2717</span></td><p>\u2713 trains</p>'
    assert build.breakable("<td>\u2713\u2717</td><p>\u2713 trains</p>") == coloured
