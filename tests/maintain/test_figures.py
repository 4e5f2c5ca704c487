"""What maintain counts and times: scores, soaks, benches, and the runs that `clean-results` leaves."""

import signal

import pytest

from faultline.base.paths import REPROS
from faultline.catalogue.loading import failures, load_module
from faultline.cells.cell import Cell
from faultline.maintain import machine, score
from faultline.maintain.score import LabelledLog
from faultline.ranks.job import Job
from faultline.runs import nodes
from faultline.runs.results import RankResult
from lab.proofs import bench, soak
from tests.support.entries import entry

ONE, OTHER = "zero3_dummy_loss", "rank0_only_save"


@pytest.mark.parametrize(
    ("answer", "mechanism", "stated", "worth"),
    [
        (ONE, False, ONE, "right"),
        (ONE, True, f"{ONE} (mechanism)", "right"),
        (ONE, False, f"{ONE} (mechanism)", "less"),
        (ONE, True, ONE, "more"),
        (ONE, False, f"{OTHER} or {ONE}", "one of"),
        (ONE, False, OTHER, "wrong"),
        (ONE, False, f"{OTHER} or grpo_lora_no_grad", "wrong"),
        (score.UNKNOWN, False, ONE, "wrong"),
        (score.UNKNOWN, False, f"{OTHER} or {ONE}", "listed"),
        (score.UNSETTLED, False, ONE, ""),
        (ONE, False, score.UNKNOWN, ""),
    ],
)
def test_the_worth_of_an_answer(answer, mechanism, stated, worth):
    assert score.worth(LabelledLog("g", "n", answer, b"", mechanism=mechanism), stated) == worth


def test_the_rounds_are_counted_by_their_first_answers():
    """Breaks when a log of a round is counted by what is answered today, or not at all."""
    tries = score.first_tries()
    rounds = {labelled.group for labelled, _ in tries}
    assert rounds == {f"round {number}" for number in range(1, len(rounds) + 1)} and len(tries) > 150
    *by_round, every = score.score(tries)
    assert every.with_answer + every.without + every.unsettled == len(tries)
    wrong = {scored.group: scored.worths["wrong"] for scored in by_round if scored.worths["wrong"]}
    assert wrong == {"round 4": 2, "round 5": 1, "round 6": 2}
    # A round in which nothing was named isn't one without a mistake, and a list for an error of no failure counts.
    several = f"{OTHER} or {ONE}"
    answers = [(LabelledLog("g", "n", label, b""), several) for label in (ONE, score.UNKNOWN)]
    shares = score.score(answers)[0].shares
    assert shares == {"precision of names": None, "with lists": 1.0, "lists for others wrong": 0.5, "recall": 1.0}
    assert "| - | 1.000 | 0.500 | 1.000 |" in score.table(answers)


RAN, ALSO = (Cell("grpo_lora_no_grad", "broken", strategy) for strategy in ("ddp", "zero2"))
HERE = {RAN: entry(RAN), ALSO: entry(ALSO, "raises", "empty-gradient")}


def judged(*seen, drawn=(RAN, ALSO), left=()):
    """The names of what is wrong, each with the cells."""
    return {name: [*wrong] for name, wrong in vars(soak.judged(drawn, seen, HERE, left)).items() if wrong}


def test_each_thing_that_is_wrong_is_seen():
    """Breaks when a soak's table has a zero, or a number, whatever happens."""
    one, other = entry(RAN), HERE[ALSO]
    assert not judged(other, one)
    assert not judged(one, entry(ALSO, "raises", "sharded-again")), "either of two ranks may be the first"
    assert judged(one) == {"lost": [ALSO.id]}
    assert judged(one, one, other) == {"doubled": [RAN.id]}
    assert judged(one, other, left=["port 9"]) == {"left": ["port 9"]}
    strange = entry(RAN, "diverges", "differs", "unexpected failure")
    assert judged(strange, other) == {"different": [f"{RAN.id}: diverges differs"]}
    killed = (RankResult(0, exit=-signal.SIGKILL),)
    blamed = entry(RAN, "crashes", "SIGKILL", "unexpected failure", ranks=killed, detail="killed")
    assert judged(blamed, other) == {"blamed": [f"{RAN.id}: killed"]}
    lost = entry(RAN, "invalid", "lost", "invalid", detail="lost 3 times")
    assert judged(lost, other) == {"blamed": [f"{RAN.id}: lost 3 times"]}


@pytest.mark.slow
def test_the_cells_that_are_timed_save_nothing_and_can_run_in_ranks_that_have_run_them(shared_server, references):
    """Breaks when a cell asks for a folder, which torchrun doesn't give, or is run again under another strategy."""
    for strategy in bench.STRATEGIES:
        cells = bench.healthy(strategy)
        assert len(cells) == bench.REPEATS == len({*cells})
        for cell in cells:
            assert not hasattr(load_module(REPROS / cell.failure), "save")
            assert not failures()[cell.failure].variant(cell.variant).trainer
        cell = Cell("fsdp_reference_model", "helper", strategy)
        reference = references.file(shared_server, cell)
        assert not reference.problem
        jobs = [Job(cell, 2, reference=str(reference.file), times=times) for times in (1, 2)]
        once, again = ([end.report for end in nodes.run(shared_server, job).ranks] for job in jobs)
        assert [report.error for report in again] == [None, None]
        for key in ("digests", "evidence"):
            assert [getattr(report, key) for report in again] == [getattr(report, key) for report in once], key


def test_the_newest_runs_stay_with_the_latest_and_what_is_no_run(tmp_path, monkeypatch, capsys):
    """Breaks when the run that every other command reads is removed, or files that somebody exported."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    for day, kind in enumerate(("", "check-", "", "stack-"), 1):
        name = f"{kind}2026-01-0{day}T10-00-00"
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "exports").mkdir()
    (tmp_path / "latest").symlink_to("2026-01-01T10-00-00")
    assert machine.clean_results(20) == 0 and capsys.readouterr().out.startswith("0 runs")
    assert machine.clean_results(2) == 0 and capsys.readouterr().out.startswith("1 run removed from ")
    left = {"2026-01-01T10-00-00", "2026-01-03T10-00-00", "stack-2026-01-04T10-00-00", "latest", "exports"}
    assert {entry.name for entry in tmp_path.iterdir()} == left
