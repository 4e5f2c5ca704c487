"""The entrance says of a text what `faultline diagnose` says: it repeats the rules, so both are asked the same."""

import functools
import itertools
import json
import re
from random import Random

import pytest

import faultline
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures, symptoms
from faultline.diagnose import signs
from faultline.maintain import score_reports
from faultline.observations import store
from website import answers, build

pytestmark = pytest.mark.slow

SCRIPTS = [build.HERE / "theme" / name for name in ("silent.js", "words.js", "diagnose.js")]
ALIKE = "element 0 of tensors does not require grad and does not have a grad_fn"
REDUCED = "Error: AssertionError: The parameter 291 has already been reduced"
LOST = "[rank3]:[E1003 10:11:12 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: x"
MADE = (
    *(f"RuntimeError: {ALIKE} under {strategy}" for strategy in ("DDP", "ZeRO-1", "ZeRO-3", "FSDP2")),
    *(f"{tried} {REDUCED}" for tried in ("I tried use_reentrant=False.", "use_reentrant=False.")),
    LOST,
)
STEP = "{{'loss': {}, 'grad_norm': {}, 'epoch': 0.1}}"
WARNING = "x.py:92: UserWarning: None of the inputs have requires_grad=True. Gradients will be None"
RANKS = [f"{prefix} loss: 2.{step}" for step in range(4) for prefix in ("[rank0]:", "[rank1]:", "0:", "[default1]:")]
SETTINGS = ["fsdp_version: 2", "zero_stage: 3", "distributed_type: MULTI_GPU", "max_grad_norm: 0.0", "grad_norm: 0.1.2"]
LINES = [
    *itertools.starmap(STEP.format, itertools.product(("2.3", "'0.0'", "nan"), ("0.0", "'0'", "nan", "1.5", "1e-08"))),
    *(f"{{'loss': 0.0, 'grad_norm': 0.0, 'reward_std': {std}}}" for std in ("0.0", "0.05")),
    *(*RANKS, *SETTINGS, WARNING, "Traceback (most recent call last):", "loss: nan", "", "10%|#"),
    *("step 1 loss 2.3 grad_norm 1.5", "iter 2: loss nan, time 3ms", "Step 3 loss nan is bad", "Loss: nan"),
]
SILENCE = ("norm", "steps", "failures", "earlier", "after", "figure", "skips")


def errors():
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


def logs():
    """Runs that go wrong in each way, near misses, and lines mixed at random, the same each time."""
    fine, lost, flat = STEP.format(2.3, 1.5), STEP.format(0.0, "nan"), STEP.format(2.3, "0.0")
    yield from ("\n".join(some) for some in ([flat] * 5, [flat] * 2, [fine, *[lost] * 3], [fine, lost, lost, fine]))
    yield from ("\n".join([setting, *[flat] * 4]) for setting in (*SETTINGS, WARNING))
    yield from ("\n".join(RANKS), "\n".join(RANKS[:-1]), "\n".join(["[rank0]: loss: 0.0", "[rank1]: loss: 0.0"] * 4))
    random = Random(7)
    for size in [3, 4, 5, 6, 9] * 40:
        few = random.sample(LINES, random.randint(1, 4))
        yield "\n".join(random.choice(few) for _ in range(size))
    yield from (file.read_text("utf-8") for file in sorted((ROOT / "fixtures").glob("*/*.log")))


@functools.cache
def diagnosed(text):
    """The answer of the command, with `file` kept out: a line is a text, whatever it is called."""
    try:
        return faultline.diagnose(f"{text}\n").diagnosis
    except UsageError:  # there is nothing to read
        return None


def by_command(text):
    answer = diagnosed(text)
    return answer and [match.failure.name for match in (answer.several or (answer.match,)) if match]


def silent(text):
    """What the command says of a text without an error; None where it has one, or nothing to read."""
    answer = diagnosed(text)
    if not answer or answer.cause:
        return None
    return {
        "silence": answer.silence and ordered({key: getattr(answer.silence, key) for key in SILENCE}),
        "same": answer.same and {"ranks": [*answer.same.ranks], "steps": answer.same.steps},
        "warned": [[each.failure, [*each.strategies]] for each in answer.warned],
        "cut": bool(answer.cut),
    }


