"""Answers: the failure that a log shows, how sure that is, and never a forced guess."""

import io
import json
import re
import subprocess
import sys

import pytest

import faultline
from faultline.base import markdown, paths
from faultline.base.axes import CHECKPOINTING
from faultline.base.packages import TODAY
from faultline.catalogue import loading
from faultline.catalogue.recognition import meets_any
from faultline.cells.cell import Cell
from faultline.diagnose import command
from faultline.diagnose.command import GIVEN
from faultline.diagnose.diagnosis import NAMED, NOT_THERE, SEVERAL, Details
from faultline.maintain import score
from faultline.observations import history, matching, measured, remedies, store
from faultline.observations.matching import CERTAIN, LIKELY
from faultline.observations.store import MeasuredStack, RecordedError, Row
from tests.support import logs
from tests.support.logs import NO_GRAD, RECOMPUTED, UNUSED, WHILE_HANDLED, diagnosed, place, printed, traceback
from tests.support.program import python

FAILURES = loading.failures()
DPO = (
    '  File "trl/trainer/dpo_trainer.py", line 1241, in _precompute_ref_logps\n'
    "    return concatenate_datasets([dataset, Dataset.from_file(cache_file)], axis=1)\n"
    '  File "datasets/arrow_dataset.py", line 818, in from_file\n'
)
GONE = "FileNotFoundError: [Errno 2] Failed to open local file '/tmp/hf_datasets-4q2x/cache-77aa.arrow'"
TWICE = "AssertionError: The parameter vpm.7.bias has already been reduced. Gradient computed twice for this partition."
ERROR = TWICE.replace("vpm.7.bias", "291")
MECHANISMS = [(failure, name) for failure in FAILURES.values() for name in failure.recognition.mechanism]
MECHANISMS += [(f, name) for f in FAILURES.values() for name, each in f.recognition.error.items() if each.same_as]
"""The errors whose mechanism is known, a failure's own or another's."""


@pytest.mark.slow
def test_nothing_is_named_wrongly_and_most_is_named():
    """Breaks when a near miss is taken for a failure of the catalogue, or a real log isn't known any more."""
    answers = [(sample, score.answer_of(logs.answer_to(sample))) for sample in logs.samples().values()]
    assert not [(sample.name, stated) for sample, stated in answers if score.worth(sample, stated) == "wrong"]
    by_group = {scored.group: scored for scored in score.score(answers)}
    for group, recall in ((score.WITH_PLACE, 0.91), ("all", 0.89)):
        assert by_group[group].shares["recall"] >= recall, f"{group}: too few"
    text = (score.FIXTURES / "README.md").read_text(encoding="utf-8")
    assert score.report(answers) in text, "fixtures/README.md says otherwise: faultline maintain score"


def test_every_fixture_says_what_it_is_and_where_it_is_from():
    for folder in (score.LOGS, score.NEAR_MISSES):
        index = score.index(folder)
        assert {file.stem for file in folder.glob("*.log")} == {n for n, entry in index.items() if not entry.as_pasted}
        for name, entry in index.items():
            assert entry.answer in ("", *FAILURES)
            assert entry.source.startswith("https://") != name.startswith("made-"), name
            assert bool(entry.round) == bool(entry.first) and (entry.round or not (entry.as_pasted or entry.unsettled))
    cases = re.findall(r"\ndef (\w+)\(\):", (score.NEAR_MISSES / "made.py").read_text().partition("@case(2)")[2])
    made = {f"made-{case.replace('_', '-')}" for case in cases if case not in ("rank", "main")}
    assert made == {name for name in score.index(score.NEAR_MISSES) if name.startswith("made-")}


@pytest.mark.slow
@pytest.mark.nightly
def test_near_misses_that_were_made_are_what_the_libraries_say(tmp_path):
    """Breaks when a log isn't what its case ends with, be it that a library says something else by now."""
    script = tmp_path / "made.py"
    script.write_text((score.NEAR_MISSES / "made.py").read_text())
    names = ("gradient-of-another-dtype", "weight-decay-in-the-forward-pass-under-fsdp1")
    python(script, *names, check=True, PYTHONPATH=str(paths.ROOT))
    for name in names:
        log = f"made-{name}.log"
        made, remaining = ((folder / log).read_text().splitlines()[-1] for folder in (tmp_path, score.NEAR_MISSES))
        assert made == remaining


def test_only_options_that_would_change_the_answer_are_asked_for():
    """Breaks when a user is sent to find out a checkpointing mode that has no part in the failure."""
    for log, how, options in (
        (traceback(GONE, frames=DPO), {}, "--strategy"),
        (TWICE, {}, "--strategy and --checkpointing"),
        (TWICE, place("zero2"), "--checkpointing"),
    ):
        assert f"nothing excludes it; add {options} to decide it\n" in printed(diagnosed(log, **how))


