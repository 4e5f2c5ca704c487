"""The page of the findings: what is on it, and in which order."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.explore import findings, overview, publishing
from faultline.explore.case import Case
from faultline.explore.findings import About, Finding, Seen
from faultline.explore.numbers import Numbers
from faultline.programs.program import Program

OUTCOMES = ("diverges", "hangs", "crashes", "raises")
NUMBERS = Numbers(7, 12.5, 100, 400, 20, 12, 3, 1, 18, 18, 40, 39, "torch 2.13.0", small=15)


def finding(name="a", outcome="diverges", status="new", **chosen):
    seen = Seen("differs", outcome, "differs", "x | y", {"zero2": outcome}, {"deepspeed": "0.19.8"})
    return Finding(Path(name), Case(Program.of(0, chosen), "zero2"), seen, About("A title", status))


def test_the_page_is_that_of_the_findings_that_are_kept():
    """Breaks when a finding is added, or looked into, and the page doesn't say so: `faultline maintain readmes`."""
    assert overview.page(findings.every(), overview.read()) in overview.PAGE.read_text()


@given(st.permutations([(status, outcome) for status in findings.STATUSES for outcome in OUTCOMES]))
def test_new_silent_and_usual_ones_come_first(places):
    """Breaks when what nobody knows and nobody sees, or meets everybody, stands below an error, or a rare setting."""
    every = [finding(f"{status}-{outcome}", outcome, status) for status, outcome in places]
    ordered = sorted(every, key=overview.grave)
    assert [(each.about.status, each.seen.outcome) for each in ordered] == [
        (status, outcome) for status in findings.STATUSES for outcome in OUTCOMES
    ]
    rare, usual = finding("a", **{"zero.overlap_comm": True}), finding("b", accumulate=2, method="model")
    assert sorted([rare, usual], key=overview.grave) == [usual, rare]


def test_an_exploration_is_added_once_it_ended(tmp_path, monkeypatch, capsys, page):
    """Breaks when the funnel has other numbers than an exploration came to."""
    file = tmp_path / "explorations.jsonl"
    monkeypatch.setattr(overview.read, "__defaults__", (file,))
    monkeypatch.setattr(overview.add, "__defaults__", (file,))
    with pytest.raises(UsageError, match=r"numbers\.json"):
        publishing.count_in(str(tmp_path))
    (tmp_path / "numbers.json").write_text(json.dumps(vars(NUMBERS)))
    assert publishing.count_in(str(tmp_path)) == EXIT_AS_EXPECTED
    assert publishing.count_in(str(tmp_path)) == EXIT_AS_EXPECTED
    assert overview.read(file) == [NUMBERS], "an exploration counts once"
    assert "| 7 | 12.5 | 100 | 400 | 20 | 12 | 15 | 3 (1) | 18 of 18 | 39 of 40 |" in page.read_text()
    assert "rewritten" in capsys.readouterr().out


def test_a_finding_of_an_exploration_is_kept(tmp_path, monkeypatch, capsys, page):
    """Breaks when what was found can't be kept by a command, or takes the place of what is kept."""
    monkeypatch.setattr(findings.every, "__defaults__", (tmp_path / "findings",))
    monkeypatch.setattr(findings, "FINDINGS", tmp_path / "findings")
    home = tmp_path / "explore" / "zero_thing"
    home.mkdir(parents=True)
    made = finding("zero_thing")
    (home / findings.SPEC).write_text(json.dumps(made.case.as_json()))
    findings.write_seen(home, made.seen)
    (home / findings.ABOUT).write_text('title = "What was found"\nstatus = "new"\n')
    assert publishing.take_in(str(home)) == EXIT_AS_EXPECTED
    assert [each.name for each in findings.every()] == ["zero_thing"] and "What was found" in page.read_text()
    assert "findings/zero_thing: write the cause" in capsys.readouterr().out
    with pytest.raises(UsageError, match="findings/zero_thing exists"):
        publishing.take_in(str(home))
    with pytest.raises(UsageError, match="not the folder of a finding"):
        publishing.take_in(str(tmp_path))


def test_planted_faults_are_counted_by_kind_over_all_explorations():
    """Breaks when a fault that was missed in one exploration is hidden by those that were seen in another."""
    one, other = (replace(NUMBERS, by_kind={"bit": seen}) for seen in ({"ranks-differ": 2, "": 1}, {"ranks-differ": 3}))
    [_, _, line, _, never] = overview.planted([NUMBERS, one, other])
    assert line == "| bit: one rank's weights differ in one bit | 5 of 6 | 5 ranks-differ |"
    assert never.startswith("Not drawn: ") and "buffer" in never, "a kind that was never drawn is not hidden"
    assert overview.planted([NUMBERS]) == []
    [*_, last] = overview.funnel([NUMBERS, replace(NUMBERS, seed=8, minutes=47.5)])
    assert last == "| all | 1.0 hours | 200 | 800 | 40 | 24 |  | 6 (2) | 36 of 36 | 78 of 80 |"
    assert overview.line(replace(finding(), about=About("a | b"))).count(" | ") == 6, "a title ends a table's cell"


def test_no_finding_names_what_others_do_not_have():
    """Breaks when somebody upstream reads the name of a folder of ours, or a traceback has a machine's own paths."""
    names = [file.parent.name for file in findings.FINDINGS.glob("*/issue.md")]
    for file in findings.FINDINGS.glob("*/issue.md"):
        text = file.read_text(encoding="utf-8")
        assert not [name for name in names if re.search(rf"\b{name}\b(?!/)", text)], file
    files = [file for file in findings.FINDINGS.rglob("*") if file.is_file()]
    assert not [file for file in files if re.search(r"[\"' ]/\S+/site-packages/", file.read_text(encoding="utf-8"))]
