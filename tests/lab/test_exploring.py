"""The search: what differs becomes small, and what is known is set aside."""

import json
from collections import Counter
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.finding import Difference, Factor, Finding
from faultline.ranks.report import Sketch
from faultline.runs.oracle import Judgement
from lab.explore import case as cases
from lab.explore import findings, fingerprint, known, overview, relations, shrinking
from lab.explore.case import Case
from lab.explore.known import Explains
from lab.explore.relation_checks import Tally
from lab.explore.relations import Question
from lab.explore.search import Search, Stage
from lab.explore.shrinking import Missing
from lab.programs import drawing, refusals
from lab.programs.fault import Fault
from lab.programs.program import Program
from tests.support.judged import RIGHT, WRONG, judged, raises

STRATEGIES = ("ddp", "zero2", "zero3")


def of(case, judgement=WRONG):
    return judged(case.cell, judgement, torch="2.13.0")


def judged_by(needs, strategies=STRATEGIES):
    """What a case does, if it goes wrong with all of these features under these strategies."""

    def look(case):
        wrong = needs <= {*case.program.features} and case.strategy in strategies
        return of(case, WRONG if wrong else RIGHT)

    return look


SIMPLE = ("layers", "width", "block", "container", "output", "buffer", "function", "clip", "accumulate", "optimizer")


@given(st.sets(st.sampled_from(SIMPLE), min_size=1), st.data())
def test_shrinking_leaves_what_is_needed_and_nothing_else(features, data):
    """Breaks when a finding names features that have no part in it, or not all that have."""
    needs = data.draw(st.sets(st.sampled_from(sorted(features)), min_size=1))
    program = Program.of(1, {name: drawing.VALUES[name][-1] for name in features})
    shrunk = shrinking.shrunk(Case(program, "zero2"), judged_by(needs), STRATEGIES)
    assert {*shrunk.case.program.features} == needs
    assert shrunk.minimal
    assert all(value == drawing.VALUES[name][1] for name, value in shrunk.case.program.chosen)


def test_shrinking_ends_under_the_plainest_engine_that_does_the_same():
    """Breaks when what DDP does too is a finding of ZeRO-3's, or a reader can't see which strategies are right."""
    case = Case(Program.of(1, {"layers": 3, "clip": "norm"}), "zero3")
    assert shrinking.shrunk(case, judged_by({"clip"}), STRATEGIES).case.strategy == "ddp"
    shrunk = shrinking.shrunk(case, judged_by({"clip"}, ("zero2", "zero3")), STRATEGIES)
    assert shrunk.case.strategy == "zero2"
    where = {"ddp": "trains", "zero2": "diverges", "zero3": "diverges"}
    assert {name: did.outcome for name, did in shrunk.where.items()} == where
    of_zero = Case(Program.of(1, {"zero.overlap_comm": False}), "zero3")
    assert shrinking.shrunk(of_zero, judged_by({"zero.overlap_comm"}), STRATEGIES).case.strategy == "zero2"
    program = Program.of(3, {"through": "tpo", "tokens": "uneven", "tpo.max_length": 20})
    small = shrinking.smaller(Case(program, "ddp"), lambda case: len(case.program.chosen) == len(program.chosen))
    assert small == (Case(program, "ddp"), True), "a plainer trainer has a setting of another"


def searched(cases, look):
    """A search to its end, and how often it asked for results."""
    search, rounds = Search(STRATEGIES), 0
    search.take(map(look, cases))
    search.sort(cases)
    while needed := search.shrink():
        rounds += 1
        search.take(map(look, needed))
    return search, rounds


def test_what_was_found_explains_what_has_all_of_it():
    """Breaks when one failure is listed once for each program that has it, or a search never ends."""
    cases = [
        Case(Program.of(number, {"clip": "norm", **more}), "zero2")
        for number, more in enumerate(({}, {"layers": 3}, {"width": 7}, {"block": "norm"}))
    ]
    search, rounds = searched(cases, judged_by({"clip"}, ("zero2", "zero3")))
    [cluster] = search.clusters.values()
    assert cluster.cases == len(cases) and {*cluster.shrunk.case.program.features} == {"clip"}
    assert 1 < rounds < 20
    later = Case(Program.of(9, {"clip": "norm", "layers": 3}), "zero2")
    assert {later, replace(later, strategy="zero3")}.isdisjoint(search.cases_of(later.program))
    assert Case(later.program, "ddp") in [*search.cases_of(later.program)]


