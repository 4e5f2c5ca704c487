"""What raises nothing has a door: words are text, figures that go wrong are said, and the next step is named."""

import pytest

from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.observations import measured
from faultline.observations.symptoms import RESUMED, by_symptom, symptom

STEP = "{{'loss': {}, 'grad_norm': {}, 'epoch': 0.1}}"


@pytest.mark.parametrize(
    "words",
    [
        ["loss doesn't go down"],
        ["saved adapter is 443 bytes."],
        ["the", "loss", "is", "flat"],
        ["model.bin has few bytes and loads nothing"],
        ["卡住不动"],
    ],
)
def test_a_sentence_is_text_and_no_missing_file(asked, words):
    """Breaks when somebody who has no error, but words, hears of a file."""
    code, out, errors = asked("diagnose", *words)
    assert code == 1 and not errors
    assert "faultline list --symptoms" in out and "faultline check" in out and "faultline audit" in out


@pytest.mark.parametrize(
    "words", [["train.log"], ["my train log.txt"], ["a.log", "b.log", "c.log"], ["no/such/file here.log"], ["my log"]]
)
def test_a_mistyped_file_is_missing(asked, words):
    """Breaks when a log that can't be read is answered as if it had been."""
    code, _, [error] = asked("diagnose", *words)
    assert code == 2 and "can't be read" in error


def figures(asked, write, *lines):
    return asked("diagnose", str(write("".join(f"{line}\n" for line in lines))))[1]


def test_nan_from_some_step_on_is_said(asked, write):
    """Breaks when a run that ends in nan is told that its log shows nothing."""
    fine, lost = STEP.format(2.3, 1.5), STEP.format(0.0, "nan")
    assert "grad_norm is nan after 2 steps that had a number" in figures(asked, write, fine, fine, lost, lost, lost)
    assert "loss is nan after 1 step" in figures(asked, write, "loss: 2.3", *["loss: nan"] * 3)
    assert "nan" not in figures(asked, write, fine, lost, lost, lost, fine), "it recovered"
    assert "nan" not in figures(asked, write, fine, lost, lost), "half precision may skip some steps"


def test_equal_losses_of_all_ranks_are_said_with_their_two_reasons(asked, write):
    """Breaks when every rank trains on the same rows, or near misses are alarms."""
    same = [f"[rank{rank}]: loss: 2.3{step}" for step in range(4) for rank in (0, 1)]
    text = figures(asked, write, *same)
    assert "2 ranks log the same losses" in text and "the mean over the ranks" in text and "the same rows" in text
    assert "same losses" not in figures(asked, write, *same[:-1], "[rank1]: loss: 2.4")
    assert "same losses" not in figures(asked, write, *[line for line in same if "rank0" in line])
    assert "same losses" not in figures(asked, write, *["[rank0]: loss: 0.0", "[rank1]: loss: 0.0"] * 4)


WATCHDOG = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, NumelIn={}, x)"


@pytest.mark.parametrize(
    ("second", "apart"),
    [
        ((12, "ALLREDUCE", 1024), "rank 0 in ALLREDUCE of 512 numbers, rank 1 in ALLREDUCE of 1024 numbers"),
        ((12, "BROADCAST", 512), "rank 0 in ALLREDUCE, rank 1 in BROADCAST"),
        ((13, "ALLREDUCE", 1024), ""),
        ((12, "ALLREDUCE", 512), ""),
    ],
)
def test_ranks_that_wait_in_collectives_that_do_not_fit_are_said(asked, write, second, apart):
    """Breaks when ranks reduce tensors of different sizes, and somebody only hears of a timeout."""
    text = figures(asked, write, WATCHDOG.format(0, 12, "ALLREDUCE", 512), WATCHDOG.format(1, *second))
    assert apart in text and bool(apart) == ("different collectives" in text)


def test_every_silent_cell_has_a_symptom():
    """Breaks when a failure that raises nothing is behind no door."""
    doors = by_symptom()
    for failure in failures().values():
        for cell, did in measured.outcomes(failure).items():
            loud = did.outcome in (Outcome.TRAINS, Outcome.RAISES, Outcome.IMPOSSIBLE)
            assert loud == (not symptom(cell, did)), f"{cell.id}: {did}"
            assert loud or not cell.broken or cell.strategy in doors[symptom(cell, did)][failure.name]
    assert RESUMED in doors and "weights never move" in doors


def test_list_prints_symptoms_of_what_was_asked(asked):
    code, out, _ = asked("list", "--symptoms", "--failure", "zero3_save_pretrained_empty")
    assert code == 0
    assert out.splitlines()[0] == "the checkpoint is empty, or not what was trained" and "hangs" not in out
