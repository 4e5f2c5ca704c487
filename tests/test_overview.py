"""The table of all failures in the README: whole, up to date, and right about what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faultline import overview
from faultline.catalogue import failures
from faultline.errors import UsageError


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
    assert "ZeRO-1 instead" in useless and "overlap_comm" in useless


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