ELSEWHERE = replace(WRONG, finding=Finding(first=Difference(2, 0, "backward", "head", 0.1)))


@pytest.mark.parametrize("other_run", [RIGHT, ELSEWHERE], ids=["trains", "elsewhere"])
def test_what_does_something_else_when_it_runs_again_is_filed_apart(other_run):
    """Breaks when a race counts as a finding of which a file will show nothing, or what differs elsewhere each time."""
    cases = [Case(Program.of(1, {name: "norm"}), "zero2") for name in ("clip", "block")]
    search, _ = searched(cases, lambda each: of(each, WRONG if each.program.chosen else RIGHT))
    assert len(search.findings) == 2 and not search.unsteady
    steady, other = search.findings
    for judgement in (other_run, WRONG):
        results = [of(steady.shrunk.case, WRONG), of(other.shrunk.case, judgement)]
        search.saw_again({result.cell: result for result in results})
    assert search.findings == [steady] and search.unsteady == [other] and search.runs(other) == 3
    assert overview.numbers_of(search, 1, 1.0, "").findings == 1


def test_what_trains_when_it_runs_again_is_no_finding():
    """Breaks when a machine that was slow for a moment makes a finding, or nobody hears of it."""
    case = Case(Program.of(1, {"accumulate": 3, "zero.stage3_max_reuse_distance": 0}), "zero2")
    hung = Judgement(Outcome.HANGS, Signature.NO_PROGRESS, "every rank stood at the same place for 20 s")
    search, _ = searched([case], lambda each: of(each, hung if each == case else RIGHT))
    assert not search.clusters and search.once == {case.words: "hangs"}
    assert search.funnel[Stage.DIFFER] == search.funnel[Stage.TRAIN_AGAIN] == 1


def test_what_is_known_by_its_features_is_not_run():
    """Breaks when known refusals hide what nobody knows, or a search goes on with results that it doesn't have."""
    search = Search(STRATEGIES)
    with pytest.raises(Missing) as missing:
        search.look(Case(Program(), "ddp"))
    assert missing.value.cases == [Case(Program(), "ddp")]
    spare = Program.of(0, {"spare": True})
    assert [case.strategy for case in search.cases_of(spare)] == ["zero2", "zero3"]
    assert search.funnel == Counter({Stage.PROGRAMS: 1, Stage.KNOWN_BY_FEATURES: 1})


@pytest.mark.parametrize("refusal", refusals.DOCUMENTED, ids=lambda each: each.words[:30])
def test_a_documented_refusal_is_in_the_source_that_its_link_shows(refusal):
    """Breaks when an engine says something else, or a link leads to another release or file than is installed."""
    package, link = refusal.file.partition("/")[0], known.source(refusal.file)
    assert f"/blob/v{metadata.version(package)}/" in link
    assert refusal.words in (Path(str(metadata.distribution(package).locate_file(""))) / refusal.file).read_text()
    strategy = next(name for name in strategies.names() if matches(name, refusal.strategies))
    case = Case(Program(), strategy)
    raised = of(case, raises(f"ValueError: {refusal.words} here"))
    assert known.by_result(case, raised) == known.Known(known.REFUSAL, link)
    assert known.by_result(case, of(case, raises("ValueError: no"))) is None


def test_what_is_known_of_features_is_a_failure_or_an_earlier_finding_under_its_strategies():
    """Breaks when what the catalogue has, or what was found before, is found again."""
    case = Case(Program.of(0, {"accumulate": 2, "accumulating": "by hand"}), "zero2")
    assert known.by_features(case, ()) == known.Known(known.FAILURE, "zero12_manual_ga_keeps_last_microbatch")
    explains = Explains("seen_before", (("clip", "norm"),), ("zero2",))
    case = Case(Program.of(0, {"clip": "norm", "layers": 3}), "zero2")
    assert known.by_features(case, [explains]) == known.Known(known.FINDING, "seen_before")
    assert known.by_features(replace(case, strategy="zero3"), [explains]) is None
    assert known.by_features(replace(case, device="cuda"), [explains]) is None, "a GPU may do otherwise"
    case = Case(Program(), "fsdp2")
    result = of(case, raises("KeyError: Missing optimizer state for parameter w"))
    reported = known.Known(known.UPSTREAM, refusals.REPORTED[0].report)
    assert known.by_result(case, result) == reported, "an open bug stands as what an engine refuses by intent"