def test_a_long_error_is_shown_as_whole_words_and_kept_whole():
    """Breaks when an error is cut in the middle of a word, without a sign of it, or in what machines are given."""
    words = "Expected to have finished reduction in the prior iteration before starting a new one. "
    error = f"RuntimeError: {words}{'argument `find_unused_parameters=True` ' * 9}to"
    shown = printed(diagnosed(f"{error}\n"))
    assert re.search(r"RuntimeError: .* (?:argument|`find_unused_parameters=True`)…$", shown, re.MULTILINE)
    assert command.DiagnoseResult(diagnosed(f"{error}\n"), Details()).as_json()["error"] == error


GOT_NONE = f"{UNUSED}\nParameters which did not receive grad for rank 0: "


@pytest.mark.parametrize(
    "text",
    [
        UNUSED,
        '  File "train_gan.py", line 9, in step\n    fake = discriminator(generator(noise))\n' + UNUSED,
        GOT_NONE + "lstm.weight_ih_l1, lstm.bias_hh_l1\n",
        "model_name_or_path: llava-hf/llava-1.5-7b-hf\n" + GOT_NONE + "language_model.lm_head.weight\n",
        'File "/opt/conda/lib/python3.10/site-packages/torchvision/models/vision_transformer.py"\n' + UNUSED,
        "freeze_vision_tower: false\n" + GOT_NONE + "score.weight\n",
    ],
)
def test_parameters_without_a_gradient_are_the_mechanism_and_no_more(text, asked, log):
    """Breaks when a GAN's log, or an LSTM's, is said to be Gemma3's vision tower, or hears first what helps that."""
    for how in ({}, place("ddp", "off")):
        answer = diagnosed(text, **how)
        assert not answer.match and answer.several[0].failure.name == "ddp_unused_vision_tower"
        assert all(each.mechanism and each.sure == LIKELY for each in answer.several)
    code, out, _ = asked("diagnose", log(text), "--strategy", "ddp", "--checkpointing", "off")
    assert code == 0 and out.startswith("One of several  the same mechanism: parameters that got no gradient")
    assert "find_unused_parameters" in out.split("What helps against all of them")[1] and "certain" not in out


ENGINE = """Traceback (most recent call last):
  File "train.py", line 40, in <module>
    engine.backward(loss)
  File "site-packages/deepspeed/runtime/engine.py", line 3428, in backward
    loss.backward(**backward_kwargs)
  File "site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
"""
RELEASED = "RuntimeError: The size of tensor a (0) must match the size of tensor b (64) at non-singleton dimension 1\n"


def test_of_failures_with_one_mechanism_all_are_named(asked, log):
    """Breaks when one of several is picked without a reason, or the same words elsewhere are taken for any of them."""
    answer = diagnosed(ENGINE + RELEASED, **place("zero3", "off"))
    names = ["zero3_lora_target_parameters_no_checkpoint", "zero3_dummy_loss"]
    assert answer.answer == SEVERAL and all(match.sure == LIKELY and match.mechanism for match in answer.several)
    assert {match.failure.name for match in answer.several} == {*names}
    code, out, _ = asked("diagnose", log(ENGINE + RELEASED), "--strategy", "zero3", "--checkpointing", "off")
    assert code == 0 and out.startswith("One of several  the same mechanism") and "certain" not in out
    assert all(f"It is {name} if the run has " in out for name in names) and "If none of these holds" in out
    listed = json.loads(asked("diagnose", log(ENGINE + RELEASED), "--strategy", "zero3", "--json")[1])
    assert (listed["answer"], listed["failure"]) == (SEVERAL, "") and listed["mechanism"]
    assert {entry["failure"] for entry in listed["several"]} == {*names}
    assert all(entry["distinguished_by"] and entry["runs"] for entry in listed["several"])
    assert diagnosed(ENGINE + RELEASED, **place("zero2", "off")).answer == NOT_THERE, "ZeRO-2 releases nothing"
    one = diagnosed("LoraConfig(target_parameters=['experts.down_proj'])\n" + ENGINE + RELEASED)
    assert (one.failure, one.match.mechanism, one.several) == (names[0], "", ())


