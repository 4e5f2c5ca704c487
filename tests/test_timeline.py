"""Timelines: what cells did over time, as data that can be read back, and as pictures of it."""

import datetime
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline import campaigns, timeline
from faultline.errors import UsageError
from faultline.matrix import Cell
from faultline.report import chart
from faultline.timeline import UNINSTALLABLE, Moment, Timeline

CELL = Cell("grpo_lora_no_grad", "grpo-broken", "ddp").id
OTHER = Cell("grpo_lora_no_grad", "grpo-broken", "zero2").id
HOSTILE = '</title><script>alert("x")</script>\x1b[31m'

DAYS = st.dates(datetime.date(2024, 1, 1), datetime.date(2030, 1, 1))
OUTCOMES = st.sampled_from(["trains", "raises no-grad-fn", "raises other", "diverges differs", UNINSTALLABLE])
TEXTS = st.text(max_size=30)


@st.composite
def timelines(draw):
    moments = draw(st.lists(st.builds(Moment, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), TEXTS), max_size=5))
    one = st.lists(OUTCOMES, min_size=len(moments), max_size=len(moments))
    return Timeline(moments, {cell: draw(one) for cell in (CELL, OTHER)})


@given(DAYS, DAYS)
def test_months_are_their_first_days(first, last):
    """Breaks when a month is left out or comes twice, or a date lies outside of what was asked for."""
    days = list(timeline.months(first, last))
    assert all(day.day == 1 and first <= day <= last for day in days)
    assert len(set(days)) == len(days)
    between = {(first + datetime.timedelta(n)).replace(day=1) for n in range((last - first).days + 1)}
    assert set(days) == {day for day in between if day >= first}


@given(timelines())
def test_a_timeline_is_read_back_as_it_was(tmp_path_factory, told):
    """Breaks when committed data draws another chart than the run did."""
    file = tmp_path_factory.mktemp("timeline") / "timeline.json"
    timeline.write(file, told)
    assert timeline.read(file) == told
    json.loads(file.read_text())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"moments": []}',
        '{"moments": [], "cells": {"x": []}}',
        f'{{"moments": [], "cells": {{"{CELL}": ["trains"]}}}}',
        f'{{"moments": [{{"date": "2025-03-01", "versions": {{}}}}], "cells": {{"{CELL}": [""]}}}}',
        f'{{"moments": [{{"date": "2025-03-01", "versions": {{}}}}], "cells": {{"{CELL}": [3]}}}}',
        f'{{"moments": [{{"date": "2025-03-01", "versions": ["trl"]}}], "cells": {{"{CELL}": ["trains"]}}}}',
    ],
)
def test_another_file_is_refused_in_a_line(tmp_path, content):
    """Breaks when a cut or foreign file is drawn, or ends in a traceback."""
    file = tmp_path / "timeline.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="is not a timeline"):
        timeline.read(file)


def measured(name, outcome="trains", unusable=""):
    entries = [{"id": CELL, "outcome": outcome, "signature": ""}]
    return campaigns.Measured(name, "", [] if unusable else entries, unusable, {"trl": "1.0+cpu"})


def test_what_can_not_be_installed_is_said_and_no_gap():
    """Breaks when a month without a stack vanishes from the line of time, or looks like one in which all is well."""
    told = timeline.gather([measured("2025-03-01", "raises"), measured("2025-04-01", unusable="no wheel")], [CELL])
    assert told.cells[CELL] == ["raises", UNINSTALLABLE]
    assert told.moments[0].versions == {"trl": "1.0"} and told.moments[1].unusable == "no wheel"
    assert timeline.changes(told, CELL) == [("2025-03-01", "raises")]


@given(timelines())
def test_every_cell_is_in_the_row_of_its_variant(told):
    """Breaks when a square shows fewer cells than it stands for."""
    (row,) = timeline.rows(told)
    assert (row.failure, row.variant) == ("grpo_lora_no_grad", "grpo-broken")
    assert [point.total() for point in row.points] == [2] * len(told.moments)


def test_a_change_is_told_once():
    """Breaks when a cell that stays as it is looks as if it changed."""
    moments = [Moment(str(number), {}) for number in range(5)]
    told = Timeline(moments, {CELL: ["raises a", "raises a", UNINSTALLABLE, "trains", "trains"]})
    assert timeline.changes(told, CELL) == [("0", "raises a"), ("3", "trains")]


def test_no_text_gets_into_a_picture_or_page_as_it_is(tmp_path):
    """Breaks when a version or a resolver's words can close an element of the page."""
    told = Timeline([Moment(HOSTILE, {"trl": HOSTILE}, HOSTILE)], {CELL: ["trains"]})
    file = tmp_path / "timeline.html"
    chart.page(file, told)
    for text in (chart.picture(told), file.read_text()):
        assert "<script" not in text and "\x1b" not in text and "alert(" in text


def test_a_square_is_filled_by_what_its_cells_did():
    """Breaks when one bad cell of many can't be seen."""
    told = Timeline([Moment("2025-03-01", {})], {CELL: ["trains"], OTHER: ["diverges differs"]})
    picture = chart.picture(told)
    assert picture.count("<rect") == 2 + 2, "the legend doesn't have just the outcomes that there are"
    assert "trains 1, diverges 1" in picture


@pytest.mark.parametrize(
    ("outcomes", "mark"),
    [
        (("trains", "trains"), "✓"),
        (("trains", "raises other"), "✗1"),
        (("diverges differs", "diverges unmoved"), "≠2"),
        (("impossible", "trains"), "✓"),
        (("impossible", "impossible"), "–"),  # noqa: RUF001 - the report's dash
        ((UNINSTALLABLE, UNINSTALLABLE), "·"),
    ],
)
def test_the_terminal_shows_what_does_not_train(outcomes, mark):
    """Breaks when a silent failure looks like an uneventful month."""
    out = io.StringIO()
    told = Timeline([Moment("2025-03-01", {})], dict(zip((CELL, OTHER), ([each] for each in outcomes), strict=True)))
    chart.terminal(Console(file=out, width=100), told)
    line = next(line for line in out.getvalue().splitlines() if "grpo-broken" in line)
    assert line.split()[-1] == mark