def ordered(silence):
    return silence and {**silence, "norm": sorted(silence["norm"].split(" or "))}


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
    """Breaks when the entrance takes another strategy than the text's, a remedy that was tried for the run's mode,
    `Error` for an error's type, or a lost peer for a failure."""
    asked = errors()
    assert len(asked) > 300
    on_page = named(page, asked)
    differing = {text: (by_command(text), on_page[text]) for text in asked if by_command(text) != on_page[text]}
    assert not differing, "the command names the first, the entrance the second"
    assert all(map(by_command, MADE[:4])), "words alone leave none"
    assert by_command(LOST) == [] and page.evaluate("text => FAULTLINE.diagnose(text).answer", LOST) == "aftermath"


def test_the_entrance_and_the_command_see_the_same_silence(page):
    """Breaks when somebody who pastes a run that learns nothing hears that it is not in the catalogue."""
    asked = {text: wanted for text in logs() if (wanted := silent(text))}
    got = page.evaluate("texts => texts.map(each => FAULTLINE.diagnose(each))", [*asked])
    differing = []
    for (text, wanted), shown in zip(asked.items(), got, strict=True):
        warned = [[each["failure"], each["strategies"]] for each in shown.get("warned", ())]
        made = {"silence": ordered(shown.get("silence")), "same": shown.get("same"), "cut": shown.get("cut")}
        if {**made, "warned": warned} != wanted:
            differing.append((text[:400], wanted, shown))
    assert len(asked) > 150
    for kind in ("silence", "same", "warned", "cut"):
        assert {bool(wanted[kind]) for wanted in asked.values()} == {True, False}, f"{kind} is never told apart"
    assert not differing[:3], "the command says the first, the entrance the second"


def test_the_entrance_and_the_command_read_the_same_words(page):
    """Breaks when a report in words gets another failure on the entrance than from the command."""
    texts = [(folder / "report.md").read_text("utf-8") for folder in score_reports.FOLDER.iterdir() if folder.is_dir()]
    texts += [text for name in failures() for each in symptoms(name).symptom for text in (each.text, each.zh)]
    answers_of = {text: diagnosed(text) for text in texts}
    wanted = {t: [each.failure.name for each in one.by_words] for t, one in answers_of.items() if not one.failure}
    script = "texts => texts.map(each => (FAULTLINE.diagnose(each).byWords ?? []).map(({ failure }) => failure))"
    got = dict(zip(wanted, page.evaluate(script, [*wanted]), strict=True))
    differing = {text: (wanted[text], got[text]) for text in wanted if wanted[text] != got[text]}
    assert len(wanted) > 300 and sum(map(bool, wanted.values())) > 250
    assert not differing, "the command says the first, the entrance the second"


def test_the_entrance_and_the_command_search_for_the_same_words(page):
    """Breaks when what the entrance doesn't know has no next step, or another one than on the command line."""
    plain = [text for text in errors() if signs.error_within(text) and text.isascii()]  # \w is ASCII's in a browser
    unknown = [text for text in plain if by_command(text) == []]
    odd = 'my.lib.OddError: in /tmp/a/b.py the 3-D "tensor" of torch.Size([2, 3]) has a wrong, odd stride: 0x7f'
    unknown += ["ValueError: nobody has ever seen this", odd]
    script = "texts => texts.map(each => FAULTLINE.diagnose(each).search ?? '')"
    searched = {text: words for text, words in zip(unknown, page.evaluate(script, unknown), strict=True) if words}
    commanded = {text: diagnosed(text).search for text in searched}
    differing = {text: (commanded[text], searched[text]) for text in searched if searched[text] != commanded[text]}
    assert len(searched) > 100
    assert not differing, "the command searches for the first, the entrance for the second"


def test_every_pattern_runs_in_a_browser(page, monkeypatch):
    """Breaks when the entrance passes over an error whose pattern only Python can read."""
    made, for_browser = [], answers.for_browser
    monkeypatch.setattr(answers, "for_browser", lambda *given: made.append(for_browser(*given)) or made[-1])
    answers.data()
    fails = "([source, flags]) => { try { return !new RegExp(source, flags) } catch { return true } }"
    assert len(made) > 100 and not page.evaluate(f"patterns => patterns.filter({fails})", made)
