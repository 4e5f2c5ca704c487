"""One of several: which failures are shown, how they are told apart, and what helps against all of them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.catalogue import loading
from faultline.diagnose.command import DiagnoseResult
from faultline.diagnose.diagnosis import NAMED, NOT_THERE, SEVERAL, details
from faultline.observations import ambiguity, measured, store
from faultline.observations.matching import CERTAIN, LIKELY
from faultline.strategies.naming import mentioned
from tests.support import logs
from tests.support.logs import NO_GRAD, RECOMPUTED, TIMEOUT, TWO_DEVICES, UNUSED, diagnosed, place, printed, traceback
from tests.support.night import sampled

FAILURES = loading.failures()
OUTSIDE, SAVED_EMPTY = "fsdp2_method_or_child_outside_root_forward", "zero3_save_pretrained_empty"
GENERATED = "fsdp_generate_while_training"
MIXED = "fsdp2_mixed_original_dtype"
TYPE_ALONE = ["CheckpointError", "torch.utils.checkpoint.CheckpointError:", "I get a CheckpointError when I train"]
EMPTY = f"""{RECOMPUTED}
tensor at position 13:
saved metadata: {{'shape': torch.Size([1024, 1024]), 'dtype': torch.bfloat16}}
recomputed metadata: {{'shape': torch.Size([0]), 'dtype': torch.bfloat16}}
"""


def names(answer):
    return [match.failure.name for match in answer.several]


@pytest.mark.parametrize("text", [NO_GRAD, NO_GRAD.removeprefix("RuntimeError: "), UNUSED, RECOMPUTED, *TYPE_ALONE])
def test_the_lines_that_people_paste_alone_are_one_of_several(text):
    """Breaks when the most pasted lines get no answer, or one that says two things at once."""
    answer = diagnosed(text)
    out = printed(answer)
    assert answer.answer == SEVERAL and out.startswith("One of several  ")
    assert "Not in the catalogue" not in out and "If none of these holds, it is not in the catalogue." in out
    each = re.findall("^  It is [a-z0-9_]+ if the run has .+ runs ended so(?: under ddp[^]]*)?]$", out, re.MULTILINE)
    assert len(each) == len(names(answer))


def test_no_alphabet_decides_between_two_that_are_alike_in_all_else():
    """Breaks when the first name is named where nothing else tells two failures apart."""
    ends = [each for each in store.errors().values() if each.signature == "sharded-embedding"]
    answer = diagnosed(next(each.traceback for each in ends if each.failure == "distillation_teacher_not_sharded"))
    assert answer.answer == SEVERAL and {"distillation_teacher_not_sharded", GENERATED} <= {*names(answer)}


@pytest.mark.parametrize(
    "text",
    [
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: a message that nobody has seen",
        "MyCheckpointErrors",
        "CheckpointError('the disk is full')",
        "RuntimeError",
    ],
)
def test_a_type_says_enough_only_alone(text):
    """Breaks when a message of its own, another name or a type that all mistakes raise passes for a failure."""
    assert diagnosed(text).answer == NOT_THERE


@pytest.mark.parametrize(
    "text",
    [
        "DPO with a LoRA: element 0 of tensors does not require grad\n",
        f"# A title\n\nAs soon as I start it says `{NO_GRAD.upper()}` and ends.\n" + "More words.\n" * 200,
        f"<td>{NO_GRAD.partition(': ')[2]}</td>\n<td>NaN</td>\n",
        f"[rank1]: {TIMEOUT}element 0 of tensors does not require grad\n",
    ],
)
def test_an_errors_words_are_read_wherever_they_are_quoted(text):
    """Breaks when a title, a sentence, a table or a log of consequences beside it hides the only words that tell."""
    assert names(diagnosed(text))[0] == "grpo_lora_no_grad"
    assert not diagnosed("step 1\n" * 500 + "element 0 of tensors does not require grad\n").cause, "a log is no quote"


def test_a_message_that_was_wrapped_is_read_as_one():
    words = RECOMPUTED.rpartition(": ")[2].replace(" have", "\nhave")
    cause = diagnosed(f"CheckpointError: {words}\nStep 3\n").cause
    assert cause.message.endswith("forward pass.") and cause.last == 1


@pytest.mark.parametrize(
    ("end", "left"),
    [
        *((end, "") for end in ("</code></pre>", " </code> </pre> ", "</a>" * 9)),
        *((end, "") for end in ("System Info- Platform: Linux", "### Reproduction: see above")),
        *((f" ->{tag}", " ->") for tag in (" </p>", "")),
        *((remaining, remaining) for remaining in ("</b>c", " List[int></p>")),
    ],
)
def test_what_a_page_puts_behind_an_error_is_no_part_of_it(end, left):
    cause = diagnosed(f"<pre><code>{NO_GRAD}{end}\n").cause
    assert cause.text == NO_GRAD + left


def test_a_timeout_beside_a_save_is_what_only_some_ranks_call():
    """Breaks when a timeout is taken for a save on rank 0 without a word of saving, or never."""
    timeout = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLGATHER)\n"
    answer = diagnosed(f"under FSDP accelerator.save_state(folder) hangs\n{timeout}")
    assert answer.failure == "rank0_only_save" and answer.match.mechanism
    assert "It is rank0_only_save only if the run has" in printed(diagnosed(timeout)) and not diagnosed(timeout).match


def test_an_empty_recomputed_shape_is_zero3s():
    """Breaks when the lines below the error, which have the shape, are not read without a traceback above it."""
    line, zero3 = " ".join(EMPTY.split()), "zero3_nonreentrant_frozen_checkpointerror"
    for text in (EMPTY, line, line.removesuffix(", 'dtype': torch.bfloat16}"), line.replace("torch.Size([0])", "[0]")):
        assert len(names(diagnosed(text))) == 3 and names(diagnosed(text))[0] == zero3
        assert diagnosed(f"trl, LoRA\n{text}").failure == zero3
    out = printed(diagnosed(EMPTY, **place("zero3")))
    assert re.search(rf"verified +{zero3}: deepspeed 0.19.3 or newer +\[first .+; (\d+) of \1 cells\]", out)
    assert all("ZeRO-3" in match.distinguished_by for match in diagnosed(RECOMPUTED).several)
    assert diagnosed(EMPTY.replace("[0]", "[964]")).answer == NOT_THERE, "another shape is no placeholder of ZeRO-3"


def test_a_reference_model_left_on_the_cpu_is_named_on_a_condition():
    """Breaks when a traceback through a reference model gets no answer, or one that hides what it takes.

    An option is no line of the log: it makes nothing certain.
    """
    frames = '  File "trl/trainer/grpo_trainer.py", line 1241, in _get_per_token_logps\n'
    frames += "    ref_per_token_logps = self._get_per_token_logps(self.ref_model, prompt_completion_ids)\n"
    log = traceback(TWO_DEVICES, frames=frames)
    answer = diagnosed(log)
    assert answer.failure == "fsdp_reference_model" and answer.match.only_if == "it ran under FSDP"
    assert "likely  if it ran under FSDP, which this log doesn't show" in printed(answer)
    assert diagnosed(f"--fsdp full_shard\n{log}").match.only_if == ""
    asked = diagnosed(log, **place("fsdp2"))
    assert (asked.failure, asked.match.sure) == ("fsdp_reference_model", LIKELY)
    for other in (diagnosed(log, **place("zero3")), diagnosed(f"--deepspeed zero3\n{log}")):
        assert other.answer == NOT_THERE
    assert not diagnosed(log.replace("ref_model", "model")).failure


def test_the_failure_that_more_of_the_log_fits_comes_first():
    """Breaks when several failures are shown by their names alone."""
    by_runs = [ambiguity.runs(match) for match in diagnosed(NO_GRAD).several]
    assert by_runs == sorted(by_runs, reverse=True)
    ready = "RuntimeError: Expected to mark a variable ready only once.\n"
    assert names(diagnosed(ready)) != names(diagnosed(f"use_lora: true\n{ready}"))
    assert names(diagnosed(f"use_lora: true\n{ready}"))[0] == "ddp_peft_reentrant_ready_twice"


GRPO, READY_TWICE = "grpo_lora_no_grad", "ddp_peft_reentrant_ready_twice"
FROZEN = "zero3_nonreentrant_frozen_checkpointerror"
ZERO1 = "[INFO] [config.py:1007:print]   zero_optimization_stage ...... 1\n"


@pytest.mark.parametrize(
    ("log", "strategy", "left", "behind"),
    [
        (NO_GRAD, "ddp", [GRPO, READY_TWICE], []),
        (NO_GRAD, "zero3", [GRPO, FROZEN], []),
        (f"{ZERO1}{NO_GRAD}", "", [GRPO], [READY_TWICE, FROZEN]),
        (NO_GRAD, "fsdp2", [GRPO], [READY_TWICE, FROZEN]),
    ],
)
def test_no_condition_is_of_another_strategy_than_the_runs(log, strategy, left, behind):
    """Breaks when "if the run has DDP" is printed for a run of ZeRO-1, or runs of other strategies are counted."""
    answer = diagnosed(log, **place(strategy))
    assert names(answer) == left + behind
    assert [ambiguity.elsewhere(match) for match in answer.several] == [False] * len(left) + [True] * len(behind)
    out = printed(answer)
    assert len(re.findall(r"\[\d+ runs ended so under (?:ddp|zero[13]\*?|fsdp2)\]", out)) == len(left)
    assert out.count("runs ended so; measured elsewhere, under ") == len(behind)
    assert ambiguity.runs(answer.several[0]) < ambiguity.runs(diagnosed(NO_GRAD).several[0])
    assert all(("ddp", "off") in match.where for match in diagnosed(UNUSED, **place("ddp", "off")).several)
    assert diagnosed(NO_GRAD, **place("", "off")).answer == NOT_THERE


def test_what_distinguishes_an_error_with_conditions_is_said_and_mentions_where_it_was_measured():
    """Breaks when one of several can only be shown by its title, or is said to be measured elsewhere where it was."""
    for failure in FAILURES.values():
        assert {*failure.recognition.error} <= {*failure.errors}
        tables = (*failure.recognition.error.values(), *failure.recognition.mechanism.values())
        conditions = [each for table in tables for each in table.any_of]
        patterns = [pattern for each in conditions for pattern in (*each.present, *each.absent)]
        assert not any(".*" in pattern for pattern in patterns), "it would be tried at each character of a log"
        for name, error in failure.recognition.error.items():
            assert error.distinguished_by or not error.any_of, (failure.name, name)
            assert not any(each.only_if for each in error.may_be), (failure.name, name)
            mentioned_there = mentioned(error.distinguished_by)
            if error.any_of and not error.raised_on_load and mentioned_there:
                measured_in = {strategy for strategy, _ in measured.places(failure, name)}
                assert measured_in <= mentioned_there, (failure.name, name)


def test_the_strategies_that_a_sentence_mentions_are_known():
    """Breaks when a condition is held against a strategy that its words don't mention."""
    for words, some in {
        "an adapter under ZeRO-1 or ZeRO-2": {"zero1", "zero2-offload"},
        "DDP and an adapter": {"ddp", "ddp-static-graph"},
        "`torch.autograd.grad` under DeepSpeed": {"zero0", "zero3"},
        "FSDP1, and tied embeddings": {"fsdp1-full"},
        "FSDP, and an adapter": {"fsdp1-full", "fsdp2"},
        "a LoRA of TRL's GRPO in a single process, `DDP(model)`": set(),
    }.items():
        assert mentioned(words) >= some and bool(mentioned(words)) == bool(some), words


