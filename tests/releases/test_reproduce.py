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


def unseen(failure):
    """Why nobody could see a failure: today, or as it was reported."""
    if not failure.reported:
        did = {c: answer for c, answer in measured.outcomes(failure).items() if failure.variant(c.variant).broken}
        shows = any(outcome not in ("trains", "impossible", "invalid") for outcome, _ in did.values())
        return "" if shows else "it shows neither today nor on a stack of its own"
    old, good = failure.reported.stack, failure.reported.good
    if not {old, good or old} <= {*requests.named()}:
        return "a stack that there isn't"
    cell = reproduce.as_reported(failure, failure.reported, "cpu")
    if cell not in selection.select(failures(), Selection(failure=(failure.name,))):
        return "it was reported in no cell of the default matrix"
    if not good:
        return "no release shows that it is gone" if measured.shown_on(failure) != "today" else ""
    shown = cell in claims.showing(failure, measured.outcomes(failure, old))
    mended = measured.outcomes(failure, good)[cell][0] == "trains"
    return "" if shown and mended else "its two stacks do not differ"


def test_every_failure_can_be_seen_where_it_is_said_to_show():
    """Breaks when a failure's stack or place is misspelt, or the first good release was never measured."""
    every = {name: unseen(failure) for name, failure in failures().items()}
    assert not {name: why for name, why in every.items() if why}


def entry(outcome, signature="", error=None):
    rank = RankResult(0, error=error)
    cell = Cell(FAILURE.name, "broken", "ddp")
    return entries.entry(cell, outcome, signature, detail="d\x1b[2J", rank=0, ranks=(rank,))


def test_only_the_documented_error_is_the_failure():
    """Breaks when something else that fails on an old stack passes for the failure."""
    shows = [("raises", "no-grad-fn"), ("diverges", "unmoved"), ("misplaced", "reference-model")]
    another = ("raises", "marked-ready-twice")  # which these models meet too
    others = [another, ("raises", "other"), ("trains", ""), ("impossible", ""), ("invalid", "evidence")]
    assert [did for did in (*shows, *others) if results.shows(FAILURE, entry(Outcome(did[0]), did[1]))] == shows


def shown(*both):
    """What the terminal shows of a failure on two stacks."""
    out = io.StringIO()
    cell = reproduce.as_reported(FAILURE, FAILURE.reported, "cpu")
    reproduce.show(Console(file=out, width=100), FAILURE, cell, both, "")
    return out.getvalue()


def test_both_outcomes_are_shown_with_their_errors():
    """Breaks when a side's error is lost or steers the terminal, or a package that is gone is a traceback."""
    error = RankError("RuntimeError", "m", "Traceback\nRuntimeError: \x1b]0;owned\x07no grad")
    versions = {"trl": "0.15.2", "torch": "2.13.0+cpu"}
    text = shown(
        campaigns.Measured("trl-0.15.2", "", [entry("raises", "no-grad-fn", error)], "", versions),
        campaigns.Measured("today", "", [entry("trains")], "", {"trl": "1.16.0", "torch": "2.13.0"}),
    )
    assert "raises (no-grad-fn)" in text and "trains" in text and "0.15.2" in text and "1.16.0" in text
    assert "RuntimeError: no grad" in text and "\x1b" not in text
    assert "--stack 'trl-0.15.2'" in text
    unusable = campaigns.Measured("trl-0.15.2", unusable="no wheel")
    text = shown(unusable, campaigns.Measured("today", "", [entry("trains")]))
    assert "uninstallable" in text and "no wheel" in text


SHOWS = ("diverges", "differs")


@pytest.mark.parametrize(
    ("old", "good", "code"),
    [
        (SHOWS, ("trains",), 0),
        (SHOWS, SHOWS, 1),
        (("trains",), ("trains",), 1),
        (("invalid", "evidence"), ("trains",), 3),
        (SHOWS, ("invalid", "evidence"), 3),
        (SHOWS, (), 3),
    ],
)
def test_the_exit_code_says_whether_it_was_shown(monkeypatch, old, good, code):
    """Breaks when a script reads that a failure was shown, or is gone, from a cell that proves nothing."""
    failure = next(each for each in failures().values() if each.reported and each.reported.good)
    did = {failure.reported.stack: old, failure.reported.good: good, "today": ("trains",)}

    def measure(campaign, name, stack, cells):
        results = [entry(*did[name])] if did[name] else []
        return campaigns.Measured(name, results=results, unusable="" if results else "no wheel")

    monkeypatch.setattr(campaigns, "begin", lambda *_, **__: SimpleNamespace(folder=SimpleNamespace(shown="results/x")))
    monkeypatch.setattr(campaigns, "announce", lambda *_: None)
    monkeypatch.setattr(campaigns, "measure", measure)
    assert reproduce.run(reproduce.ReproduceRequest(failure.name)) == code
