"""The entrance, its matrix, and the comparison in a headless browser: what they show, and what is in addresses."""

import contextlib
import functools
import http.server
import re
import threading

import pytest

from faultline.base.packages import TODAY
from faultline.catalogue.loading import failures
from faultline.diagnose.unnamed_view import NEXT
from faultline.observations.symptoms import by_symptom, seen_of
from faultline.report.run import SYMBOLS
from website import facts, pages

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def served(site):
    """The site on a server, with all that this was asked for: addresses, and those that asked."""
    asked = []

    class Noting(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(f"{self.path} {self.headers.get('Referer')}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Noting, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_what_is_pasted_leaves_the_failures_that_have_it(page, site):
    page.goto((site / "index.html").as_uri())
    page.fill("#error", "AssertionError: The parameter 657 has already been reduced. Gradient computed twice")
    shown = page.locator(".card:visible")
    assert [shown.nth(i).get_attribute("data-failure") for i in range(shown.count())] == ["zero_double_reduction"]
    page.fill("#error", "ValueError: nobody has ever seen this")
    assert page.locator(".card:visible").count() == 0
    assert "Not in the catalogue" in page.inner_text("#count"), "an empty page has to say why"
    assert 'Search for ValueError "nobody has ever seen this"' in page.inner_text("#count"), "there is no next step"
    page.fill("#error", "nobody has ever seen this")
    assert page.inner_text("#count") == "No error found in this text.", "one answer has two wordings"
    page.fill("#error", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "plain out of memory" in page.inner_text("#count") and "Search" not in page.inner_text("#count")
    page.fill("#error", "element 0 of tensors does not require grad and does not have a grad_fn")
    assert shown.count() == 3 and "One of several" in page.inner_text("#count")
    assert page.locator(".card:visible .why code").count() and "`" not in page.inner_text("#cards")
    page.fill("#error", "MiniCPM")
    assert page.locator(".card:visible").count() >= 1, "words of records are searched as well"
    # A log without an error is answered as well.
    said, step = page.locator("#count"), "{{'loss': {}, 'grad_norm': {}}}"
    page.fill("#error", "\n".join([step.format(2.3, "0.0")] * 5))
    assert "grad_norm is 0 in every step that it logs: 5 steps" in said.inner_text()
    assert "Not in the catalogue" not in said.inner_text() and shown.count() > 3
    assert "parameters unmoved" in page.locator(".card:visible .why").first.inner_text()
    page.fill("#error", "Loading\nTraceback (most recent call last):\n  File 'x.py', line 3, in <module>")
    assert "its last line names the error: paste that too" in said.inner_text()
    page.fill("#error", "x.py:92: UserWarning: None of the inputs have requires_grad=True. Gradients will be None")
    assert "It is that failure if" in page.locator(".card:visible .why").inner_text()
    assert not page.locator("#next").is_visible()
    page.fill("#error", "Loading the model\nEpoch 1 of 3 begins now and all is fine, says the log\n")
    assert all(label in page.inner_text("#next") for label in NEXT) and not shown.count()


def test_what_is_pasted_is_never_sent(page, site):
    """Breaks when an address that is loaded again, or that is sent to somebody, tells a server what was pasted."""
    with served(site) as (address, asked):
        page.goto(f"{address}/index.html?strategy=zero2")
        page.fill("#error", "AssertionError: The parameter 657 has already been reduced by Mallory")
        page.select_option("select[name=checkpointing]", "reentrant")
        query, _, fragment = page.url.partition("#")
        assert "Mallory" in fragment and "Mallory" not in query and "checkpointing=reentrant" in query
        page.reload()
        assert "Mallory" in page.input_value("#error"), "an address that was copied shows something else"
        page.goto("about:blank")
        page.goto(f"{query}#{fragment}")
        assert page.locator(".card:visible").count() == 1
        page.strayed.clear()
    assert asked and not [each for each in asked if "Mallory" in each]


def test_a_release_shows_what_was_measured_on_it(page, site):
    """Breaks when an entry still says what happens today, or what nobody ran on a release counts as absent there."""
    page.goto(f"{(site / 'index.html').as_uri()}?release=deepspeed-0.18.2")
    lines = page.locator(".card:not([hidden]) .where").all_inner_texts()
    assert lines and all(line.startswith("on deepspeed-0.18.2: ") for line in lines)
    page.select_option("select[name=strategy]", "ddp")
    known = [facts.on_stacks(each).get("deepspeed-0.18.2") for each in failures().values()]
    ran = [each for each in known if each and any(cell.strategy == "ddp" for cell in (*each.shown, *each.clear))]
    assert f"{len(failures()) - len(ran)} more were not run there" in page.inner_text("#count")
    page.select_option("select[name=release]", "")
    assert page.inner_text(".card .where").startswith("today: ")
    # The filters are in the address.
    page.goto((site / "index.html").as_uri())
    page.select_option("select[name=strategy]", "zero2")
    page.select_option("select[name=release]", "deepspeed==0.18.2")
    few = page.locator(".card:visible").count()
    assert 0 < few < len(failures())
    assert "deepspeed-0.18.2" in page.inner_text("#where")
    page.goto(page.url)
    assert page.locator(".card:visible").count() == few, "an address that was copied shows something else"
    page.goto(f"{(site / 'index.html').as_uri()}?release=gone&strategy=fsdp9")
    assert page.locator(".card:visible").count() == len(failures()), "an old address shows nothing at all"


def test_two_stacks_are_compared(page, site):
    """Breaks when cells that only one of them ran make a difference, or what didn't change isn't folded."""
    page.goto(f"{(site / 'stacks' / 'index.html').as_uri()}?one=deepspeed-0.18.2&two=today")
    heads = page.locator("#differences h3").all_inner_texts()
    assert heads[0].startswith("Only on ") and heads[-1] == "Versions that differ", "what changed doesn't come first"
    folds = page.locator("#differences details:not([open]) summary")
    titles = [each.partition(":")[0] for each in folds.all_inner_texts()]
    assert titles == ["On both, as before", "On neither", "No cell was run on both"]
    page.evaluate("document.querySelectorAll('#differences details').forEach(each => { each.open = true })")
    text = page.inner_text("#differences")
    assert re.search(r"deepspeed\s+0\.18\.2\s", text)
    stack, title = "deepspeed-0.18.2", failures()["zero2_ga_wrong_gradient"].title
    ran = [each for each in map(facts.on_stacks, failures().values()) if stack in each]
    assert f"{len(ran)} of {len(failures())} failures" in text, "nobody sees how little was run on both"
    apart = page.locator("#differences details").last
    assert apart.inner_text().startswith(f"No cell was run on both: {len(failures()) - len(ran)}")
    assert apart.locator("a").count() == len(failures()) - len(ran)
    assert title in text.partition(f"Only on {stack}")[2].partition("On both")[0]
    there = [({*each[stack].shown, *each[stack].clear}, {*each["today"].shown}, each[stack].shown) for each in ran]
    assert ("Only on today" in text) == any(cells & today and not before for cells, today, before in there)


def left(page):
    script = "cards => cards.filter(each => each.checkVisibility()).map(each => each.dataset.failure)"
    return page.eval_on_selector_all(".card", script)


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


def test_outcome_and_symptom_leave_what_ends_so(page, site):
    """Breaks when a filter leaves a failure that never ends so in the cells that the other filters leave."""
    page.goto((site / "index.html").as_uri())
    for words, by in by_symptom().items():
        page.select_option("select[name=symptom]", words)
        page.select_option("select[name=release]", TODAY)
        ends = {each.name: facts.on_stacks(each)[TODAY].ends for each in failures().values()}
        wanted = {name for name, cells in ends.items() if any(did and words in seen_of(c, did) for c, did in cells)}
        assert {*left(page)} == wanted <= by.keys(), words
    assert page.locator(".card:visible .helps").count() == len(left(page)), "what was asked for has no details"
    page.select_option("select[name=symptom]", "")
    page.select_option("select[name=outcome]", "hangs")
    assert left(page) == ["rank0_only_save"]
    assert f"{len(failures()) - 1} more were run there and don't show so" in page.inner_text("#count")
    page.select_option("select[name=strategy]", "ddp")
    assert not left(page), "it hangs elsewhere"
    page.goto(page.url)
    assert not left(page) and page.input_value("select[name=outcome]") == "hangs", "the filter isn't in the address"


@pytest.mark.parametrize(("width", "most"), [(390, 2.5), (1440, 1.5)])
def test_what_helps_follows_what_one_sees(page, site, width, most):
    """Breaks when patterns and releases stand above the first remedy again, or a shadow lies over a last column."""
    page.set_viewport_size({"width": width, "height": 900})
    far = {}
    for name in failures():
        page.goto((site / "failures" / f"{name}.html").as_uri())
        titles = page.eval_on_selector_all("article h2", "all => all.map(each => each.firstChild.textContent)")
        assert titles[:2] == ["What you see", "What helps, and what doesn\u2019t"], name
        far[name] = page.eval_on_selector_all("article h2", "all => all[1].getBoundingClientRect().top / innerHeight")
    assert not {name: screens for name, screens in far.items() if screens > most}
    assert not page.locator(".strip:visible").count(), "boxes of releases are unfolded"
    sizes = page.eval_on_selector(".scroll", "each => getComputedStyle(each).backgroundSize").split(", ")
    assert all(float(size.partition("px")[0]) <= 4 for size in sizes[2:]), "a letter can't be read below it"
