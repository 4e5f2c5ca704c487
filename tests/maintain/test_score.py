"""The score: what an answer is worth, and that first tries are counted by what the index says."""

import pytest

from faultline.maintain import score
from faultline.maintain.score import LabelledLog

ONE, OTHER = "zero3_dummy_loss", "rank0_only_save"


@pytest.mark.parametrize(
    ("answer", "mechanism", "stated", "worth"),
    [
        (ONE, False, ONE, "right"),
        (ONE, True, f"{ONE} (mechanism)", "right"),
        (ONE, False, f"{ONE} (mechanism)", "less"),
        (ONE, True, ONE, "more"),
        (ONE, False, f"{OTHER} or {ONE}", "one of"),
        (ONE, True, f"{OTHER} or {ONE}", "one of"),
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
    assert {scored.group: scored.worths["wrong"] for scored in by_round if scored.worths["wrong"]} == {
        "round 4": 2,
        "round 5": 1,
        "round 6": 2,
    }


def test_what_was_not_named_has_no_precision():
    """Breaks when a round in which nothing was named is printed as one without a mistake, or a list for an error of
    no failure counts nowhere."""
    several = f"{OTHER} or {ONE}"
    answers = [(LabelledLog("g", "n", label, b""), several) for label in (ONE, score.UNKNOWN)]
    shares = score.score(answers)[0].shares
    assert shares == {"precision of names": None, "with lists": 1.0, "lists for others wrong": 0.5, "recall": 1.0}
    assert "| - | 1.000 | 0.500 | 1.000 |" in score.table(answers)
