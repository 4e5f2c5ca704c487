"""The table of all failures in the README: whole, up to date, and right about what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faultline import known, overview, verdicts
from faultline.catalogue import REMEDIES, Claim, failures
from faultline.errors import UsageError
from faultline.matrix import Cell


def test_the_readme_has_a_line_for_every_failure():
    """Breaks when a failure was added and `python -m faultline readme` was not run."""
    assert overview.lines(overview.README.read_text(encoding="utf-8")) == list(failures())


def test_the_readme_says_what_the_rules_say():
    text = overview.README.read_text(encoding="utf-8")
    inside = text.partition(overview.BEGIN)[2].partition(overview.END)[0].strip()
    assert inside == overview.table(), "python -m faultline readme"


def test_a_line_tells_where_what_helps_and_what_does_not():
    """Breaks when a silent failure is told as an error, or a refuted remedy as one that helps."""
    (line,) = [row for row in overview.table().splitlines() if row.startswith("| [zero12_manual_ga")]
    where, _, _, helps, useless = (cell.strip() for cell in line.split(" | ")[2:])
    assert where == "silent: `zero1*`, `zero2*`"
    assert "set_gradient_accumulation_boundary" in helps and "ZeRO-3" in helps
    assert "ZeRO-1 instead" in useless and "overlap_comm" in useless and "bucket sizes" in useless


@pytest.mark.parametrize("name", list(failures()))
def test_every_remedy_stands_on_its_side_and_nothing_else_does(name):
    """Breaks when a remedy that was measured is in neither column, or a check or an observation is in one."""
    failure = failures()[name]
    helps, useless = overview._line(failure)[-2:]
    sides = {
        "verified": lambda text: text in helps,
        "conditional": lambda text: f"in places: {text}" in helps,
        "refuted": lambda text: text in useless,
    }
    for claim in failure.claims.values():
        text = claim.text
        if claim.kind in REMEDIES:
            assert sides[verdicts.by_rules(failure, claim).word](text), claim.text
        else:
            assert text not in helps.split("; ") + useless.split("; "), "whoever has the failure can't do that"


def test_what_the_broken_cell_has_already_does_not_help(monkeypatch):
    """Breaks when a useless remedy vanishes because no cell can be without it, or one that trains counts as help."""
    failure = replace(
        failures()["zero2_ga_wrong_gradient"],
        claims={
            "a": Claim("wear a hat", kind="present"),
            "b": Claim("it fails", kind="fails"),
            "c": Claim("it trains under DDP", kind="trains", where={"strategy": "ddp"}),
        },
    )
    shown = {Cell(failure.name, "broken", "zero2"): ("diverges", "differs")}
    trains = {Cell(failure.name, "broken", "ddp"): ("trains", "")}
    monkeypatch.setattr(known, "outcomes", lambda failure, stack="today": shown | trains)
    assert overview._line(failure)[-2:] == ("", "wear a hat")
    monkeypatch.setattr(known, "outcomes", lambda failure, stack="today": trains)
    assert overview._line(failure)[-2:] == ("", "")


def test_a_record_that_does_not_reproduce_stays_and_says_so(monkeypatch):
    """Breaks when such an entry leaves the table, or looks like one that was fixed."""
    name = "zero2_ga_wrong_gradient"  # which today's stack doesn't show
    doubted = replace(failures()[name], not_reproduced="two | releases were tried")
    monkeypatch.setattr(overview, "failures", lambda: {name: doubted})
    [line] = [row for row in overview.table().splitlines() if row.startswith(f"| [{name}")]
    assert r"not reproduced: two \| releases were tried" in line


def test_an_entry_that_shows_nowhere_is_marked_so():
    """Breaks when a record that no stack here shows is listed like the others."""
    for failure in failures().values():
        shows = overview.where(failure) or failure.reported
        assert bool(shows) != bool(failure.not_reproduced), failure.name


def test_a_readme_without_its_markers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("# nothing")
    with pytest.raises(UsageError, match="failures: begin"):
        overview.rewrite()