def test_an_error_of_many_words_is_an_earlier_finding_whatever_leads_to_it():
    """Breaks when one failure is a finding for each feature that leads to it, or a common message hides others."""
    traceback = "CheckpointException: on rank 1: " + "File a.py, line 7, in load: " * 5 + "Missing key: optimizer.state"
    case = Case(Program.of(0, {"shape": "one", "between": "reloading"}), "fsdp1-full")
    for words, known_as in ((traceback, known.Known(known.FINDING, "seen_before")), ("ValueError: no", None)):
        explains = [Explains("seen_before", (("life", "resumed"),), ("fsdp1-full",), error=words)]
        ended = of(case, raises(words.replace("line 7", "line 8")))
        assert known.by_features(case, explains) is None and known.by_result(case, ended, explains) == known_as
        assert known.by_result(replace(case, strategy="ddp"), ended, explains) is None
    other = of(case, raises(f"{traceback} of another kind"))
    assert known.by_result(case, other, [Explains("seen_before", (), ("fsdp1-full",), error=traceback)]) is None


def test_planted_faults_are_counted_and_not_shrunk():
    """Breaks when a fault of our own making is listed as a finding."""
    cases = [Case(Program.of(n, {"layers": 3}), "zero2", fault=Fault("zero", "first")) for n in range(4)]
    search = Search(STRATEGIES)
    refused = raises("pre-scale gradients is not yet supported with ZeRO-2")
    ends = (WRONG, RIGHT, refused, Judgement(Outcome.IMPOSSIBLE, "", "no such setting"))
    search.take(map(of, cases, ends))
    search.sort(cases)
    assert search.planted == Counter({("zero", "differs"): 1, ("zero", ""): 1}), "what was refused was never planted"
    assert search.planted_by_kind == {"zero": {"": 1, "differs": 1}} and search.planted_seen == 1
    assert not search.left and not search.shrink()


@pytest.mark.parametrize(
    ("judgement", "words", "silent"),
    [
        (replace(WRONG, finding=Finding(factor=Factor("gradients", 0.75))), "scaled by 0.75", True),
        (replace(WRONG, finding=Finding(factor=Factor("gradients", 0.757))), "differs", True),
        (replace(WRONG, finding=Finding(factor=Factor("gradients", 0.7))), "differs", True),
        (replace(WRONG, signature=Signature.UNMOVED), "never moved", True),
        (WRONG, "differs", True),
        (raises("IndexError: list index out of range"), "raises IndexError", False),
        (Judgement(Outcome.HANGS, Signature.NO_PROGRESS), "hangs", False),
    ],
)
def test_the_kind_of_a_difference(judgement, words, silent):
    """Breaks when a silent failure is ranked behind one that everybody sees."""
    result = of(Case(Program(), "ddp"), judgement)
    assert fingerprint.kind(result) == words
    assert fingerprint.silent(result) is silent
    first = Difference(1, 0, "backward", "blocks.1.layer", 0.5)
    result = of(Case(Program(), "ddp"), replace(WRONG, finding=Finding(first=first)))
    assert fingerprint.role(result) == "backward blocks.N.layer", "one failure is listed once for each block"