def test_every_mechanism_is_told_apart_and_has_a_remedy_in_words_for_any_model():
    """Breaks when a failure's mechanism is named and nothing is said of what tells it apart, or helps any model."""
    for failure, signature in MECHANISMS:
        same = matching.mechanism(failure, signature)
        assert same and failure.recognition.distinguished_by(signature), (failure.name, signature)
        assert signature in failure.errors and signature not in failure.also_raises, (failure.name, signature)
        fates = remedies.fates(failure, signature, measured.places(failure, signature))
        general = {claim.general for claim in failure.claims.values()} - {""}
        assert general >= {fate.claim.text for fate in matching.worded(fates, same.text)}
        assert matching.worded(fates, "") == fates and general, failure.name


LOADED = '  File "evaluate.py", line 7, in <module>\n    model = AutoModelForCausalLM.from_pretrained(folder)\n'
MISMATCH = """RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:
\tsize mismatch for model.embed_tokens.weight: copying a param with shape {} from checkpoint, the shape in \
current model is {}.
\tYou may consider adding `ignore_mismatched_sizes=True` in the model `from_pretrained` method.
"""
REPORT = """\
[transformers] Qwen2ForCausalLM LOAD REPORT from: out
Key               | Status   |
------------------+----------+
model.norm.weight | MISMATCH | Reinit due to size mismatch - ckpt: {} vs model:{}

""" + traceback(
    "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error. See the report!", frames=LOADED
)


@pytest.mark.parametrize("text", [traceback(MISMATCH, frames=LOADED), MISMATCH, REPORT])
def test_weights_without_elements_are_what_a_partitioned_model_saved(text, asked, log):
    """Breaks when who loads what ZeRO-3 left hears only that shapes differ, or the loader's strategy decides."""
    empty = diagnosed("deepspeed config: zero_stage: 2\n" + text.format("torch.Size([0])", "torch.Size([32000, 4096])"))
    assert empty.failure == "zero3_save_pretrained_empty" and empty.match.sure == LIKELY
    assert {strategy for strategy, _ in empty.match.where} >= {"zero3", "zero3-offload"}
    for shapes in (("torch.Size([32000, 4096])", "torch.Size([0])"), ("torch.Size([3, 4])", "torch.Size([4, 4])")):
        assert diagnosed(text.format(*shapes)).failure == ""
    code, out, _ = asked("diagnose", log(text.format("torch.Size([0])", "torch.Size([32])")))
    assert code == 0 and "such a run left the checkpoint" in out
    assert "refuted      `ignore_mismatched_sizes=True`" in out


def test_what_the_rules_say_is_what_the_runs_said():
    """Breaks when `diagnose` tells another verdict than the README, which a run wrote."""
    other = []
    for name, failure in FAILURES.items():
        words = {key: remedies.recorded_verdict(failure, claim).word for key, claim in failure.claims.items()}
        text = (paths.REPROS / name / "README.md").read_text(encoding="utf-8").split(markdown.BEGIN)[1]
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        written = {row[0]: row[2] for row in rows if len(row) == 4 and row[0] in failure.claims}
        other += [(name, key) for key in {*words, *written} if words.get(key) != written.get(key)]
    assert not other


def test_an_error_without_a_name_is_known_again(asked, log):
    """Breaks when runs here ended as somebody's did, and nobody says so because no failure is named after it."""
    text = f"{RECOMPUTED}\ntensor at position 4:\n"
    code, out, _ = asked("diagnose", log(text), "--json")
    cells = [entry["cell"] for entry in json.loads(out)["seen"]]
    assert code == 0 and cells and all("/zero3" in cell and "/non-reentrant/" in cell for cell in cells)
    assert "[111 runs ended so]" in asked("diagnose", log(text))[1]
    assert not measured.runs_with_error("ValueError: of nobody")


TWO_LOSSES = """  File "/home/me/train.py", line 61, in <module>
    %s
  File "/site-packages/deepspeed/runtime/engine.py", line 2037, in backward
    self.optimizer.backward(loss, retain_graph=retain_graph)
  File "/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", line 2063, in backward
    scaled_loss.backward(retain_graph=retain_graph)
"""


@pytest.mark.parametrize(
    ("call", "before", "mechanism"),
    [
        ("engine.backward(loss_b)", "", True),
        ("engine.backward(d_loss)", "", True),
        ("engine.backward(loss_b)", "model.gradient_checkpointing_enable()\n", False),
        ("engine.backward(loss)", "", True),
        ("engine.backward(loss)", "per image, vision tower\n", False),
    ],
)
def test_two_backward_passes_are_no_vision_tower(asked, log, call, before, mechanism):
    """Breaks when a loop of two losses, without checkpointing, is told that its vision tower runs once per image."""
    _, out, _ = asked("diagnose", log(before + traceback(ERROR, frames=TWO_LOSSES % call)))
    assert out.startswith("zero_double_reduction") and ("the same mechanism" in out.splitlines()[0]) == mechanism


