"""The command line's answers: help, lists, records and versions."""

import json
import re
import shlex

import pytest

from faultline.base import packages
from faultline.catalogue import loading
from faultline.cells import selection
from faultline.cells.selection import Selection
from faultline.cli import app
from faultline.export import emit, issue, upstream
from faultline.observations.measured import pinned
from faultline.ranks import preload

FAILURES = loading.failures()


def examples(page):
    """The commands that a page of help shows as examples, as words."""
    lines = page.partition("\nExamples:\n")[2].splitlines()
    shown = [re.sub(r".*?\bfaultline ", "", line) for line in lines if line[:2] == "  "]
    return [shlex.split(re.split(r"\)\"?$| {3,}| \|", command)[0]) for command in shown]


def unfit(words, out):
    """What is wrong with a page of help: its width, its sentences, or an example that can't be typed as it stands."""
    if any(len(line) > 80 for line in out.splitlines()):
        yield "a line is too long"
    for example in examples(out):
        command, _, _ = app.app().parse_args(example, exit_on_error=False, print_error=False)
        if [app.word(command)] != (example[1:2] if example[:1] in app.GROUPS else example[:1]):
            yield f"this is another command: {example}"
    if words in app.GROUPS:
        if re.findall(r"^│ {4,}\w.*", out, re.M):
            yield "a summary takes two lines"
        if len(examples(out)) != (2 if words else 4):
            yield "there are more or fewer examples"
        return
    usage, sentence = out.split("\n\n")[:2]
    if not examples(out):
        yield "there is no example"
    if not usage.startswith(f"Usage: faultline {' '.join(words)}"):
        yield f"this is another usage: {usage}"
    if not re.fullmatch(r"[A-Z]([^.]|\.\w)*\.", sentence):
        yield f"this is no complete sentence: {sentence}"
    entries = re.findall(r"^│ +(?:\*  )?(?:--|[A-Z]+ ).*?(?=^│ +(?:\*  )?(?:--|[A-Z]+ )|^╰)", out, re.M | re.S)
    for entry in entries:
        text = " ".join(entry.replace("│", "").split()).removesuffix(" [required]")
        if not ("[choices" in text or text.endswith(".")):
            yield f"this breaks off: {text}"


def test_every_page_of_help_is_whole_and_its_examples_can_be_typed(asked):
    """Breaks when an example of the help names an option that is no more, is broken over lines, or breaks off."""
    wrong = {}
    for words in (*app.GROUPS, *(verb.split() for verb in app.commands())):
        code, out, errors = asked(*words, "--help")
        assert code == 0 and not errors, words
        wrong[" ".join(words)] = [*unfit(words, out)]
    assert {page: said for page, said in wrong.items() if said} == {}


def test_the_verbs_are_all_in_the_help(asked):
    """Breaks when a command is found only by those who know of it."""
    pages = [asked(*words, "--help")[1] for words in app.GROUPS]
    shown = [re.findall(r"^│ ([a-z][a-z-]*)  ", page, re.M) for page in pages]
    below = [f"{words[0]} {name}" for words, names in zip(app.GROUPS[1:], shown[1:], strict=True) for name in names]
    assert [*(name for name in shown[0] if [name] not in app.GROUPS), *below] == [*app.commands()]
    assert shown[0][-2:] == ["maintain", "prove"]
    assert all(title in pages[0] for title in (" Use ", " Measure ", " Maintain "))


@pytest.mark.slow
def test_list_tells_cells_and_the_rule_of_each_combination_that_is_left_out(asked):
    """Breaks when somebody who misses a cell can't find out why it isn't run, or --ids are others than `run` takes."""
    code, out, errors = asked("list", "--left-out", "--failure", "zero3_[ds]*")
    assert code == 0 and not errors
    reasons = dict(line.split("  ", 1) for line in out.splitlines())
    alone = "zero3_dummy_loss/broken/single/off/fp32/w2/cpu"
    assert reasons[alone] == "the single strategy is one process, so its world size is 1" and all(reasons.values())
    cells = [cell.id for cell in selection.select(FAILURES, Selection(failure=("zero3_[ds]*",)))]
    assert reasons.keys().isdisjoint(cells)
    code, out, errors = asked("list", "--failure", "zero3_[ds]*")
    assert code == 0 and not errors
    names = [name for name in FAILURES if name.startswith(("zero3_d", "zero3_s"))]
    wanted = (*names, f"{len(cells)} cells of {len(names)} failures", f"{len(reasons):,} others")
    assert [words for words in wanted if words not in out] == []
    code, out, _ = asked("list", "--ids", "--failure", "grpo*", "--strategy", "ddp, zero2*", "--checkpointing", "off")
    chosen = Selection(failure=("grpo*",), strategy=("ddp", "zero2*"), checkpointing=("off",))
    assert code == 0 and out.split() == [cell.id for cell in selection.select(FAILURES, chosen)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [[*FAILURES][::4], pytest.param([*FAILURES], marks=pytest.mark.nightly)])
def test_show_tells_the_record_the_variants_and_the_claims(asked, names):
    """Breaks when a claim, or what it was measured with, is in a record and not in the answer."""
    missing = []
    for failure in names:
        record = FAILURES[failure]
        code, out, errors = asked("show", failure)
        assert code == 0 and not errors, failure
        wanted = (
            *record.records,
            *(variant.name for variant in record.variants),
            *(claim.text for claim in record.claims.values()),
            f"measured with {packages.stack_name(pinned())}",
            f"faultline run --failure {failure}",
        )
        answer = "".join(out.split())
        missing += [f"{failure}: {words}" for words in wanted if "".join(words.split()) not in answer]
    assert missing == []


def test_a_terminal_without_a_width_gets_an_answer(asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert asked("list", "--failure", "zero3_dummy_loss")[0] == 0


def test_env_is_json_for_machines_and_text_for_people(asked):
    code, out, _ = asked("maintain", "env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["stack"] == packages.versions() and facts["settings"] == preload.environment()
    code, out, _ = asked("maintain", "env")
    assert code == 0 and all(name in out for name in facts["stack"])


def test_an_issue_ends_with_a_line_feed(asked, monkeypatch):
    """Breaks when the prompt, or the next file, begins in the last line of an issue."""
    monkeypatch.setattr(emit, "write", lambda where: "")
    monkeypatch.setattr(upstream, "environment", lambda where: {})
    monkeypatch.setattr(issue, "write_issue", lambda where, output, report: "An issue\n\n")
    answer = asked("export", "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu", "--markdown")
    assert answer == (0, "An issue\n", [])