def test_each_finding_is_kept_as_a_folder_of_its_own(tmp_path):
    """Breaks when what was found can't be replayed, is written over another one or twice, or a slip in it passes."""
    case = Case(Program.of(4, {"zero.overlap_comm": False, "clip": "norm"}), "zero2")
    shrunk = shrinking.shrunk(case, judged_by({"zero.overlap_comm", "clip"}), STRATEGIES)
    made = findings.write(tmp_path, shrunk, steady=3)
    assert made.name == "zero_clip_norm_overlap_comm_false_differs"
    assert findings.every(tmp_path) == [made]
    assert made.explains == Explains(made.name, shrunk.case.program.chosen, STRATEGIES)
    other = replace(shrunk, case=replace(shrunk.case, program=replace(shrunk.case.program, seed=5)))
    names = [findings.write(tmp_path, each, steady=1).name for each in (other, shrunk)]
    assert names == [f"{made.name}_2", made.name]
    (made.folder / findings.ABOUT).write_text('title = "x"\nstatus = "odd"\n')
    with pytest.raises(UsageError, match="the status is one of not looked into, new"):
        findings.every(tmp_path)
    (made.folder / findings.SPEC).write_text(json.dumps({"strategy": "zero9"}))
    with pytest.raises(UsageError):
        findings.every(tmp_path)


def trained(case, gradient, logged=()):
    result = of(case, RIGHT)
    sketch = Sketch({"weight": (gradient, gradient / 2)}, norms=(gradient,), logged=logged)
    return replace(result, checked=replace(result.checked, sketch=sketch))


def broken(search):
    return {each.question.words: (each.wrong, each.steady, each.runs) for each in search.broken}


def test_what_breaks_a_relation_is_made_small_and_runs_again():
    """Breaks when a person has to look for the two features of seven by which two healthy runs are apart."""

    def look(case):
        return trained(case, 2.0 if {"recompute", "accumulate"} <= {*case.program.features} else 1.0)

    wanted = {"recompute": "last block", "accumulate": 3, "layers": 3, "hook": "forward", "width": 6}
    case = Case(Program.of(1, wanted), "zero2")
    relation = next(each for each in relations.RELATIONS if each.name == "recomputation")
    search = Search(STRATEGIES)
    search.checks.waiting.append(Question(relation, case))
    search.take(map(look, [case, relation.twin(case)]))
    search.sort([case])
    assert [*broken(search)] == [f"recomputation: {case.words}, beside {relation.twin(case).words}"]
    while needed := search.shrink():
        search.take(map(look, needed))
    words = "2 micro-batches a step, last block recomputed under zero2, beside 2 micro-batches a step under zero2"
    assert broken(search) == {f"recomputation: {words}": ("gradient of weight", 1, 1)}
    assert search.checks.tallies["recomputation"] == Tally(pairs=1)
    for gradient in (2.0, 1.0):
        once_more = [
            trained(each, gradient if "recompute" in each.program.features else 1.0) for each in search.asked_again
        ]
        search.saw_again({result.cell: result for result in once_more})
    [line] = search.broken
    assert (line.steady, line.runs) == (2, 3)
    assert [cases.parse(json.dumps(spec)) for spec in line.as_json()["cases"]] == line.question.cases, "it can't be run"


def test_a_relation_that_a_planted_fault_breaks_is_counted_and_not_shrunk():
    """Breaks when nobody knows which faults a relation sees, or ours is listed as an engine's."""
    faulty = Case(Program.of(1, {"recompute": "last block"}), "zero2", Fault("zero", "first"))
    search = Search(STRATEGIES)
    asked = [*search.cases_of(faulty.program, faulty.fault)]
    [question] = {each.case: each for each in search.checks.waiting if each.case == faulty}.values()
    assert question.twin in asked and not question.twin.fault
    search.take(trained(case, 2.0 if case.fault else 1.0) for case in asked)
    search.sort(asked)
    tallies = search.checks.tallies
    assert sum(tally.planted for tally in tallies.values()) == len(STRATEGIES)
    assert sum(tally.seen for tally in tallies.values()) == len(STRATEGIES)
    assert not search.broken and not search.shrink()


def test_a_norm_that_is_logged_wrong_is_made_small():
    """Breaks when a wrong norm is only counted."""

    def look(case):
        return trained(case, 2.0, logged=(1.0 if "clip" in case.program.features else 2.0,))

    search, _ = searched([Case(Program.of(1, {"clip": "norm", "layers": 3}), "zero2")], look)
    assert [*broken(search)] == ["logged norms: clipping by norm under zero2"]