def test_the_newest_stack_that_ended_so_is_told_last(monkeypatch):
    """Breaks when releases are sorted as texts, where 0.19.10 comes before 0.19.9, or today's isn't the last."""
    today = measured.pinned()
    older = {**today, "transformers": "5.9.0"}
    versions = [today, older, *({**older, "transformers": release} for release in ("5.10.0", "4.57.1"))]
    stacks = {str(number): MeasuredStack(str(number), each) for number, each in enumerate(versions)}
    error, cell = RecordedError("e", "x", "other", "raises", "ValueError: of them", ""), Cell("x", "broken", "ddp")
    monkeypatch.setattr(store, "stacks", lambda: stacks)
    monkeypatch.setattr(store, "errors", lambda: {"e": error})
    rows = [Row(cell.name, name, "raises", "other", "e") for name in stacks]
    monkeypatch.setattr(store, "rows", lambda failure: {cell: rows})
    assert [row.stack for _, row in measured.runs_with_error(error.text)] == ["3", "1", "2", "0"]


# The line that raises is the defect itself: nothing else leads there.
DEFECTS = {("ref_model_reloaded_from_path", "no-default-adapter")}


def test_a_context_is_more_than_the_line_that_raises():
    """Breaks when a library's line, which each such error comes from, is taken for what tells one cause from others.

    Whoever gives DeepSpeed a group of frozen parameters ends in the line that a failure's remedy ends in.
    """
    for error in store.errors().values():
        failure, signature = FAILURES[error.failure], error.signature
        *_, last = error.traceback.split('  File "')
        any_of = failure.recognition.of(signature).any_of
        if last.startswith("site-packages") and any_of and signature not in failure.also_raises:
            raises = '  File "' + "\n".join(last.splitlines()[:2]) + "\n"
            rules_out = meets_any(any_of, "")  # what is told by what isn't there
            told_by_it = not rules_out and meets_any(any_of, raises)
            assert not told_by_it or (failure.name, signature) in DEFECTS, (failure.name, signature)


NO_FILE = (
    "OSError: Error no file named pytorch_model.bin, model.safetensors or tf_model.h5 found in directory out/final."
)
NO_FILE_5 = "OSError: Error no file named model.safetensors, or pytorch_model.bin, found in directory out/final."
GRPO, TOWER, TWICE_REDUCED = "grpo_lora_no_grad", "ddp_unused_vision_tower", "zero_double_reduction"
CACHE, REFERENCE = "dpo_precompute_ref_in_memory_dataset", "ref_model_reloaded_from_path"
EXPERTS = "zero3_lora_target_parameters_no_checkpoint"
SHARDED, OUTSIDE = "fsdp_sharded_save_model_writes_nothing", "fsdp2_method_or_child_outside_root_forward"
UNNAMED = "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and "
UNNAMED += "the maximum length is 96: ''."
LOADS = '  File "trl/trainer/dpo_trainer.py", line 5, in __init__\n    self.ref_model = create_model_from_path(name)\n'
FROM_FILE = '  File "prepare.py", line 9, in <module>\n    data = Dataset.from_file(cache)\n'
FROM_FILE += '  File "datasets/arrow_dataset.py", line 818, in from_file\n'
MIXED = "x @ model.lm_head.weight.T\nRuntimeError: aten.mm.default got mixed torch.Tensor and DTensor\n"
NO_INPUTS = "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
LOOKED_FOR = " Since `find_unused_parameters=True` is enabled, this likely means that not all outputs participate."
ADVICE = " passing the keyword argument find_unused_parameters=True to torch.nn.parallel.DistributedDataParallel"
LOOKS = "model = DistributedDataParallel(model, find_unused_parameters=True)\n"
VECTOR = (score.NEAR_MISSES / "made-vector-in-a-checkpointed-product.log").read_text()
NO_MATRIX, NOT_2_D, STEPS = "RuntimeError: mat2 must be a matrix", "RuntimeError: 'weight' must be 2-D", "\nstep 1\n\n"
PRECOMPUTED = "precompute_ref_log_probs=True\n"


