"""Failures as they were reported: where, on which stack, and how the two outcomes are shown."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import claims, selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.observations import measured
from faultline.releases import reproduce
from faultline.runs import campaigns, results
from faultline.runs.results import RankError, RankResult
from faultline.stacks import requests
from tests.support import entries

FAILURE = failures()["grpo_lora_no_grad"]


@pytest.mark.parametrize("name", [name for name, failure in failures().items() if not failure.reported])
def test_what_has_no_other_stack_shows_today(name):
    """Breaks when a failure shows neither today nor on a stack of its own, so that nobody could see it."""
    failure = failures()[name]
    did = {c: answer for c, answer in measured.outcomes(failure).items() if failure.variant(c.variant).broken}
    assert any(outcome not in ("trains", "impossible", "invalid") for outcome, _ in did.values())


PAIRS = [name for name, failure in failures().items() if failure.reported and failure.reported.good]


@pytest.mark.parametrize("name", PAIRS)
def test_the_rules_tell_the_two_stacks_of_a_pair_apart(name):
    """Breaks when the first good release was never measured, or the rules don't say what it does."""
    failure = failures()[name]
    cell = reproduce.as_reported(failure, failure.reported, "cpu")
    did = {stack: measured.outcomes(failure, stack) for stack in (failure.reported.stack, failure.reported.good)}
    assert cell in claims.showing(failure, did[failure.reported.stack])
    assert did[failure.reported.good][cell][0] == "trains"


OLDER = [name for name, failure in failures().items() if measured.shown_on(failure) != "today"]


@pytest.mark.parametrize("name", OLDER)
def test_what_only_older_releases_show_has_its_pair(name):
    assert name in PAIRS


@pytest.mark.parametrize("name", [name for name, failure in failures().items() if failure.reported])
def test_every_failure_says_where_it_was_reported(name):
    """Breaks when a failure's stack or place is misspelt, or no cell of the default matrix."""
    failure = failures()[name]
    assert failure.reported.stack in requests.named()
    assert not failure.reported.good or failure.reported.good in requests.named()
    cell = reproduce.as_reported(failure, failure.reported, "cpu")
    assert cell in selection.select(failures(), Selection(failure=(name,)))


def entry(outcome, signature="", error=None):
    rank = RankResult(0, error=error)
    cell = Cell(FAILURE.name, "broken", "ddp")
    return entries.entry(cell, outcome, signature, detail="d\x1b[2J", rank=0, ranks=(rank,))


@pytest.mark.parametrize(
    ("outcome", "signature", "shows"),
    [
        ("raises", "no-grad-fn", True),
        ("raises", "other", False),
        ("raises", "marked-ready-twice", False),  # another failure's, which these models meet too
        ("diverges", "unmoved", True),
        ("misplaced", "reference-model", True),
        ("trains", "", False),
        ("impossible", "", False),
        ("invalid", "evidence", False),
    ],
)
def test_only_the_documented_error_is_the_failure(outcome, signature, shows):
    """Breaks when something else that fails on an old stack passes for the failure."""
    assert results.shows(FAILURE, entry(Outcome(outcome), signature)) is shows


def test_both_outcomes_are_shown_with_their_errors():
    """Breaks when one side's error is lost, or text from it reaches the terminal as it is."""
    error = RankError("RuntimeError", "m", "Traceback\nRuntimeError: \x1b]0;owned\x07no grad")
    versions = {"trl": "0.15.2", "torch": "2.13.0+cpu"}
    both = [
        campaigns.Measured("trl-0.15.2", "", [entry("raises", "no-grad-fn", error)], "", versions),
        campaigns.Measured("today", "", [entry("trains")], "", {"trl": "1.16.0", "torch": "2.13.0"}),
    ]
    out = io.StringIO()
    cell = reproduce.as_reported(FAILURE, FAILURE.reported, "cpu")
    reproduce.show(Console(file=out, width=100), FAILURE, cell, both, "")
    text = out.getvalue()
    assert "raises (no-grad-fn)" in text and "trains" in text and "0.15.2" in text and "1.16.0" in text
    assert "RuntimeError: no grad" in text and "\x1b" not in text
    assert "--stack 'trl-0.15.2'" in text


def test_a_stack_that_can_not_be_had_is_an_outcome():
    """Breaks when a package that is gone from the index ends in a traceback."""
    both = [campaigns.Measured("trl-0.15.2", unusable="no wheel"), campaigns.Measured("today", "", [entry("trains")])]
    out = io.StringIO()
    reproduce.show(
        Console(file=out, width=100), FAILURE, reproduce.as_reported(FAILURE, FAILURE.reported, "cpu"), both, ""
    )
    assert "uninstallable" in out.getvalue() and "no wheel" in out.getvalue()


SHOWS = ("diverges", "differs")


@pytest.mark.parametrize(
    ("old", "good", "code"),
    [
        (SHOWS, ("trains",), 0),
        (SHOWS, SHOWS, 1),
        (("trains",), ("trains",), 1),
        (("raises", "other"), ("trains",), 1),
        (("invalid", "evidence"), ("trains",), 3),
        (SHOWS, ("invalid", "evidence"), 3),
        (SHOWS, ("impossible",), 3),
        (SHOWS, (), 3),
    ],
)
def test_the_exit_code_says_whether_it_was_shown(monkeypatch, old, good, code):
    """Breaks when a script reads that a failure was shown, or is gone, from a cell that proves nothing."""
    failure = failures()[PAIRS[0]]
    did = {failure.reported.stack: old, failure.reported.good: good, "today": ("trains",)}

    def measure(campaign, name, stack, cells):
        results = [entry(*did[name])] if did[name] else []
        return campaigns.Measured(name, results=results, unusable="" if results else "no wheel")

    monkeypatch.setattr(campaigns, "begin", lambda *_, **__: SimpleNamespace(folder=SimpleNamespace(shown="results/x")))
    monkeypatch.setattr(campaigns, "announce", lambda *_: None)
    monkeypatch.setattr(campaigns, "measure", measure)
    assert reproduce.run(reproduce.Request(failure.name)) == code
