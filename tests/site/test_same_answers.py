"""The entrance names for an error what `faultline diagnose` names: it repeats the rules, so both are asked the same."""

import functools
import json
import re

import pytest

import faultline
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.diagnose import alone, signs
from faultline.observations import store
from faultline.site import answers, build

pytestmark = pytest.mark.slow

SCRIPTS = [build.HERE / "theme" / name for name in ("silent.js", "diagnose.js")]
ALIKE = "element 0 of tensors does not require grad and does not have a grad_fn"
REDUCED = "Error: AssertionError: The parameter 291 has already been reduced"
LOST = "[rank3]:[E1003 10:11:12 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: x"
MADE = (
    *(f"RuntimeError: {ALIKE} under {strategy}" for strategy in ("DDP", "ZeRO-1", "ZeRO-3", "FSDP2")),
    *(f"{tried} {REDUCED}" for tried in ("I tried use_reentrant=False.", "use_reentrant=False.")),
    LOST,
)


def texts():
    """Errors of one line: of logs of one line, the last lines of other logs, in the pages, as recorded, and made."""
    logs = [file.read_text("utf-8") for file in sorted((ROOT / "fixtures").glob("*/*.log"))]
    lines = [line for log in logs for line in log.strip().splitlines()[-1:]]
    for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        quoted = re.findall(r"`([^`\n]+)`|^(\S.*)$", page.read_text("utf-8"), re.M)
        lines += [a or b for a, b in quoted if signs.error_within(a or b)]
    for error in store.errors().values():
        head = error.text.strip().partition("\n")[0]
        lines += [head, head.partition(": ")[2]]
    return [*dict.fromkeys(line.strip() for line in (*lines, *MADE) if len(line.strip()) > 12)]


@functools.cache
def by_command(text):
    """The answer of the command, with `file` kept out: a line is a text, whatever it is called."""
    try:
        diagnosis = faultline.diagnose(f"{text}\n").diagnosis
    except UsageError:
        return ["nothing to read"]
    return [match.failure.name for match in (diagnosis.several or (diagnosis.match,)) if match]


@pytest.fixture(scope="module")
def page(chromium):
    """A blank page with what the entrance decides by."""
    opened = chromium.new_page()
    opened.add_script_tag(content=f"window.FAULTLINE = {json.dumps({'answers': answers.data()})}")
    for script in SCRIPTS:
        opened.add_script_tag(content=script.read_text("utf-8"))
    yield opened
    opened.close()


def named(page, asked):
    script = "texts => texts.map(each => FAULTLINE.diagnose(each).matches.map(match => match.error.failure))"
    return dict(zip(asked, page.evaluate(script, asked), strict=True))


def test_the_entrance_and_the_command_name_the_same_failures(page):
    """Breaks when the entrance lists a failure of another strategy than the text's, or counts that one's runs; when it
    takes a remedy that was tried for the run's mode, or `Error` for an error's type; or a lost peer for a failure."""
    asked = texts()
    assert len(asked) > 300
    on_page = named(page, asked)
    differing = {text: (by_command(text), on_page[text]) for text in asked if by_command(text) != on_page[text]}
    assert not differing, "the command names the first, the entrance the second"


def test_the_entrance_and_the_command_search_for_the_same_words(page):
    """Breaks when what the entrance doesn't know has no next step, or another one than on the command line."""
    plain = [text for text in texts() if signs.error_within(text) and text.isascii()]  # \w is ASCII's in a browser
    unknown = [text for text in plain if by_command(text) == []]
    unknown += [
        "ValueError: nobody has ever seen this",
        'my.lib.OddError: in /tmp/a/b.py the 3-D "tensor" of torch.Size([2, 3]) has a wrong, odd stride: 0x7f',
    ]
    script = "texts => texts.map(each => FAULTLINE.diagnose(each).search ?? '')"
    searched = {text: words for text, words in zip(unknown, page.evaluate(script, unknown), strict=True) if words}
    commanded = {text: faultline.diagnose(f"{text}\n").diagnosis.search for text in searched}
    differing = {text: (commanded[text], searched[text]) for text in searched if searched[text] != commanded[text]}
    assert len(searched) > 100
    assert not differing, "the command searches for the first, the entrance for the second"


def test_words_alone_leave_several_and_a_lost_peer_none(page):
    assert alone.typed(ALIKE) == "RuntimeError"
    assert len(named(page, [ALIKE])[ALIKE]) == 3 and all(by_command(text) for text in MADE[:4])
    assert page.evaluate("text => FAULTLINE.diagnose(text).answer", LOST) == "aftermath"
    assert by_command(LOST) == []


def test_every_pattern_runs_in_a_browser(page):
    """Breaks when the entrance passes over an error whose pattern only Python can read."""
    bad = page.evaluate(
        """() => {
          const { errors, ran, asked, modes, signs } = FAULTLINE.answers;
          const conditions = ({ any_of, may_be, fits, mechanism }) =>
            [...any_of, ...may_be, ...fits, ...(mechanism?.any_of ?? [])];
          const patterns = (error) => conditions(error).flatMap((each) => [...each.present, ...each.absent]);
          const tables = [...ran, ...asked, ...modes].map(([pattern]) => pattern);
          const ofErrors = errors.flatMap((error) => [error.pattern, ...error.terms, ...patterns(error)]);
          const every = [...tables, signs.victim, signs.watchdog, signs.raised_in, ...ofErrors];
          const runs = ([source, flags]) => { try { return new RegExp(source, flags); } catch { return false; } };
          return every.filter((pattern) => !runs(pattern));
        }"""
    )
    assert not bad