@pytest.mark.parametrize(
    ("before", "words", "options", "answer"),
    [
        # Words that other mistakes raise as well: nothing is named before something else bears them out.
        ("", NO_GRAD, (), f"one of several: {GRPO}"),
        (NO_INPUTS, NO_GRAD, (), f"likely: {GRPO}"),
        ("", NO_GRAD, ("ddp", "reentrant"), f"likely: {GRPO}"),
        ("LoRA, gradient_checkpointing=True\n", NO_GRAD, ("ddp", "reentrant"), f"certain: {GRPO}"),
        ("Gemma3ForConditionalGeneration(\n", UNUSED, (), f"certain: {TOWER}"),
        ("--model_name_or_path google/gemma-3-4b-it\n", UNUSED, (), f"certain: {TOWER}"),
        ("", GOT_NONE + "multi_modal_projector.mm_soft_emb_norm.weight\n", (), f"certain: {TOWER}"),
        # What was done is something else than what is advised.
        ("", UNUSED + ADVICE, (), f"one of several: {TOWER}"),
        ("", UNUSED + LOOKED_FOR, (), f"unknown: {TOWER}"),
        (LOOKS, UNUSED, (), f"unknown: {TOWER}"),
        # Clipping meets both kinds of tensors under tensor parallelism.
        ("", MIXED.replace("mm.default", "_foreach_norm.Scalar"), (), f"unknown: {OUTSIDE}"),
        # A missing cache file is TRL's by its frames, the mechanism by what opens it, and else any.
        (PRECOMPUTED, traceback(GONE, frames=DPO), (), f"likely: {CACHE}"),
        (PRECOMPUTED, traceback(GONE, frames=DPO), ("ddp",), f"certain: {CACHE}"),
        (PRECOMPUTED, traceback(GONE, frames=FROM_FILE), ("ddp",), f"likely: {CACHE} (mechanism)"),
        # A folder without weights is the sharded save's only where the log says sharded.
        ("fsdp_state_dict_type: SHARDED_STATE_DICT\n", NO_FILE, (), f"likely: {SHARDED}"),
        ("fsdp_state_dict_type: SHARDED_STATE_DICT\n", NO_FILE_5, (), f"likely: {SHARDED}"),
        ("saved out/final/pytorch_model_fsdp_0/__0_0.distcp\n", NO_FILE, (), f"likely: {SHARDED}"),
        ("fsdp_state_dict_type: FULL_STATE_DICT\n", NO_FILE, (), f"unknown: {SHARDED}"),
        ("", NO_FILE_5, (), f"unknown: {SHARDED}"),
        # An empty name is a policy's without a path only where a reference model is loaded.
        ("", f"huggingface_hub.errors.HFValidationError: {UNNAMED}", (), f"unknown: {REFERENCE}"),
        ("", traceback(f"OSError: {UNNAMED}", frames=LOADS), (), f"likely: {REFERENCE}"),
        # A mode in which nothing was run, as it has no part in the failure, speaks against nothing.
        ("gradient_checkpointing=True\n", MIXED, ("fsdp2",), f"likely: {OUTSIDE}"),
        ("", MIXED, ("fsdp2", "off"), f"certain: {OUTSIDE}"),
        ("", MIXED, ("fsdp1-full", "off"), f"unknown: {OUTSIDE}"),
        # A place where it never happened does.
        ("", TWICE, (), f"likely: {TWICE_REDUCED}"),
        ("", TWICE, ("zero2", "reentrant"), f"certain: {TWICE_REDUCED}"),
        ("", TWICE, ("zero2", "non-reentrant"), f"unknown: {TWICE_REDUCED}"),
        ("", TWICE, ("fsdp2", "reentrant"), f"unknown: {TWICE_REDUCED}"),
        ("gradient_checkpointing=False\n", TWICE, (), f"unknown: {TWICE_REDUCED}"),
        # That checkpointing is on bears nothing out that isn't about it.
        ("", VECTOR, (), f"one of several: {OUTSIDE}"),
        *(("", VECTOR, ("fsdp1-full", mode), f"one of several: {OUTSIDE}") for mode in CHECKPOINTING),
        # What bears an error out may stand anywhere in the log.
        (f"lora:\n  target_parameters: [x]{STEPS}", ENGINE + RELEASED, (), f"certain: {EXPERTS}"),
        (f"with deepspeed.zero.GatheredParameters(a):{STEPS}", ENGINE + RELEASED, (), "certain: zero3_dummy_loss"),
        (f"  tie_word_embeddings: true{STEPS}", NO_MATRIX, (), "likely: fsdp2_tied_embeddings_split_groups"),
        (f"loss(hidden, model.lm_head.weight){STEPS}", NOT_2_D, (), f"likely: {OUTSIDE}"),
    ],
)
def test_what_bears_an_errors_words_out_decides(before, words, options, answer):
    """Breaks when a near miss is named, or the failure isn't where the log has more than the words that it shares."""
    assert logs.summary(diagnosed(before + words, **place(*options))) == answer


