"""What runs did is recorded: every error once, and what ended without one where that tells another story."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base import packages
from faultline.base.axes import CHECKPOINTING
from faultline.base.errors import UsageError
from faultline.base.packages import STACK
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.cells.finding import Factor, Finding
from faultline.maintain import record
from faultline.observations import history, measured, recording, store
from faultline.observations.matching import Hints, happens, judge
from faultline.observations.recording import Timeline
from faultline.observations.store import MeasuredStack, Observations
from faultline.ranks.report import ErrorReport, Report
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Judgement
from faultline.runs.results import result
from faultline.runs.storage import RunFolder
from faultline.stacks import requests

FAILURES = loading.failures()


def entry(strategy, message="", versions=(("trl", "1.0.0"),)):
    """The result of a cell that trained, or that raised this."""
    error = ErrorReport("RuntimeError", message, f'  File "/home/me/x/site-packages/a.py"\n{message}')
    ended = Ended([RankEnd(Report(error=error))])
    outcome = Outcome.RAISES if message else Outcome.TRAINS
    judged = Judgement(outcome, "other" if message else "", f"RuntimeError: {message}", 0)
    cell = Cell("zero_double_reduction", "broken", strategy)
    return result(cell, judged, ended, dict(versions), Expectation(), "changed")


NOTHING = Observations()


def merged(before, *results):
    return record.merged(before, results)


def stacks_of(observations, error):
    """The versions of each stack on which cells ended with an error, in one line, with the cells."""
    matches = {}
    for cell, rows in observations.rows.items():
        for row in rows:
            if row.error == error.id:
                line = packages.stack_name(observations.stacks[row.stack].versions)
                matches.setdefault(line, []).append(cell.id)
    return matches


def test_recorded_errors_are_one_for_each_text_and_name_no_machine():
    """Breaks when the same error fills the file, an old stack's is lost, or a path tells who ran it."""
    same = [entry("zero2", f"The parameter {n} has already been reduced", [("trl", f"{n}")]) for n in (1, 2)]
    other, trains = entry("zero2", "/home/me/x is gone"), entry("zero1")
    matches = merged(NOTHING, *same, other, trains)
    reduced, missing = sorted(matches.errors.values(), key=lambda error: error.signature, reverse=True)
    assert (missing.signature, reduced.signature) == ("other", "reduced-twice")
    assert stacks_of(matches, reduced) == {"trl 1": [same[0].cell.id], "trl 2": [same[1].cell.id]}
    assert merged(matches, *same, other) == matches
    assert "/home" not in repr(matches)
    committed = (store.FOLDER / store.ERRORS).read_text()
    assert "/home/" not in committed and "/root/" not in committed


def test_a_cell_that_trains_by_now_is_not_named_beside_the_error_that_it_ended_with():
    """Breaks when a cell whose file was changed stays the proof of an error that it doesn't show any more."""
    raised = [entry(place, "already been reduced") for place in ("zero1", "zero2")]
    left = merged(merged(NOTHING, *raised), entry("zero2"), entry("zero1", versions=[("trl", "2.0.0")]))
    [error] = left.errors.values()
    assert stacks_of(left, error) == {"trl 1.0.0": [raised[0].cell.id]}
    assert not merged(left, entry("zero1")).errors
    assert merged(NOTHING, entry("zero2"), raised[1]).errors, "the last run of a cell counts"
    # A traceback is that of today's releases, as a report links to its lines.
    today = tuple(measured.pinned().items())
    old, new = (entry("zero2", "same", versions) for versions in ([("trl", "1.0")], today))
    new = replace(new, ranks=(replace(new.ranks[0], error=replace(new.ranks[0].error, traceback="line 2")),))
    for matches in (merged(NOTHING, old, new), merged(NOTHING, new, old), merged(merged(NOTHING, old), new)):
        assert [error.traceback for error in matches.errors.values()] == ["line 2"]


def diverged(finding, outcome=Outcome.DIVERGES):
    judged = Judgement(outcome, "differs", finding=finding)
    cell = Cell("global_count_without_world_size", "broken", "ddp")
    return result(cell, judged, Ended([RankEnd(Report())]), measured.pinned(), Expectation(), "expected")


