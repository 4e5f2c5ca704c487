"""What raises nothing has a door: logs without an error or a gradient, figures that go wrong, somebody's words."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.diagnose.silent import Silence
from faultline.observations import measured
from faultline.observations.symptoms import RANKS_DIFFER, RESUMED, by_symptom, seen_of
from tests.support import logs
from tests.support.logs import printed

# A step as trainers log it: transformers 4 and 5, ms-swift, torchtitan and verl.
FORMS = (
    "{{'loss': 2.31, 'grad_norm': {}, 'learning_rate': 1e-05, 'epoch': 0.5}}",
    "{{'loss': '2.31', 'grad_norm': '{}', 'learning_rate': '1e-05', 'epoch': '0.5'}}",
    '{{"loss": 2.31, "grad_norm": {}, "learning_rate": 1e-05}}',
    "\x1b[31mstep: 10  \x1b[32mloss: 2.31  \x1b[38;2;180;60;0mgrad_norm: {}  \x1b[39mmemory: 4GiB",
    "step:7 - actor/loss:2.31 - actor/grad_norm:{} - actor/lr:1e-06",
)


def diagnosed(*lines, closely=False):
    return logs.diagnosed("".join(f"{line}\n" for line in lines), name="train.log", closely=closely)


@pytest.mark.parametrize("form", FORMS)
def test_steps_without_a_gradient_are_told(form):
    """Breaks when somebody whose run learns nothing hears that there is nothing in the log."""
    for norm, expected in (("0.0", "0"), ("0", "0"), ("0.0000", "0"), ("nan", "nan")):
        answer = diagnosed("Loading", *[form.format(norm)] * 5, "done")
        silence = answer.silence
        assert silence == Silence(expected, 5, "train.log", 2, 6, silence.failures, silence.earlier), norm
        assert answer.failure == "", "a guess was forced"
        text = printed(answer)
        assert f"grad_norm is {expected} in every step that it logs" in text and "train.log:2-6" in text


@pytest.mark.parametrize("form", FORMS)
def test_one_step_with_a_gradient_is_enough(form):
    """Breaks when a run is called silent that skipped some steps, or whose gradients are small."""
    for norm, at in itertools.product(("0.1", "1e-08", "4.123e-05", "12", "1.0", "00.5"), (0, 3, 6)):
        steps = [form.format("0.0")] * 6
        steps.insert(at, form.format(norm))
        answer = diagnosed(*steps)
        assert answer.silence is None and "grad_norm" not in printed(answer), f"{norm} at {at}"


NEAR = {
    "too few steps": [FORMS[0].format("0.0")] * 2,
    "no reward to learn from": ["{'loss': 0.0, 'grad_norm': 0.0, 'reward': 1.0, 'reward_std': 0.0}"] * 9,
    "no step was taken": ["{'loss': 1.0, 'grad_norm': 0.0, 'learning_rate': 0.0}"] * 9,
    "the trainer clips nothing": ["max_grad_norm: 0.0"] * 9,
    "a setting": ["'max_grad_norm': 0.0,", "clip_grad_norm=0", "grad_norm_type: 0"] * 9,
    "a version": ["grad_norm: 0.1.2", "grad_norm: 0x10"] * 9,
    "another figure": ["{'loss': 0.0, 'learning_rate': 0.0}"] * 9,
    "a sentence": ["step 1: loss 2.3", "the loss can be nan", "step 2 loss nan is bad", "step 3: the loss nan"],
    "an infinite one": [FORMS[0].format("inf")] * 9,
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_not_told(name):
    assert diagnosed(*NEAR[name]).silence is None


def test_an_error_comes_first():
    """Breaks when a run that died is told to have been silent, or a warning outranks its error."""
    steps = [FORMS[0].format("0.0")] * 9
    answer = diagnosed(WARNING, *steps, "RuntimeError: CUDA error: device-side assert triggered")
    assert answer.cause and answer.silence is None and not answer.warned


def test_rewards_and_settings_are_told_apart_from_silence():
    """Rewards that differ and no gradient are silence, also between steps in which they are alike."""
    assert diagnosed("max_grad_norm=1.0,", *[FORMS[0].format("0.0")] * 4).silence.steps == 4, "a setting is no step"
    same, differs = (f"{{'loss': 0.0, 'grad_norm': 0.0, 'reward_std': {std}}}" for std in ("0.0", "0.05"))
    assert diagnosed(*[same, differs] * 4).silence.steps == 4


def test_what_is_known_narrows_which_failures_do_so():
    """Breaks when a failure is named under a strategy where it was never seen to be silent."""
    steps = [FORMS[0].format("0.0")] * 4
    whole = diagnosed(*steps)
    assert whole.silence.failures["zero_double_reduction"] == ["fsdp1-full"]
    assert whole.silence.earlier["zero_double_reduction"] == ["fsdp2", "fsdp2-no-reshard"], "transformers mended it"
    assert "On older releases only:\n    zero0_bf16_loss_scale" in printed(whole)
    narrowed = diagnosed("fsdp_version: 2", *steps)
    assert narrowed.silence.earlier["zero_double_reduction"] == ["fsdp2", "fsdp2-no-reshard"]
    assert "zero_double_reduction" not in narrowed.silence.failures
    assert "zero_double_reduction" not in diagnosed("DistributedType.DEEPSPEED", *steps).silence.failures
    assert "fsdp_reference_model" in diagnosed(*[FORMS[0].format("nan")] * 4).silence.earlier


def test_a_traceback_that_is_cut_is_asked_for_whole():
    """Breaks when somebody who pasted half a traceback hears that nothing is wrong."""
    answer = diagnosed("Loading", "Traceback (most recent call last):", '  File "train.py", line 3, in <module>')
    assert "a traceback begins at train.log:2, and its last line names the error: paste that too" in printed(answer)


WARNING = "/x/checkpoint.py:92: UserWarning: None of the inputs have requires_grad=True. Gradients will be None"


@pytest.mark.parametrize("norm", ["0.0", "0.5", None])
def test_a_warning_that_is_all_that_a_failure_prints_is_named_with_it(norm):
    """Breaks when a run that trains its head alone, and says so, is told that its log has nothing."""
    answer = diagnosed("Loading", WARNING, "  warnings.warn(", *[FORMS[0].format(norm)] * 4 * bool(norm))
    [warned] = answer.warned
    assert (warned.failure, warned.line) == ("reentrant_frozen_embeddings_adapters", 2)
    assert answer.failure == "", "the warning alone is harmless where the part is frozen on purpose"
    text = printed(answer)
    assert "train.log:2" in text and "It is that failure if weights inside" in text and "fsdp2" in text


def test_a_warning_is_not_named_where_it_never_was_all():
    """Breaks when a warning is taken for another one, or told of another strategy."""
    assert not diagnosed("UserWarning: None of the inputs have names", "requires_grad=True").warned
    plain = diagnosed("distributed_type: MULTI_GPU", WARNING)
    assert plain.warned and "under ddp-*." in printed(plain)


def test_machines_are_told_as_well(asked, tmp_path):
    file = tmp_path / "train.log"
    file.write_text(f"{FORMS[1].format('0')}\n" * 4)
    code, out, _ = asked("diagnose", str(file), "--json")
    silence = json.loads(out)["silence"]
    file.write_text(f"{WARNING}\n")
    assert json.loads(asked("diagnose", str(file), "--json")[1])["warned"][0]["line"] == 1
    assert code == 1 and silence["steps"] == 4 and "zero_double_reduction" in silence["failures"]


STEPS = st.sampled_from([*(form.format(n) for form in FORMS for n in ("0.0", "nan", "0.5")), WARNING, "", "10%|#"])
REAL = st.deferred(lambda: st.sampled_from(logs.pasted_lines()))


@given(st.lists(STEPS, max_size=12) | st.lists(REAL, max_size=30) | st.lists(STEPS | REAL, max_size=20))
def test_law_lines_that_are_passed_over_change_no_answer(lines):
    """Breaks when the quick look at a log's bytes says otherwise than reading every line."""
    assert diagnosed(*lines, closely=True) == diagnosed(*lines)