def test_remedies_are_those_of_the_place(asked, log):
    """Breaks when what was measured elsewhere is told of a place, or before what was there in other words, as for LoRA
    under ZeRO-2 on trl 0.15.2, where today's torch words the error otherwise."""
    fates = remedies.fates(FAILURES["zero3_dummy_loss"], "empty-gradient", {("zero3", "off")})
    words = {fate.key: fate.word for fate in fates}
    assert {fate.scope for fate in fates} == {"there"} and all(fate.cells <= 3 for fate in fates)
    assert (words["zero2"], words["persistent"]) == ("verified", "refuted")
    for failure, signature, scope in (
        ("zero3_dummy_loss", "empty-gradient", "elsewhere"),
        ("fsdp_reference_model", "two-devices", "other words"),
    ):
        fates = remedies.fates(FAILURES[failure], signature, {("ddp", "off")})
        assert {fate.scope for fate in fates} == {scope}
    fates = remedies.fates(FAILURES["grpo_lora_no_grad"], "no-grad-fn", {("zero2", "reentrant")})
    assert {fate.scope for fate in fates} == {"there in other words"} and {fate.cells for fate in fates} <= {1, 2, 3}
    text = f"trl==0.15.2\ngradient_checkpointing_kwargs={{'use_reentrant': True}}\n{NO_GRAD}"
    code, out, _ = asked("diagnose", log(text), "--strategy", "zero2")
    assert code == 0 and "elsewhere" not in out and "as raises (not-a-loss) under zero2" in out


def test_the_nearest_stack_is_none_newer():
    """Breaks when what is said of somebody's versions was measured with newer ones, or on a stack further away."""
    failure = FAILURES["grpo_lora_no_grad"]
    assert history.nearest_stack(failure, {"trl": "0.15.2"})[0].versions["trl"] == "0.15.2"
    assert history.nearest_stack(failure, {"trl": "0.1.0"}) is None and history.nearest_stack(failure, {}) is None
    assert history.nearest_stack(failure, {"trl": "not a version"}) is not None


def test_a_failure_that_no_month_was_asked_of_is_told_of_on_its_own_stacks():
    """Breaks when a line about somebody's versions ends before it says anything, or says it of another release."""
    failure = FAILURES["zero3_nonreentrant_frozen_checkpointerror"]
    for asked, stack, outcome in (("0.18.3", "deepspeed-0.18.3", "raises"), ("0.19.8", TODAY, "trains")):
        near, did = history.nearest_stack(failure, {"deepspeed": asked})
        then = history.count_outcomes(did, {("zero3", "non-reentrant")})
        assert near.name == stack and {each.split()[0] for each in then} == {outcome}
        words = f"trl, LoRA\n{RECOMPUTED.removesuffix('.')}: {{'shape': torch.Size([0])}}"
        sure = diagnosed(words, **place("zero3", "non-reentrant"), versions={"deepspeed": asked}).match.sure
        assert sure == (CERTAIN if outcome == "raises" else LIKELY)
    for failure in FAILURES.values():
        assert history.count_outcomes(history.nearest_stack(failure, measured.pinned())[1], ())


@pytest.fixture
def log(tmp_path):
    def write(text, name="train.log"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return write


def test_exit_codes_tell_known_from_unknown_from_unusable(asked, log, tmp_path, monkeypatch):
    """Breaks when somebody who gives an empty file, an address or a text isn't told, in a line, what to give."""
    assert asked("diagnose", log(TWICE))[0] == 0
    assert asked("diagnose", log("ValueError: x\n"))[0] == 1
    assert asked("diagnose", log("nothing\n"))[0] == 1
    files = (log("", "empty.log"), log(bytes(range(32)) * 999, "model.bin"), str(tmp_path / "absent"), str(tmp_path))
    options = ("--strategy=zero9", "--checkpointing=maybe", "--stack=trl=x", "--stack=trl>=1", "--stack=2019-01-01")
    for words in (*([file] for file in files), *([log(TWICE), option] for option in options)):
        code, out, errors = asked("diagnose", *words)
        assert code == 2 and not out and len(errors) == 1, words
    assert asked("diagnose", files[0])[2][0].endswith("empty.log is empty")
    assert "model.bin is not text" in asked("diagnose", files[1])[2][0]
    assert "nothing is downloaded" in asked("diagnose", "https://github.com/huggingface/trl/issues/3150")[2][0]
    assert "begins with its type" in asked("diagnose", "my train.log")[2][0]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert "no log given" in asked("diagnose")[2][0]


def test_standard_input_and_several_files(asked, log, monkeypatch):
    for words in (["-"], []):  # a log that is piped in needs no -
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TWICE.encode())))
        code, out, errors = asked("diagnose", *words)
        assert code == 0 and "standard input:1" in out and not errors
    victim = log("RuntimeError: Connection closed by peer\n", "rank0")
    code, out, _ = asked("diagnose", victim, log(TWICE, "rank1"), "--json")
    assert code == 0 and json.loads(out)["cause"]["file"].endswith("rank1")


