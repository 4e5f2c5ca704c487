"""What runs did is recorded: every error once, and what ended without one where that tells another story."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import catalogue, known, recorded, samples, stacks, timeline
from faultline.expectations import Expectation
from faultline.matrix import CHECKPOINTING, Cell
from faultline.oracle import Judgement, Outcome
from faultline.ranks import Ended, RankEnd
from faultline.results import RunFolder, result
from faultline.server import STACK

FAILURES = catalogue.failures()


def entry(failure, cell, message, stack="trl 1.0.0", outcome=Outcome.RAISES):
    error = {
        "type": "RuntimeError",
        "message": message,
        "traceback": f'  File "/home/me/x/site-packages/a.py"\n{message}',
    }
    ended = Ended([RankEnd({"rank": 0, "error": error, "evidence": {}})])
    judged = Judgement(outcome, "other" if message else "", f"RuntimeError: {message}", 0)
    return result(Cell(failure, "broken", cell), judged, ended, stack, Expectation(), "changed")


def test_recorded_errors_are_one_for_each_text_and_name_no_machine():
    """Breaks when the same error fills the file, an old stack's is lost, or a path tells who ran it."""
    same = [
        entry("zero_double_reduction", "zero2", f"The parameter {n} has already been reduced", f"trl {n}")
        for n in (1, 2)
    ]
    other = entry("zero_double_reduction", "zero2", "/home/me/x is gone")
    trains = entry("zero_double_reduction", "zero1", "", outcome=Outcome.TRAINS)
    found = recorded.merged([], [*same, other, trains])
    assert [e["signature"] for e in found] == ["other", "reduced-twice"]
    assert found[1]["stacks"] == {"trl 1": [same[0]["id"]], "trl 2": [same[1]["id"]]}
    assert recorded.merged(found, [*same, other]) == found
    assert "/home" not in json.dumps(found)
    assert "/home/" not in known.ERRORS.read_text() and "/root/" not in known.ERRORS.read_text()


def test_a_cell_that_trains_by_now_is_not_named_beside_the_error_that_it_ended_with():
    """Breaks when a cell whose file was changed stays the proof of an error that it doesn't show any more."""
    told = [entry("zero_double_reduction", place, "already been reduced") for place in ("zero1", "zero2")]
    trains = entry("zero_double_reduction", "zero2", "", outcome=Outcome.TRAINS)
    elsewhere = entry("zero_double_reduction", "zero1", "", stack="trl 2.0.0", outcome=Outcome.TRAINS)
    (left,) = recorded.merged(recorded.merged([], told), [trains, elsewhere])
    assert left["stacks"] == {"trl 1.0.0": [told[0]["id"]]}
    assert recorded.merged([left], [entry("zero_double_reduction", "zero1", "", outcome=Outcome.TRAINS)]) == []
    assert recorded.merged([], [trains, told[1]]), "the last run of a cell counts"


@pytest.fixture
def nothing_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "ERRORS", tmp_path / "errors" / "errors.jsonl")
    monkeypatch.setattr(known, "RAN", tmp_path / "errors" / "ran.json")
    known.recorded.cache_clear()
    known.ran.cache_clear()
    yield
    known.recorded.cache_clear()
    known.ran.cache_clear()


@pytest.mark.usefixtures("nothing_recorded")
def test_record_reads_all_in_a_folder_but_chaos(asked, tmp_path):
    for kind in ("part", "chaos"):
        folder = RunFolder(tmp_path / "runs" / kind)
        folder.path.mkdir(parents=True)
        folder.describe(kind=kind)
        folder.cells.write_text(json.dumps(entry("zero_double_reduction", "zero2", f"an error of {kind}")) + "\n")
    assert asked("record", str(tmp_path / "runs"))[0] == 0
    text = known.ERRORS.read_text()
    assert "an error of part" in text and "chaos" not in text
    assert asked("record", str(tmp_path / "errors"))[0] == 2
    assert known.ran().cells == {}, "what ran on no stack of stacks/ is in the errors alone"


RUNS = [
    (stack, strategy, message)
    for strategy in ("zero2", "zero2-offload")
    for stack, message in (("trl-1.0.0", "already reduced"), ("trl-1.0.0", ""), ("trl-1.7.0", ""), ("none", "broken"))
]


def ran(stack, strategy, message):
    pins = known.pins(stack) if stack in stacks.named() else {"trl": "1"}
    text = ", ".join(f"{name} {version}" for name, version in pins.items())
    return entry("zero_double_reduction", strategy, message, text, Outcome.RAISES if message else Outcome.TRAINS)