def test_what_helps_against_all_was_measured_against_each():
    """Breaks when a remedy of one failure is shown for another, against which nobody tried it."""
    answer = diagnosed(NO_GRAD)
    fates = {fate.key: fate for fate in details(answer).fates}
    assert fates["off"].word == "conditional" and "enable_input_require_grads" not in fates
    assert re.search(rf"conditional +{GRPO}: trl 0.16.0 or newer +\[first .+, in grpo-broken\]", printed(answer))
    unused = diagnosed(UNUSED)
    assert details(unused).fates == [] and "What helps against one" in printed(unused)


def test_words_that_anything_raises_need_a_reason_to_be_one_of_several():
    assert diagnosed(TWO_DEVICES).answer == NOT_THERE
    known = ["distillation_teacher_not_sharded", "fsdp_reference_model"]
    assert names(diagnosed(f"distributed_type: FSDP\n{TWO_DEVICES}")) == known


def contradictions(answer):
    """What doesn't hold of an answer and holds of each, whatever the log is."""
    more = details(answer)
    known = DiagnoseResult(answer, more).as_json()
    named, listed, unknown = (known["answer"] == each for each in (NAMED, SEVERAL, NOT_THERE))
    holds = {
        "it is one of three answers": named + listed + unknown == 1,
        "what is named is a failure, and how sure": named == bool(known["failure"]) == bool(known["sure"]),
        "a list has two or three": listed == (len(answer.several) in (2, 3)) and len(answer.several) != 1,
        "a list has each once": len({*names(answer)}) == len(answer.several),
        "what is unknown was seen by nobody": not unknown or not (known["seen"] or known["claims"]),
        "it is written as JSON": bool(json.dumps(known)),
        "it is shown as what it is": ("Not in the catalogue" in printed(answer, more)) <= unknown,
    }
    return [words for words, held in holds.items() if not held]


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(range(4), 4))
def test_the_answer_to_every_real_log_says_one_thing(part):
    """Breaks when an answer contradicts itself, such as one that names a failure and says that none is known."""
    wrong = {sample.name: contradictions(logs.answer_to(sample)) for sample in logs.pasted()[part::4]}
    assert not {name: words for name, words in wrong.items() if words}


