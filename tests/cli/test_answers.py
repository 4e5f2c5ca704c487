"""The command line's answers: help, lists, records and versions."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from faultline.base import packages
from faultline.catalogue import loading
from faultline.cells import selection
from faultline.cells.selection import Selection
from faultline.cli import app
from faultline.observations.measured import pinned
from faultline.ranks import preload

FAILURES = loading.failures()


def examples(page):
    """The commands that a page of help shows as examples, as words."""
    lines = page.partition("\nExamples:\n")[2].splitlines()
    commands = [
        re.split(r"\)\"?$| {3,}| \|", re.sub(r".*?\bfaultline ", "", line))[0] for line in lines if line[:2] == "  "
    ]
    return [shlex.split(command) for command in commands]


@pytest.mark.parametrize("page", [*app.GROUPS, *(verb.split() for verb in app.commands())])
def test_every_example_can_be_typed_and_fits(asked, page):
    """Breaks when an example of the help names an option that is no more, or is broken over lines."""
    out = asked(*page, "--help")[1]
    assert all(len(line) <= 80 for line in out.splitlines())
    for words in examples(out):
        command, _, _ = app.app().parse_args(words, exit_on_error=False, print_error=False)
        assert [app.word(command)] == (words[1:2] if words[:1] in app.GROUPS else words[:1])


@pytest.mark.parametrize("page", app.GROUPS)
def test_each_command_has_one_line_in_the_list(asked, page):
    out = asked(*page, "--help")[1]
    assert not re.findall(r"^│ {4,}\w.*", out, re.M), "a summary takes two lines"
    assert len(examples(out)) == (4 if not page else 2)


@pytest.mark.parametrize("verb", app.commands())
def test_every_verb_has_help(asked, verb):
    code, out, errors = asked(*verb.split(), "--help")
    assert code == 0 and not errors
    usage, sentence = out.split("\n\n")[:2]
    assert examples(out), "there is no example"
    assert usage.startswith(f"Usage: faultline {verb}")
    assert re.fullmatch(r"[A-Z]([^.]|\.\w)*\.", sentence), "the help is no complete sentence"
    entries = re.findall(r"^│ +(?:\*  )?(?:--|[A-Z]+ ).*?(?=^│ +(?:\*  )?(?:--|[A-Z]+ )|^╰)", out, re.M | re.S)
    for entry in entries:
        text = " ".join(entry.replace("│", "").split()).removesuffix(" [required]")
        assert "[choices" in text or text.endswith("."), f"this breaks off: {text}"


def test_the_verbs_are_all_in_the_help(asked):
    """Breaks when a command is found only by those who know of it."""
    pages = [asked(*words, "--help")[1] for words in app.GROUPS]
    shown = [re.findall(r"^│ ([a-z][a-z-]*)  ", page, re.M) for page in pages]
    below = [f"{words[0]} {name}" for words, names in zip(app.GROUPS[1:], shown[1:], strict=True) for name in names]
    assert [*(name for name in shown[0] if [name] not in app.GROUPS), *below] == [*app.commands()]
    assert shown[0][-1] == "maintain" and all(title in pages[0] for title in (" Use ", " Measure ", " Maintain "))


@pytest.mark.slow
def test_list_tells_cells_and_what_is_left_out(asked):
    code, out, errors = asked("list")
    assert code == 0 and not errors
    cells = selection.select(FAILURES, Selection())
    others = sum(1 for _ in selection.left_out(FAILURES, Selection()))
    for word in (*FAILURES, f"{len(cells)} cells of {len(FAILURES)} failures", f"{others:,} others"):
        assert word in out, f"{word} is missing from the list"


@pytest.mark.slow
def test_list_tells_the_rule_of_each_combination_that_is_left_out(asked):
    """Breaks when somebody who misses a cell can't find out why it isn't run."""
    code, out, errors = asked("list", "--left-out", "--failure", "zero3_dummy_loss")
    assert code == 0 and not errors
    reasons = selection.left_out(FAILURES, Selection(("zero3_dummy_loss",)))
    assert out.splitlines() == [f"{cell.id}  {rule}" for cell, rule in reasons]
    alone = "zero3_dummy_loss/broken/single/off/fp32/w2/cpu"
    assert f"{alone}  the single strategy is one process, so its world size is 1" in out.splitlines()


def test_list_ids_are_what_run_would_take(asked):
    code, out, _ = asked("list", "--ids", "--failure", "grpo*", "--strategy", "ddp, zero2*", "--checkpointing", "off")
    chosen = Selection(("grpo*",), strategy=("ddp", "zero2*"), checkpointing=("off",))
    assert code == 0
    assert out.split() == [cell.id for cell in selection.select(FAILURES, chosen)]


@pytest.mark.parametrize("failure", FAILURES)
def test_show_tells_the_record_the_variants_and_the_claims(asked, failure):
    code, out, errors = asked("show", failure)
    assert code == 0 and not errors
    record = FAILURES[failure]
    answer = "".join(out.split())
    for word in (*record.records, *(variant.name for variant in record.variants)):
        assert word in answer, f"{word} is missing"
    assert "".join(f"measured with {packages.stack_name(pinned())}".split()) in answer
    assert f"faultline run --failure {failure}".replace(" ", "") in answer
    for claim in record.claims.values():
        assert "".join(claim.text.split()) in answer, f"the claim {claim.text!r} is missing"


def test_env_is_json_for_machines_and_text_for_people(asked):
    code, out, _ = asked("maintain", "env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["stack"] == packages.versions() and facts["settings"] == preload.environment()
    code, out, _ = asked("maintain", "env")
    assert code == 0 and all(name in out for name in facts["stack"])


@pytest.mark.slow
def test_an_issue_ends_with_a_line_feed(asked):
    """Breaks when the prompt, or the next file, begins in the last line of an issue."""
    code, out, _ = asked("export", "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu", "--markdown")
    assert code == 0 and out.endswith("\n") and not out.endswith("\n\n")
