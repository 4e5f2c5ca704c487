"""The entrance and the comparison in a headless browser: what they show, and what is in their addresses."""

import contextlib
import functools
import http.server
import re
import threading

import pytest

from faultline.catalogue.loading import failures
from faultline.site import facts

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


def test_a_pasted_error_leaves_the_failures_that_have_it(page, site):
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
    lines = page.eval_on_selector_all(
        ".card", "cards => cards.filter(e => !e.hidden).map(e => e.querySelector('.where').innerText)"
    )
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
    """Breaks when cells that only one of them ran make a difference."""
    page.goto(f"{(site / 'stacks' / 'index.html').as_uri()}?one=deepspeed-0.18.2&two=today")
    for fold in page.locator("#differences summary").all():
        fold.click()
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