def test_what_is_wrong_with_the_numbers_is_that_of_the_last_run(folder):
    """Breaks when a report tells of a factor that today's releases don't have any more, or of one that nobody read."""
    halved, worse = (Finding(Factor("gradients", times)) for times in (0.5, 0.25))
    recorded = merged(NOTHING, diverged(halved))
    assert [(each.stack, each.finding) for each in recorded.divergences.values()] == [("today", halved)]
    store.write(recorded)
    assert store.everything() == recorded
    assert [each.finding for each in merged(recorded, diverged(worse)).divergences.values()] == [worse]
    assert not merged(recorded, diverged(Finding(), Outcome.TRAINS)).divergences


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FOLDER", tmp_path / "observations")
    store.forget()
    yield tmp_path / "observations"
    store.forget()


def test_record_reads_all_in_a_folder_but_chaos(asked, tmp_path, folder):
    for kind in ("part", "chaos"):
        run = RunFolder(tmp_path / "runs" / kind)
        run.path.mkdir(parents=True)
        run.describe(kind=kind)
        run.cells.write_text(json.dumps(entry("zero2", f"an error of {kind}").as_json()) + "\n")
    assert asked("maintain", "record", str(tmp_path / "runs"))[0] == 0
    text = (folder / store.ERRORS).read_text()
    assert "an error of part" in text and "chaos" not in text
    assert asked("maintain", "record", str(folder))[0] == 2
    assert {row.outcome for rows in store.everything().rows.values() for row in rows} == {"raises"}


@pytest.mark.parametrize("content", ["[]", "{", '["a/zero3/off/fp32/w2/cpu"]', '{"stack": 1}', "[1, 2, 3]"])
def test_another_file_is_refused_in_a_line(folder, content):
    """Breaks when a cut or foreign file ends in a traceback."""
    (folder / store.CELLS).mkdir(parents=True)
    (folder / store.CELLS / "zero_double_reduction.jsonl").write_text(content)
    with pytest.raises(UsageError, match="does not hold observations"):
        store.rows("zero_double_reduction")


RUNS = [
    (stack, strategy, message)
    for strategy in ("zero2", "zero2-offload")
    for stack, message in (("trl-1.0.0", "already reduced"), ("trl-1.0.0", ""), ("trl-1.7.0", ""), ("none", "broken"))
]


def ran(stack, strategy, message):
    pins = measured.pins(stack) if stack in requests.named() else {"trl": "1"}
    return entry(strategy, message, pins.items())


@pytest.mark.slow
@given(st.lists(st.sampled_from(RUNS), max_size=8), st.data())
def test_what_is_recorded_in_parts_is_what_is_recorded_at_once(runs, data):
    """Breaks when a run that is recorded again changes anything, or a cell that ran again counts as it did before."""
    results = [ran(*each) for each in runs]
    whole = merged(NOTHING, *results)
    assert merged(whole, *results) == whole
    at = data.draw(st.integers(0, len(results)))
    assert merged(merged(NOTHING, *results[:at]), *results[at:]) == whole
    last_rows = {(row.stack, cell.strategy): row.did for cell, rows in whole.rows.items() for row in rows}
    named = {place: did for place, did in last_rows.items() if not place[0].startswith(store.OTHER)}
    raised = Did("raises", "other")
    assert named == {(at, under): raised if error else Did("trains") for at, under, error in runs if at != "none"}


def test_a_timeline_becomes_the_recorded_one(folder):
    """Breaks when the months that a run wrote are not those that are read, or what else was recorded is lost."""
    before = merged(NOTHING, *(ran(*each) for each in RUNS))
    days = ("2026-03-01", "2026-04-01", "2026-05-01")
    stacks = [
        MeasuredStack(days[0], {"trl": "0.9"}, days[0]),
        MeasuredStack(days[1], measured.pins("trl-1.0.0"), days[1]),
    ]
    cell = Cell("zero_double_reduction", "broken", "ddp")
    stacks.append(MeasuredStack(days[2], {}, days[2], "no wheel"))
    did = Timeline(stacks, {cell: [Did("diverges", "nan"), Did("trains"), recording.UNINSTALLABLE]})
    after = recording.with_timeline(before, did)
    store.write(after)
    assert store.everything() == after, "what is written is not what is read"
    read = recording.committed()
    assert [stack.month for stack in read.stacks] == [*days] and read.cells == did.cells
    assert read.stacks[1].name == "trl-1.0.0", "a stack is kept once"
    assert {*before.errors} == {*after.errors} and before.rows.items() <= after.rows.items()
    assert recording.with_timeline(after, did) == after