SENTENCES = [
    "loss doesn't go down",
    "saved adapter is 443 bytes.",
    "model.bin has few bytes and is no use",
    "卡住不动",
    "NaN loss",
]


@pytest.mark.parametrize("words", [*([each] for each in SENTENCES), ["the", "loss", "is", "flat"]])
def test_a_sentence_is_text_and_no_missing_file(asked, words):
    """Breaks when somebody who has no error, but words, hears of a file."""
    code, out, errors = asked("diagnose", *words)
    assert code == 1 and not errors
    assert "faultline list --symptoms" in out and "faultline check" in out and "faultline audit" in out


@pytest.mark.parametrize(
    "words",
    [["my train log.txt"], ["a.log", "b.log", "c.log"], ["no/such/file here.log"], ["my log"], ["Errors of june.txt"]],
)
def test_a_mistyped_file_is_missing(asked, words):
    """Breaks when a log that can't be read is answered as if it had been."""
    code, _, [error] = asked("diagnose", *words)
    assert code == 2 and "can't be read" in error


def figures(asked, write, *lines):
    return asked("diagnose", str(write("".join(f"{line}\n" for line in lines))))[1]


def test_nan_from_some_step_on_is_said(asked, write):
    """Breaks when a run that ends in nan is told that its log shows nothing."""
    fine, lost = FORMS[0].format(1.5), FORMS[0].format("nan")
    assert "grad_norm is nan after 2 steps that had a number" in figures(asked, write, fine, fine, lost, lost, lost)
    assert "loss is nan after 1 step" in figures(asked, write, "loss: 2.3", *["loss: nan"] * 3)
    assert "nan" not in figures(asked, write, fine, lost, lost, lost, fine), "it recovered"
    assert ("fp16" in figures(asked, write, fine, lost)) > ("fp16" in figures(asked, write, fine, lost, lost, lost))
    table = "| epoch {} | 9 batches | loss  {} | ppl 3"
    for form in ("step {} loss {}", "iter {}: loss {}, time 3ms", table, "Loss{:.0}: {}"):
        text = figures(asked, write, *["x"] * 400, form.format("1", 2.3), form.format("2", "nan"))
        assert "loss is nan after 1 step" in text and "written:402  1 step." in text, form


