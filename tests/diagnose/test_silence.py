"""Logs that tell no error and no gradient: what is said of them, and of which logs nothing is."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.diagnose.silent import Silence
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
        assert answer.named == "", "a guess was forced"
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
    "the trainer clips nothing": ["max_grad_norm: 0.0"] * 9,
    "a setting": ["'max_grad_norm': 0.0,", "clip_grad_norm=0", "grad_norm_type: 0"] * 9,
    "a version": ["grad_norm: 0.1.2", "grad_norm: 0x10"] * 9,
    "another figure": ["{'loss': 0.0, 'learning_rate': 0.0}"] * 9,
    "an infinite one": [FORMS[0].format("inf")] * 9,
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_not_told(name):
    assert diagnosed(*NEAR[name]).silence is None


def test_an_error_comes_first():
    """Breaks when a run that died is told to have been silent."""
    answer = diagnosed(*[FORMS[0].format("0.0")] * 9, "RuntimeError: CUDA error: device-side assert triggered")
    assert answer.cause and answer.silence is None


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


WARNING = (
    "/x/torch/utils/checkpoint.py:92: UserWarning: None of the inputs have requires_grad=True. Gradients will be None"
)


@pytest.mark.parametrize("norm", ["0.0", "0.5", None])
def test_a_warning_that_is_all_that_a_failure_prints_is_named_with_it(norm):
    """Breaks when a run that trains its head alone, and says so, is told that its log has nothing."""
    answer = diagnosed("Loading", WARNING, "  warnings.warn(", *[FORMS[0].format(norm)] * 4 * bool(norm))
    [warned] = answer.warned
    assert (warned.failure, warned.line) == ("reentrant_frozen_embeddings_adapters", 2)
    assert answer.named == "", "the warning alone is harmless where the part is frozen on purpose"
    text = printed(answer)
    assert "train.log:2" in text and "It is that failure if weights inside" in text and "fsdp2" in text


def test_a_warning_is_not_named_beside_an_error_or_where_it_never_was_all():
    """Breaks when a warning outranks an error, or is taken for another warning or strategy."""
    assert not diagnosed(WARNING, "RuntimeError: CUDA error: device-side assert triggered").warned
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


STEPS = [form.format(n) for form in FORMS for n in ("0.0", "nan", "0.5")]


@given(st.lists(st.sampled_from([*STEPS, WARNING, "", "10%|#"]), max_size=12))
def test_law_lines_that_are_passed_over_change_no_answer(lines):
    """Breaks when the quick look at a log's bytes says otherwise than reading every line."""
    assert diagnosed(*lines, closely=True) == diagnosed(*lines)