@pytest.mark.slow
@given(st.deferred(lambda: st.sampled_from(logs.pasted())), st.data())
def test_a_log_that_is_cut_or_wrapped_never_turns_to_another_certain_failure(sample, data):
    """Breaks when a part of a log is taken for certain for something that the whole log isn't."""
    whole = logs.answer_to(sample)
    lines = sample.log.decode().splitlines()
    first = data.draw(st.integers(0, len(lines) - 1))
    left = lines[first : data.draw(st.integers(first + 1, len(lines)))]
    before = data.draw(st.sampled_from(["", "[rank1]: ", "2025-04-02T10:11:12.345Z ", "> ", "trainer-0  | "]))
    width = data.draw(st.sampled_from([0, 60, 100]))
    wrapped = [line[at : at + width] for line in left for at in range(0, max(1, len(line)), width)] if width else left
    part = diagnosed("\n".join(before + line for line in wrapped))
    if part.match and part.match.sure == CERTAIN and whole.match:
        assert part.failure == whole.failure


def test_a_place_that_leaves_one_failure_alone_leaves_the_others_behind_it():
    """Breaks when words that several share get no answer for a place, or a failure is named for them alone."""
    answer = diagnosed("DeepSpeed ZeRO-3 throws `RuntimeError: 'weight' must be 2-D`\n")
    first, *others = answer.several
    assert first.failure.name == OUTSIDE and not ambiguity.elsewhere(first)
    assert others and all(ambiguity.elsewhere(match) for match in others)
    assert printed(answer).count("runs ended so; no run ended so under zero3") == len(others)


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("ValueError: expects all parameters to have same dtype", MIXED),
        ("RuntimeError: expected there to be only one unique element in <generator object <genexpr> at 0x7f>", MIXED),
        ("RuntimeError: setStorage: sizes [8, 2], strides [1, 8] are out of bounds for storage of size 0", OUTSIDE),
        ("AssertionError: Attempted to load weight (torch.Size([0])) into parameter (torch.Size([9, 8]))", SAVED_EMPTY),
    ],
)
def test_an_error_is_known_by_the_words_of_other_releases(words, failure):
    """Breaks when an older or another library's wording of the same error is none of the catalogue's."""
    pattern = FAILURES[failure].errors
    assert any(re.search(each, words) for each in pattern.values())
    answer = diagnosed(f"{words}\n")
    assert failure in (answer.failure, *names(answer), *(match.failure.name for match in answer.alike))