def test_equal_losses_of_all_ranks_are_said_with_their_two_reasons(asked, write):
    """Breaks when every rank trains on the same rows, or near misses are alarms."""
    same = [f"[rank{rank}]: loss: 2.3{step}" for step in range(4) for rank in (0, 1)]
    text = figures(asked, write, *same)
    assert "2 ranks log the same losses" in text and "the mean over the ranks" in text and "the same rows" in text
    assert "same losses" not in figures(asked, write, *same[:-1], "[rank1]: loss: 2.4")
    assert "same losses" not in figures(asked, write, *[line for line in same if "rank0" in line])
    assert "same losses" not in figures(asked, write, *["[rank0]: loss: 0.0", "[rank1]: loss: 0.0"] * 4)


WATCHDOG = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, x)"
OF_512 = "12, OpType=ALLREDUCE, NumelIn=512"


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        (OF_512, "12, OpType=ALLREDUCE, NumelIn=1024", "ALLREDUCE of 512 numbers, rank 1 in ALLREDUCE of 1024 numbers"),
        (OF_512, "12, OpType=BROADCAST, NumelIn=512", "ALLREDUCE, rank 1 in BROADCAST"),
        ("7, OpType=ALLREDUCE", "7, OpType=_ALLGATHER_BASE", "ALLREDUCE, rank 1 in _ALLGATHER_BASE"),
        ("7, OpType=ALLREDUCE", "7, OpType=ALLREDUCE", ""),
        (OF_512, "13, OpType=ALLREDUCE, NumelIn=1024", ""),
        (OF_512, OF_512, ""),
    ],
)
def test_ranks_that_wait_in_collectives_that_do_not_fit_are_said(asked, write, first, second, apart):
    """Breaks when ranks run different code, or reduce tensors of different sizes, and one only hears of a timeout."""
    text = figures(asked, write, WATCHDOG.format(0, first), WATCHDOG.format(1, second))
    wait = f"The ranks wait in different collectives: rank 0 in {apart}."
    assert (wait in text) == bool(apart) == ("different collectives" in text)


def test_a_mismatch_that_torch_finds_has_both_collectives(asked, write):
    """Breaks when torch says that ranks run different collectives, and no word follows of what makes them."""
    one = "running collective: CollectiveFingerPrint(SequenceNumber=2, OpType={}, TensorShape=[8], x(dtype=float))"
    mismatch = f"Rank 1 is {one.format('ALLREDUCE')}, but Rank 0 is {one.format('ALLGATHER')}"
    text = figures(asked, write, f"RuntimeError: Detected mismatch between collectives on ranks. {mismatch}")
    assert "ranks run different collectives: rank 1 in ALLREDUCE, rank 0 in ALLGATHER. Look for a module" in text


def test_every_silent_cell_has_a_symptom():
    """Breaks when a failure that raises nothing is behind no door."""
    doors = by_symptom()
    for failure in failures().values():
        for cell, did in measured.outcomes(failure).items():
            loud = did.outcome in (Outcome.TRAINS, Outcome.RAISES, Outcome.IMPOSSIBLE)
            assert loud == (not seen_of(cell, did)), f"{cell.id}: {did}"
            assert loud or not cell.broken or all(cell.strategy in doors[w][failure.name] for w in seen_of(cell, did))
    assert RESUMED in doors and "weights never move" in doors
    apart = {"ddp_forward_bypasses_wrapper", "ddp_unfreeze_after_wrap"}
    assert apart <= doors[RANKS_DIFFER].keys(), "they differ from one process as well, which is how they end"


def test_list_prints_symptoms_of_what_was_asked(asked):
    code, out, _ = asked("list", "--symptoms", "--failure", "zero3_save_pretrained_empty")
    assert code == 0
    assert out.splitlines()[0] == "the checkpoint is empty, or not what was trained" and "hangs" not in out