def test_what_is_recorded_has_the_names_that_there_are():
    """Breaks when pins, a cell's name or patterns change and the old name stays, or a row has no stack or error."""
    everything = store.everything()
    assert recording.with_current_names(everything) == everything
    names = {*requests.named()} - {packages.TODAY}
    assert {name: store.stacks()[name].versions for name in names} == {name: measured.pins(name) for name in names}
    referred = set()
    for cell, rows in everything.rows.items():
        for row in rows:
            assert cell.failure in FAILURES and cell.checkpointing in CHECKPOINTING, cell.id
            assert row.stack in store.stacks(), cell.id
            if row.error:
                error = store.errors()[row.error]
                assert (error.failure, error.outcome, error.signature) == (cell.failure, row.outcome, row.signature)
                referred.add(row.error)
    assert referred == {*store.errors()}


@pytest.mark.parametrize("stack", measured.named_stacks())
def test_a_rule_about_versions_expects_what_was_recorded(stack):
    """Breaks when a rule with `versions` contradicts the newest run of one of its cells on a stack of stacks/."""
    versions = measured.pins(stack)
    wrong = []
    for failure in FAILURES.values():
        rules = expected.rules(failure)
        for cell, rows in store.rows(failure.name).items():
            runs = [row for row in rows if row.stack == stack]
            rule = expected.first_rule(rules, cell, versions)
            if not runs or not rule or not rule.versions:
                continue
            expectation = expected.expect(rules, cell, versions)
            if expected.verdict(expectation, runs[-1].outcome, runs[-1].signature) != "expected":
                wrong.append(f"{cell.id}: {rule} expects {expectation.outcome}, recorded {runs[-1].did}")
    assert not wrong


def happening(failure, signature):
    return happens(judge(FAILURES[failure], signature, Hints(frozenset(["fsdp1-full"]))))


def test_a_place_is_named_once_and_without_its_variants():
    """Breaks when the same place stands there for each variant and precision, with the variant's name."""
    for failure in FAILURES.values():
        for signature in failure.errors:
            texts = happening(failure.name, signature)
            assert len({*texts}) == len(texts) and not [text for text in texts if " in broken" in text], texts
    assert happening("fsdp_reference_model", "two-devices") == ["as misplaced (reference-model) under fsdp1-full"]


# Cells in which a package takes part: on a stack that is today's but for this one, the others do what they do today.
PARTS = {
    "deepspeed": lambda cell: cell.strategy.startswith("zero"),
    "trl": lambda cell: FAILURES[cell.failure].variant(cell.variant).trainer,
}


@pytest.mark.parametrize("name", requests.named())
def test_every_stack_has_its_errors_recorded(name):
    """Breaks when a stack is added to stacks/ and what its cells end with isn't recorded: faultline maintain record.

    Which of them raise is known of today, of stacks that the timeline has, and of those that a failure names.
    """
    pins = {pin.partition("==")[0]: pin.partition("==")[2] for pin in requests.read(name).requirements if "==" in pin}
    versions = measured.pinned() if name == packages.TODAY else {p: v for p, v in pins.items() if p in STACK}
    matches = {
        (error.failure, error.signature, cell)
        for error in store.errors().values()
        for cell, row in measured.runs(error)
        if versions.items() <= store.stacks()[row.stack].versions.items()
    }
    # A stack with today's other packages of its day differs in one from what was today's.
    others = [stack.versions for stack in store.stacks().values() if stack.name not in requests.named()]
    differing = [[p for p, v in versions.items() if other[p] != v] for other in (measured.pinned(), *others)]
    differs = min(filter(None, differing), key=len, default=[])
    assert len(differs) == 1 or {cell.precision for *_, cell in matches} == {"fp32", "bf16"}
    takes_part = PARTS.get(" ".join(differs), lambda cell: True)
    raised = {
        (cell.failure, signature)
        for failure in FAILURES.values()
        for cell, (outcome, signature) in measured.outcomes(failure, name).items()
        if cell.broken and outcome == "raises" and takes_part(cell)
        if name in (packages.TODAY, *history.pinned(failure, cell))
    }
    of_months = [month.versions for month in measured.months()]
    months = [number for number, each in enumerate(of_months) if each and versions.items() <= each.items()]
    for failure in FAILURES.values() if months else ():
        for cell, rows in measured.monthly(failure.name).items():
            row = rows[months[0]]
            if row and row.outcome == "raises" and cell.broken and row.signature in failure.errors:
                raised.add((failure.name, row.signature))
    assert raised <= {(failure, signature) for failure, signature, _ in matches}
