"""Timelines: what cells did over time, as data that can be read back, and as pictures of it."""

import datetime
import io
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.observations import recording
from faultline.observations.recording import UNINSTALLABLE, Timeline
from faultline.observations.store import MeasuredStack
from faultline.releases import timeline
from faultline.runs import campaigns
from tests.support.entries import entry

CELL = Cell("grpo_lora_no_grad", "grpo-broken", "ddp")
OTHER = Cell("grpo_lora_no_grad", "grpo-broken", "zero2")
HOSTILE = '</title><script>alert("x")</script>\x1b[31m'

DAYS = st.dates(datetime.date(2024, 1, 1), datetime.date(2030, 1, 1))
TRAINS, IMPOSSIBLE, OTHER_ERROR = Did("trains"), Did("impossible"), Did("raises", "other")
DIFFERS, UNMOVED = Did("diverges", "differs"), Did("diverges", "unmoved")
OUTCOMES = st.sampled_from([TRAINS, Did("raises", "no-grad-fn"), OTHER_ERROR, DIFFERS, UNINSTALLABLE])
TEXTS = st.text(max_size=30)
WRONG = {"raises", "crashes", "hangs", "diverges", "misplaced"}


@st.composite
def timelines(draw):
    stack = st.builds(MeasuredStack, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), TEXTS, TEXTS)
    stacks = draw(st.lists(stack, max_size=5))
    one = st.lists(OUTCOMES, min_size=len(stacks), max_size=len(stacks))
    return Timeline(stacks, {cell: draw(one) for cell in (CELL, OTHER)})


@given(DAYS, DAYS)
def test_months_are_their_first_days(first, last):
    """Breaks when a month is left out or comes twice, or a date lies outside of what was asked for."""
    days = list(timeline.months(first, last))
    assert len(set(days)) == len(days)
    between = {(first + datetime.timedelta(n)).replace(day=1) for n in range((last - first).days + 1)}
    assert set(days) == {day for day in between if day >= first}


RECORDED = Timeline(
    [MeasuredStack("a", {"trl": "1"}, "2026-01-01"), MeasuredStack("b", {"trl": "2"}, "today")], {CELL: [TRAINS] * 2}
)


@pytest.mark.parametrize(
    ("dates", "cells", "refused"),
    [
        (["2026-01-01", "today"], [CELL], ""),
        (["2026-01-01", "today"], [OTHER], ""),
        (["2026-01-01", "2026-02-01", "today"], [CELL, OTHER], ""),
        (["2026-01-01", "2026-02-01", "today"], [OTHER], "2026-02-01, needs all cells"),
        (["2026-02-01", "today"], [CELL, OTHER], "and 2026-01-01 is not among these"),
    ],
)
def test_what_is_recorded_has_the_same_months_for_all_cells(dates, cells, refused):
    """Breaks when a new failure takes a run of all others, or leaves months in which others did nothing."""
    if not refused:
        timeline.check_complete(RECORDED, dates, cells)
        return
    with pytest.raises(UsageError, match=refused):
        timeline.check_complete(RECORDED, dates, cells)


def test_cells_that_are_added_ran_on_the_recorded_stacks():
    """Breaks when a month has two stacks, of which one is shown for the cells of both."""
    same = Timeline(RECORDED.stacks, {OTHER: [TRAINS] * 2})
    timeline.check_stacks(RECORDED, same)
    moved = Timeline([RECORDED.stacks[0], MeasuredStack("c", {"trl": "3"}, "today")], same.cells)
    with pytest.raises(UsageError, match="the stack of today has other versions now"):
        timeline.check_stacks(RECORDED, moved)
    timeline.check_stacks(RECORDED, Timeline(moved.stacks, {CELL: [TRAINS] * 2, OTHER: [TRAINS] * 2}))


@given(timelines())
def test_a_timeline_is_written_as_json_and_has_a_row_for_each_variant(tmp_path_factory, answer):
    """Breaks when the file of a run lacks an outcome or its signature, or a square shows too few cells."""
    file = tmp_path_factory.mktemp("timeline") / "timeline.json"
    timeline.write(file, answer)
    written = json.loads(file.read_text())
    assert [stack["versions"] for stack in written["stacks"]] == [stack.versions for stack in answer.stacks]
    assert written["cells"] == {cell.id: [[*did] for did in outcomes] for cell, outcomes in answer.cells.items()}
    [(row, counts)] = timeline.count_outcomes(answer).items()
    assert row == ("grpo_lora_no_grad", "grpo-broken")
    assert [each.total() for each in counts] == [2] * len(answer.stacks)


def test_what_can_not_be_installed_is_said_and_no_gap():
    """Breaks when a month without a stack vanishes from the line of time, or looks like one in which all is well."""
    raised = campaigns.Measured("2025-03-01", "", [entry(CELL, "raises")], "", {"trl": "1.0+cpu"})
    answer = timeline.gather([raised, campaigns.Measured("2025-04-01", unusable="no wheel")], [CELL])
    assert answer.cells[CELL] == [Did("raises"), UNINSTALLABLE]
    assert answer.stacks[0].versions == {"trl": "1.0"} and answer.stacks[1].unusable == "no wheel"


@pytest.mark.parametrize(
    ("outcomes", "mark"),
    [
        ((TRAINS, TRAINS), "✓"),
        ((TRAINS, OTHER_ERROR), "✗1"),
        ((DIFFERS, UNMOVED), "≠2"),
        ((IMPOSSIBLE, TRAINS), "✓"),
        ((IMPOSSIBLE, IMPOSSIBLE), "–"),  # noqa: RUF001 - the report's dash
        ((UNINSTALLABLE, UNINSTALLABLE), "·"),
    ],
)
def test_the_terminal_shows_what_does_not_train(outcomes, mark):
    """Breaks when a silent failure looks like an uneventful month."""
    out = io.StringIO()
    one, other = outcomes
    answer = Timeline([MeasuredStack("2025-03-01", {}, "2025-03-01")], {CELL: [one], OTHER: [other]})
    timeline.terminal(Console(file=out, width=100), answer)
    line = next(line for line in out.getvalue().splitlines() if "grpo-broken" in line)
    assert line.split()[-1] == mark


def test_the_page_counts_what_the_data_has():
    """Breaks when docs/timeline.md goes on with numbers of an older timeline."""
    committed = recording.committed()
    months = [timeline.short_date(stack) for stack in committed.stacks]
    wrong: dict[str, Counter[str]] = {}
    for cell, row in committed.cells.items():
        counts = wrong.setdefault(cell.failure, Counter())
        counts.update(month for month, did in zip(months, row, strict=True) if did.outcome in WRONG)
    text = (ROOT / "docs" / "timeline.md").read_text(encoding="utf-8")
    assert f"({len(committed.cells)} cells)" in text
    shown = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    assert len(shown) > 5
    for failure, *numbers in shown:
        assert [wrong[failure][month] for month in ("25-04", "25-12", "26-06", "now")] == [int(n) for n in numbers]