@pytest.mark.usefixtures("nothing_recorded")
@given(st.lists(st.sampled_from(RUNS), max_size=8), st.data())
def test_what_is_recorded_in_parts_is_what_is_recorded_at_once(runs, data):
    """Breaks when a run that is recorded again changes anything, or a cell that ran again counts as it did before."""
    nothing, results = timeline.Timeline([], {}), [ran(*each) for each in runs]
    whole = recorded.ran(nothing, results)
    assert recorded.ran(whole, results) == whole
    at = data.draw(st.integers(0, len(results)))
    assert recorded.ran(recorded.ran(nothing, results[:at]), results[at:]) == whole
    told = {
        (moment.date, Cell.parse(cell).strategy): did
        for cell, line in whole.cells.items()
        for moment, did in zip(whole.moments, line, strict=True)
        if did != timeline.NOT_RUN
    }
    last = {(stack, strategy): "raises other" if message else "trains" for stack, strategy, message in runs}
    assert told == {place: did for place, did in last.items() if place[0] != "none"}


def test_what_ran_on_a_stack_is_of_its_pins_and_of_cells_that_there_are():
    """Breaks when a stack's pins or a cell's name change, and what was recorded of them stays."""
    assert recorded.ran(known.ran(), []) == known.ran()
    for moment in known.ran().moments:
        assert known.stack_of(", ".join(f"{n} {v}" for n, v in moment.versions.items())) == moment.date


@pytest.mark.parametrize("name", sorted({*stacks.named()} - {stacks.TODAY}))
def test_every_stack_in_stacks_is_known_by_its_line(name):
    """Breaks when a run on a stack can't be told from one on any other releases."""
    lines = {line for entry in known.recorded() for line in entry["stacks"]}
    assert name in {*map(known.stack_of, lines), *(moment.date for moment in known.ran().moments)}


def recorded_on(versions):
    """Failure, signature and cell of every error that is recorded of stacks with these versions."""
    wanted = {f"{name} {version}" for name, version in versions.items()}
    return {
        (told_of["failure"], told_of["signature"], Cell.parse(name))
        for told_of in known.recorded()
        for stack, names in told_of["stacks"].items()
        if wanted <= {*stack.split(", ")}
        for name in names
    }


# Cells in which a package takes part: on a stack that is today's but for this one, the others do what they do today.
PARTS = {
    "deepspeed": lambda cell: cell.strategy.startswith("zero"),
    "trl": lambda cell: FAILURES[cell.failure].variant(cell.variant).trainer,
}


def test_every_recorded_error_has_a_cell_of_the_catalogue():
    for failure, _, cell in recorded_on({}):
        assert cell.failure == failure in FAILURES and cell.checkpointing in CHECKPOINTING


@pytest.mark.parametrize("name", stacks.named())
def test_every_stack_has_its_errors_recorded(name):
    """Breaks when a stack is added to stacks/ and what its cells end with isn't recorded: python -m faultline record.

    Which of them raise, and with which of the failures' errors, is known of today, of stacks that the timeline has, and
    of those that a failure names.
    """
    pins = {pin.partition("==")[0]: pin.partition("==")[2] for pin in stacks.read(name).requirements if "==" in pin}
    versions = known.pinned() if name == stacks.TODAY else {p: v for p, v in pins.items() if p in STACK}
    found = recorded_on(versions)
    differs = [package for package, version in versions.items() if known.pinned()[package] != version]
    assert len(differs) == 1 or {cell.precision for *_, cell in found} == {"fp32", "bf16"}
    takes_part = PARTS.get(" ".join(differs), lambda cell: True)
    raised = {
        (cell.failure, signature)
        for failure in FAILURES.values()
        for cell, (outcome, signature) in known.outcomes(failure, name).items()
        if cell.broken and outcome == "raises" and takes_part(cell)
        if name in (stacks.TODAY, *samples.pinned(failure, cell))
    }
    moments = [*known.over_time().moments]
    at = next((n for n, m in enumerate(moments) if m.versions and versions.items() <= m.versions.items()), None)
    for text, did in known.over_time().cells.items() if at is not None else ():
        outcome, _, signature = did[at].partition(" ")
        cell = Cell.parse(text)
        if outcome == "raises" and cell.variant.endswith("broken") and signature in FAILURES[cell.failure].signatures:
            raised.add((cell.failure, signature))
    assert raised <= {(failure, signature) for failure, signature, _ in found}