def test_an_error_that_the_catalogue_lacks_is_told_apart_from_one_that_is_not_decided(asked, log):
    """Breaks when the same headline stands over an error that nobody knows and one that our own runs raised."""
    assert asked("diagnose", log("ValueError: of nobody\n"))[1].startswith("Not in the catalogue\n")
    assert asked("diagnose", log(NO_GRAD))[1].startswith("One of several  the error alone doesn't show which")
    assert asked("diagnose", log("fine\n"))[1].startswith("No error found in this log\n")
    for words in ("torch.OutOfMemoryError: CUDA out of memory.", "CUDA out of memory. Tried to allocate 2.00 GiB"):
        memory = asked("diagnose", log(f"{words}\n"))[1]
        assert memory.startswith("Not in the catalogue  plain out of memory") and memory.count("\n") == 1


def test_a_person_reads_the_name_then_why_then_what_helps(asked, log):
    """Breaks when somebody with a traceback has to search the output for what to do."""
    text = f"TRL version: 0.15.2\ngradient_checkpointing_kwargs={{'use_reentrant': True}}\n{NO_GRAD}"
    code, out, _ = asked("diagnose", log(text), "--strategy", "ddp")
    assert code == 0
    failure = FAILURES["grpo_lora_no_grad"]
    parts = (
        *("grpo_lora_no_grad", "certain", "train.log:3", "What helps", "verified", "What doesn't", "refuted", "Fix"),
        *("trl 0.20.0", "trl-0.15.2", "faultline run --cell grpo_lora_no_grad/broken/ddp/reentrant/fp32/w2/cpu"),
        *("faultline reproduce grpo_lora_no_grad", *failure.records),
    )
    at = [out.index(part) for part in parts]
    assert at == sorted(at) and len(out.splitlines()) < 40


def test_json_has_it_all(asked, log):
    options = ("--strategy", "zero2", "--checkpointing", "reentrant")
    code, out, _ = asked("diagnose", log(f"[rank1]: {TWICE}"), *options, "--json")
    answer = json.loads(out)
    assert code == 0 and (answer["answer"], answer["sure"]) == (NAMED, CERTAIN)
    assert answer["failure"] == "zero_double_reduction" and answer["measured"] == "there"
    assert answer["cause"]["rank"] == 1 and answer["cause"]["line"] == 1
    assert {claim["verdict"] for claim in answer["claims"]} == {"verified", "refuted"}
    page = (paths.ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    section = page.split("\n## JSON\n")[1].strip().split("\n\n")[0]
    keys = [row.split(" | ")[0] for row in section.splitlines()[2:]]
    assert {key for row in keys for key in re.findall("`(\\w+)`", row)} == {*answer}, "the page's keys are others"
    unknown = json.loads(asked("diagnose", log("ValueError: 12 of /a/b\n"), "--json")[1])
    assert unknown["answer"] == NOT_THERE and unknown["search"] == "ValueError"


def test_versions_come_from_the_log_or_from_a_stack(asked, log):
    text = "trl==0.15.2\n- `transformers` version: 4.49.0\nDeepSpeed info: version=0.16.4, git-hash=x\n"
    text += "PyTorch version: 2.6.0+cu124\n"
    versions = diagnosed(text + TWICE).hints.versions
    assert versions == {"trl": "0.15.2", "transformers": "4.49.0", "deepspeed": "0.16.4", "torch": "2.6.0"}
    for stack in ("trl-0.15.2", "trl==0.15.2", "2025-03-01"):
        _, out, _ = asked("diagnose", log(TWICE), "--stack", stack, "--json")
        assert json.loads(out)["versions"]["trl"] == "0.15.2" and json.loads(out)["then"]["date"] == "trl-0.15.2"


def test_of_chained_errors_the_last_that_is_known_is_the_answer():
    """Breaks when a wrapper that the catalogue knows, or the error within, is passed over for the other."""
    other = traceback("KeyError: 'x'")
    for text in (other + WHILE_HANDLED + traceback(TWICE), traceback(TWICE) + WHILE_HANDLED + other):
        answer = diagnosed(text)
        assert answer.failure == "zero_double_reduction" and "already been reduced" in answer.cause.text
    neither = diagnosed(other + WHILE_HANDLED + traceback("ValueError: y"))
    assert neither.failure == "" and neither.search == "KeyError \"'x'\""
    assert diagnosed(f"{other}\n{traceback(TWICE)}").failure == "", "an error that only came later is of no chain"
    assert diagnosed(traceback("ValueError: x of 3\nSaving the model")).search == 'ValueError "x of"'


def test_timeouts_alone_are_unknown_and_told(asked, log):
    """Breaks when ranks that waited in vain are taken for the cause, or nobody says which they are."""
    text = "".join(f"[rank{n}]: [Rank {n}] {logs.TIMEOUT}" for n in (3, 5))
    code, out, _ = asked("diagnose", log(text + "Fatal Python error: Aborted\n"))
    assert code == 1 and out.startswith("This log only shows the aftermath.") and "Ranks 3, 5 waited" in out
    assert out.index("Watchdog") < out.index("Aborted"), "the events aren't in the order of the log"
    thrown = (
        "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'\n"  # and its message is cut
    )
    waited = f"[rank1]: [Rank 1] {logs.TIMEOUT}"
    assert asked("diagnose", log(waited + thrown))[1].startswith("This log only shows the aftermath.")
    assert asked("diagnose", log(thrown))[1].startswith("Not in the catalogue"), "nothing says that anybody waited"


@pytest.mark.parametrize("words", [[ERROR], ERROR.split(), [f"[rank1]: {ERROR}"], [f"step 3\n{ERROR}\n"]])
def test_an_error_is_read_from_the_command_line(asked, tmp_path, monkeypatch, words):
    """Breaks when somebody must make a file of one line, or quote it."""
    code, out, errors = asked("diagnose", *words)
    assert code == 0 and not errors and out.startswith("zero_double_reduction")
    assert f"{GIVEN}:" in out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ValueError: x").write_text(f"{ERROR}\n")
    assert asked("diagnose", "ValueError: x")[1].startswith("zero_double_reduction"), "a file, whatever it is called"


@pytest.mark.parametrize("words", [[""], [" \n"], ["train.log", ""]])
def test_an_empty_text_is_said_to_be_empty(asked, words):
    """Breaks when a shell variable that isn't set is a file without a name that can't be read."""
    assert asked("diagnose", *words) == (2, "", [f"faultline: {GIVEN} is empty"])


def test_a_sentence_that_is_glued_to_an_error_is_nothing_to_search_for():
    """Breaks when the words to search for are somebody's own, which no other page has."""
    message = f"{ERROR} Multiple gradient reduction is currently not supported"
    for behind in ("I use zero3 and MiniCPM-V with LoRA", ". It came with MiniCPM-V"):
        search = faultline.diagnose(f"{message}{behind}").diagnosis.search
        assert search.startswith("AssertionError ") and search.endswith('currently not supported"'), search
    assert "in this place" in faultline.diagnose(f"{message} in this place").diagnosis.search


def test_a_label_before_an_error_is_no_type():
    for text, error in {
        "Same for me. Error: RuntimeError: no": "RuntimeError: no",
        "Error: torch.cuda.OutOfMemoryError: no": "torch.cuda.OutOfMemoryError: no",
        "It ends. Error: no such option": "Error: no such option",
        "MyError: RuntimeError: no": "MyError: RuntimeError: no",
    }.items():
        assert faultline.diagnose(text).diagnosis.cause.text == error


@pytest.mark.parametrize(
    ("said", "modes"),
    [
        ("I tried `use_reentrant=False` but same.", set()),
        ("We have also tried checkpoint with use_reentrant=True! It runs with use_reentrant=False.", {"non-reentrant"}),
        ("It runs with `use_reentrant=True`. I tried use_reentrant=False.", {"reentrant"}),
        ("--use_reentrant=False", {"non-reentrant"}),
    ],
)
def test_a_mode_that_somebody_tried_is_not_the_runs(said, modes):
    """Breaks when a remedy that did not help is taken for what the run had, which excludes the failure."""
    for text in (f"{said}\n{ERROR}", f"{ERROR} {said}"):
        assert faultline.diagnose(text).diagnosis.hints.modes == modes


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ([], ["add --strategy and --checkpointing."]),
        (["--strategy", "ddp"], ["add --checkpointing."]),
        (["--checkpointing", "off"], ["add --strategy."]),
        (["--strategy", "ddp", "--checkpointing", "off"], []),
    ],
)
def test_only_the_option_that_lacks_is_asked_for(asked, options, advice):
    """Breaks when an answer asks for what was given."""
    out = asked("diagnose", logs.TWO_DEVICES, *options)[1]
    assert out.startswith(("Not in the catalogue", "Probably not in the catalogue")), out
    assert [line.rpartition("how it was run, ")[2] for line in out.splitlines() if "how it was run" in line] == advice


def test_a_closed_input_is_a_missing_log():
    """Breaks when a service without an input gets a traceback."""
    words = ["sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "faultline", "diagnose"]
    done = subprocess.run(words, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("faultline: no log given") and done.stderr.count("\n") == 1
