"""Answers: the failure that a log shows, how sure that is, and never a forced guess."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline.base import markdown, paths
from faultline.base import text as base_text
from faultline.base.packages import TODAY
from faultline.catalogue import loading
from faultline.catalogue.recognition import met
from faultline.cells.cell import CHECKPOINTING, Cell
from faultline.diagnose import data, view
from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose.details import Details, details
from faultline.diagnose.diagnosis import NAMED, NOT_THERE, SEVERAL, diagnose
from faultline.maintain import score
from faultline.observations import matching, measured, nearest, remedies, store, verdicts
from faultline.observations.matching import CERTAIN, LIKELY, Hints
from faultline.observations.store import Error, Row, Stack
from tests.support.night import sampled

FAILURES = loading.failures()
SAMPLES = list(score.labelled_logs())
PASTED = [sample for sample in SAMPLES if sample.group in (score.PASTED, score.NEAR_MISS)]
DPO = (
    '  File "trl/trainer/dpo_trainer.py", line 1241, in _precompute_ref_logps\n'
    "    return concatenate_datasets([dataset, Dataset.from_file(cache_file)], axis=1)\n"
    '  File "datasets/arrow_dataset.py", line 818, in from_file\n'
)
GONE = "FileNotFoundError: [Errno 2] Failed to open local file '/tmp/hf_datasets-4q2x/cache-77aa.arrow'\n"
NO_GRAD = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"
TWICE = (
    "AssertionError: The parameter vpm.7.bias has already been reduced. Gradient computed twice for this partition.\n"
)


def diagnosed(text, **how):
    content = text if isinstance(text, bytes) else text.encode()
    return diagnose(
        lambda wanted: diagnose_lines.lines("log", io.BytesIO(content), wanted), Hints(**how) if how else None
    )


def unhurried(content, asked=None):
    """The same with every line looked at."""
    return diagnose(lambda wanted: diagnose_lines.lines("log", io.BytesIO(content), lambda: wanted() and None), asked)


def printed(answer):
    shown = io.StringIO()
    view.show(Console(file=shown, width=200), answer, details(answer))
    return shown.getvalue()


def place(strategy, checkpointing):
    return {"strategies": frozenset([strategy]), "modes": frozenset([checkpointing])}


def mechanisms_of(failure):
    """The errors whose mechanism is known, the failure's own or another's."""
    shared = [name for name, each in failure.recognition.error.items() if each.same_as]
    return (*failure.recognition.mechanism, *shared)


@pytest.mark.slow
def test_nothing_is_named_wrongly_and_most_is_named():
    """Breaks when a near miss is taken for a failure of the catalogue, or a real log isn't known any more."""
    answers = [(sample, score.answer_of(score.diagnosed(sample))) for sample in SAMPLES]
    assert not [(sample.name, stated) for sample, stated in answers if score.worth(sample, stated) == "wrong"]
    by_group = {scored.group: scored for scored in score.score(answers)}
    for group, recall in ((score.WITH_PLACE, 0.91), ("all", 0.89)):
        assert by_group[group].shares["recall"] >= recall, f"{group}: too few"
    text = (score.FIXTURES / "README.md").read_text(encoding="utf-8")
    assert score.report(answers) in text, "fixtures/README.md says otherwise: faultline maintain score"


def test_there_are_as_many_fixtures_as_are_needed():
    names = {sample.name for sample in PASTED if sample.group == score.PASTED}
    assert len(names) >= 20 and len(score.index(score.NEAR_MISSES)) >= 40
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
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    subprocess.run([sys.executable, script, *names], env=environment, check=True, timeout=300)
    for name in names:
        log = f"made-{name}.log"
        made, remaining = ((folder / log).read_text().splitlines()[-1] for folder in (tmp_path, score.NEAR_MISSES))
        assert made == remaining


@pytest.mark.parametrize("sample", PASTED, ids=lambda sample: sample.name)
def test_prefixes_line_ends_and_noise_change_no_answer(sample):
    """Breaks when the same log is known from one launcher and not from another."""
    expected = score.diagnosed(sample).named
    lines = sample.log.decode().splitlines()
    for same in (
        "\r\n".join(lines),
        "\n".join(f"[rank3]: {line}" for line in lines),
        "\n".join(f"2025-04-02T10:11:12.345Z {line}" for line in lines),
        "\n".join(f"\x1b[31m{line}\x1b[0m" for line in lines),
        "a healthy line\r 10%|#\n" * 99 + "\n".join(lines) + "\n",
    ):
        assert diagnosed(same).named == expected


@pytest.mark.slow
@pytest.mark.parametrize("sample", sampled(SAMPLES, 4), ids=lambda sample: f"{sample.group[-4:]} {sample.name}")
def test_lines_that_are_passed_over_change_no_answer(sample):
    """Breaks when the quick look at a log's bytes misses a line that the slow one understands."""
    assert unhurried(sample.log, sample.options) == score.diagnosed(replace(sample, name="log"))


@given(st.lists(st.sampled_from([line for s in PASTED for line in s.log.splitlines()][:400]), max_size=30))
def test_any_mixture_of_real_lines_is_read_the_same_either_way(lines):
    content = b"\n".join(lines)
    assert unhurried(content) == diagnosed(content)


def test_words_that_others_share_need_more_than_themselves():
    """The near miss passes and the same words with what bears them out are found."""
    alone = diagnosed(NO_GRAD)
    assert alone.named == "" and alone.alike[0].failure.name == "grpo_lora_no_grad"
    assert diagnosed(
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n" + NO_GRAD
    ).match
    only_said = diagnosed(NO_GRAD, **place("ddp", "reentrant"))
    assert only_said.match.sure == LIKELY, "options alone made an ambiguous error certain"
    assert diagnosed("LoRA, gradient_checkpointing=True\n" + NO_GRAD, **place("ddp", "reentrant")).match.sure == CERTAIN


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        (DPO, "dpo_precompute_ref_in_memory_dataset"),
        (
            '  File "prepare.py", line 9, in <module>\n    data = Dataset.from_file(cache)\n'
            '  File "datasets/arrow_dataset.py", line 818, in from_file\n',
            "dpo_precompute_ref_in_memory_dataset (mechanism)",
        ),
        (
            '  File "prepare.py", line 9, in <module>\n    data = pickle.load(open("tokenized.pkl", "rb"))\n'
            '  File "datasets/table.py", line 1093, in __setstate__\n',
            score.UNKNOWN,
        ),
        (
            '  File "prepare.py", line 9, in <module>\n    data = load_from_disk("data")\n'
            '  File "datasets/table.py", line 1083, in from_file\n',
            score.UNKNOWN,
        ),
    ],
)
def test_a_cache_file_that_is_gone_is_a_known_failure_only_where_that_opens_it(frames, answer):
    """Breaks when any missing cache file of a data set is taken for TRL's, or TRL's isn't known by its frames."""
    log = f"precompute_ref_log_probs=True\nTraceback (most recent call last):\n{frames}{GONE}"
    for how in ({}, {"strategies": frozenset(["ddp"])}):
        assert score.answer_of(diagnosed(log, **how)) == answer


@pytest.mark.parametrize(
    ("log", "how", "stated"),
    [
        (f"Traceback (most recent call last):\n{DPO}{GONE}", {}, "add --strategy to decide it"),
        (TWICE, {}, "add --strategy and --checkpointing to decide it"),
        (TWICE, {"strategies": frozenset(["zero2"])}, "add --checkpointing to decide it"),
    ],
)
def test_only_options_that_would_change_the_answer_are_asked_for(log, how, stated):
    """Breaks when a user is sent to find out a checkpointing mode that has no part in the failure."""
    assert f"nothing excludes it; {stated}\n" in printed(diagnosed(log, **how))


def test_a_long_error_is_shown_as_whole_words_and_kept_whole():
    """Breaks when an error is cut in the middle of a word, without a sign of it, or in what machines are given."""
    words = "Expected to have finished reduction in the prior iteration before starting a new one. "
    error = f"RuntimeError: {words}{'argument `find_unused_parameters=True` ' * 9}to"
    shown = printed(diagnosed(f"{error}\n"))
    assert re.search(r"RuntimeError: .* (?:argument|`find_unused_parameters=True`)…$", shown, re.MULTILINE)
    assert data.as_json(diagnosed(f"{error}\n"), Details())["error"] == error


def test_a_strategy_from_the_options_bears_nothing_out_for_certain():
    """Breaks when `--strategy fsdp2` is taken for a line of the log that speaks of FSDP."""
    words = "    ref_logps = self.ref_model(batch)\nRuntimeError: Expected all tensors to be on the same device\n"
    assert diagnosed(words, strategies=frozenset(["fsdp2"])).match.sure == LIKELY


UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
GOT_NONE = UNUSED + "Parameters which did not receive grad for rank 0: "


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


@pytest.mark.parametrize(
    "text",
    [
        GOT_NONE + "multi_modal_projector.mm_soft_emb_norm.weight, vision_tower.vision_model.post_layernorm.bias\n",
        "Gemma3ForConditionalGeneration(\n" + UNUSED,
        "--model_name_or_path google/gemma-3-4b-it\n" + UNUSED,
    ],
)
def test_an_unused_vision_tower_is_still_known_for_certain(text):
    """The near misses of the test above: breaks when the record's own log is no more than likely."""
    match = diagnosed(text).match
    assert (match.sure, match.mechanism) == (CERTAIN, "")


ENGINE = """Traceback (most recent call last):
  File "train.py", line 40, in <module>
    engine.backward(loss)
  File "site-packages/deepspeed/runtime/engine.py", line 3428, in backward
    loss.backward(**backward_kwargs)
  File "site-packages/torch/_tensor.py", line 623, in backward
    torch.autograd.backward(
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
    code, out, _ = asked("diagnose", log(ENGINE + RELEASED), "--strategy", "zero3", "--json")
    listed = json.loads(out)
    assert (listed["answer"], listed["failure"]) == (SEVERAL, "") and listed["mechanism"]
    assert {entry["failure"] for entry in listed["several"]} == {*names}
    assert all(entry["distinguished_by"] and entry["runs"] for entry in listed["several"])
    assert diagnosed(ENGINE + RELEASED, **place("zero2", "off")).answer == NOT_THERE, "ZeRO-2 releases nothing"
    one = diagnosed("LoraConfig(target_parameters=['experts.down_proj'])\n" + ENGINE + RELEASED)
    assert (one.named, one.match.mechanism, one.several) == (names[0], "", ())


def test_failures_that_share_a_mechanism_say_what_tells_them_apart():
    for failure in FAILURES.values():
        for signature in mechanisms_of(failure):
            same = matching.mechanism(failure, signature)
            assert same and signature in failure.errors and failure.recognition.distinguished_by(signature), (
                failure.name,
                signature,
            )
            assert signature not in failure.also_raises


MISMATCH = """\
Traceback (most recent call last):
  File "evaluate.py", line 7, in <module>
    model = AutoModelForCausalLM.from_pretrained(folder)
RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:
\tsize mismatch for model.embed_tokens.weight: copying a param with shape {} from checkpoint, the shape in \
current model is {}.
\tYou may consider adding `ignore_mismatched_sizes=True` in the model `from_pretrained` method.
"""
REPORT = """\
[transformers] Qwen2ForCausalLM LOAD REPORT from: out
Key               | Status   |
------------------+----------+
model.norm.weight | MISMATCH | Reinit due to size mismatch - ckpt: {} vs model:{}

Traceback (most recent call last):
  File "evaluate.py", line 7, in <module>
    model = AutoModelForCausalLM.from_pretrained(folder)
RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error. For details look at the above report!
"""
NO_FILE = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    AutoModelForCausalLM.from_pretrained("out/final")
OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, model.ckpt.index or flax_model.msgpack \
found in directory out/final.
"""
NO_FILE_5 = NO_FILE.partition("OSError")[0] + (
    "OSError: Error no file named model.safetensors, or pytorch_model.bin, found in directory out/final.\n"
)


@pytest.mark.parametrize("text", [MISMATCH, MISMATCH.partition("folder)\n")[2], REPORT])
def test_weights_without_elements_are_what_a_partitioned_model_saved(text, asked, log):
    """Breaks when who loads what ZeRO-3 left hears only that shapes differ, or the loader's strategy decides."""
    empty = diagnosed("deepspeed config: zero_stage: 2\n" + text.format("torch.Size([0])", "torch.Size([32000, 4096])"))
    assert empty.named == "zero3_save_pretrained_empty" and empty.match.sure == LIKELY
    assert {strategy for strategy, _ in empty.match.where} >= {"zero3", "zero3-offload"}
    for shapes in (("torch.Size([32000, 4096])", "torch.Size([0])"), ("torch.Size([3, 4])", "torch.Size([4, 4])")):
        assert diagnosed(text.format(*shapes)).named == ""
    code, out, _ = asked("diagnose", log(text.format("torch.Size([0])", "torch.Size([32])")))
    assert (
        code == 0 and "such a run left the checkpoint" in out and "refuted      `ignore_mismatched_sizes=True`" in out
    )


@pytest.mark.parametrize("text", [NO_FILE, NO_FILE_5])
def test_a_folder_without_weights_is_the_sharded_save_only_where_the_log_says_sharded(text):
    """Breaks when any wrong path is taken for FSDP's save, or that isn't known where the log has its settings."""
    for line in ("fsdp_state_dict_type: SHARDED_STATE_DICT\n", "saved out/final/pytorch_model_fsdp_0/__0_0.distcp\n"):
        results = diagnosed(line + text)
        assert results.named == "fsdp_sharded_save_model_writes_nothing" and results.match.sure == LIKELY
    for line in ("", "fsdp_state_dict_type: FULL_STATE_DICT\n"):
        results = diagnosed(line + text)
        assert results.named == ""
        assert [match.failure.name for match in results.alike] == ["fsdp_sharded_save_model_writes_nothing"]


def test_an_empty_name_is_a_reference_model_only_where_one_is_loaded():
    """Breaks when any empty name is taken for a policy without a path, or the failure isn't held out to who has one."""
    stated = "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and "
    stated += "the maximum length is 96: ''.\n"
    for kind in ("OSError", "huggingface_hub.errors.HFValidationError"):
        bare = diagnosed(f"{kind}: {stated}")
        assert bare.named == "" and [m.failure.name for m in bare.alike] == ["ref_model_reloaded_from_path"]
    frame = '  File "/x/trl/trainer/dpo_trainer.py", line 5, in __init__\n'
    frame += "    self.ref_model = create_model_from_path(name)\n"
    assert (
        diagnosed(f"Traceback (most recent call last):\n{frame}OSError: {stated}").named
        == "ref_model_reloaded_from_path"
    )


def test_a_mode_that_was_never_run_speaks_against_nothing():
    """Breaks when a failure that was measured without checkpointing, as that has no part in it, isn't known with it."""
    words = "x @ model.lm_head.weight.T\nRuntimeError: aten.mm.default got mixed torch.Tensor and DTensor\n"
    answer = diagnosed("gradient_checkpointing=True\n" + words, strategies=frozenset(["fsdp2"]))
    assert answer.named == "fsdp2_method_or_child_outside_root_forward" and answer.match.sure == LIKELY
    assert diagnosed(words, **place("fsdp2", "off")).match.sure == CERTAIN
    assert diagnosed(words, **place("fsdp1-full", "off")).answer != answer.named


def test_a_reference_model_on_the_cpu_is_this_failure_only_under_fsdp():
    words = "    ref_logps = self.ref_model(batch)\nRuntimeError: Expected all tensors to be on the same device\n"
    assert diagnosed(words).match.only_if and not diagnosed("--fsdp full_shard\n" + words).match.only_if
    assert diagnosed(words, strategies=frozenset(["fsdp2"])).named == "fsdp_reference_model"
    assert diagnosed("--deepspeed zero3\n" + words).named == ""


def test_a_place_where_it_never_happened_speaks_against_it():
    """Breaks when a log that names another strategy or mode gets an answer that no run bears out."""
    assert diagnosed(TWICE).match.sure == LIKELY
    assert diagnosed(TWICE, **place("zero2", "reentrant")).match.sure == CERTAIN
    for elsewhere in (place("zero2", "non-reentrant"), place("fsdp2", "reentrant")):
        answer = diagnosed(TWICE, **elsewhere)
        assert answer.named == "" and "no run ended so" in answer.alike[0].against
    off = diagnosed("gradient_checkpointing=False\n" + TWICE)
    assert off.named == ""


def test_unused_parameters_that_ddp_looks_for_are_another_error():
    words = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
    since = "Since `find_unused_parameters=True` is enabled, this likely means that not all outputs participate.\n"
    assert diagnosed(words).answer == SEVERAL and diagnosed(words + since).answer == NOT_THERE
    advice = "passing the keyword argument find_unused_parameters=True to torch.nn.parallel.DistributedDataParallel\n"
    assert diagnosed(words + advice).answer == SEVERAL, "advice is taken for what was done"
    assert diagnosed("model = DistributedDataParallel(model, find_unused_parameters=True)\n" + words).named == ""


def test_a_later_error_is_not_taken_for_the_first():
    """Breaks when a known error that came of an unknown one is told in its place."""
    text = 'Traceback (most recent call last):\n  File "x", line 1\ntorch.OutOfMemoryError: CUDA out of memory.\n\n' + (
        'Traceback (most recent call last):\n  File "x", line 1\nRuntimeError: Expected to have finished reduction in'
        " the prior iteration\n"
    )
    assert diagnosed(text).named == "" and "out of memory" in diagnosed(text).search


@pytest.mark.parametrize("name", FAILURES)
def test_what_the_rules_say_is_what_the_runs_said(name):
    """Breaks when `diagnose` tells another verdict than the README, which a run wrote."""
    failure = FAILURES[name]
    words = {key: verdicts.known(failure, claim).word for key, claim in failure.claims.items()}
    text = (paths.REPROS / name / "README.md").read_text(encoding="utf-8").split(markdown.BEGIN)[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    measured = {row[0]: row[2] for row in rows if len(row) == 4 and row[0] in failure.claims}
    assert measured == words


def test_an_error_without_a_name_is_known_again(asked, log):
    """Breaks when runs here ended as somebody's did, and nobody says so because no failure is named after it."""
    text = (
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors "
    )
    text += "have different metadata than during the forward pass.\ntensor at position 4:\n"
    code, out, _ = asked("diagnose", log(text), "--json")
    seen = json.loads(out)["seen"]
    assert (
        code == 0 and seen and all("/zero3" in entry["cell"] and "/non-reentrant/" in entry["cell"] for entry in seen)
    )
    assert "[111 runs ended so]" in asked("diagnose", log(text))[1]
    assert not measured.seen("ValueError: of nobody")


TWO_LOSSES = """Traceback (most recent call last):
  File "/home/me/train.py", line 61, in <module>
    %s
  File "/site-packages/deepspeed/runtime/engine.py", line 2037, in backward
    self.optimizer.backward(loss, retain_graph=retain_graph)
  File "/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", line 2063, in backward
    scaled_loss.backward(retain_graph=retain_graph)
  File "/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", line 1394, in reduce_ipg_grads
    assert self.params_already_reduced[param_id] == False, \\
AssertionError: The parameter 12 has already been reduced. Gradient computed twice for this partition.
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
    _, out, _ = asked("diagnose", log(before + TWO_LOSSES % call))
    assert out.startswith("zero_double_reduction") and ("the same mechanism" in out.splitlines()[0]) == mechanism


def test_the_newest_stack_that_ended_so_is_told_last(monkeypatch):
    """Breaks when releases are sorted as texts, where 0.19.10 comes before 0.19.9, or today's isn't the last."""
    today = measured.pinned()
    older = {**today, "transformers": "5.9.0"}
    versions = [today, older, *({**older, "transformers": release} for release in ("5.10.0", "4.57.1"))]
    stacks = {str(number): Stack(str(number), each) for number, each in enumerate(versions)}
    error, cell = Error("e", "x", "other", "raises", "ValueError: of them", ""), Cell("x", "broken", "ddp")
    monkeypatch.setattr(store, "stacks", lambda: stacks)
    monkeypatch.setattr(store, "errors", lambda: {"e": error})
    rows = [Row(cell.name, name, "raises", "other", "e") for name in stacks]
    monkeypatch.setattr(store, "rows", lambda failure: {cell: rows})
    assert [row.stack for _, row in measured.seen(error.text)] == ["3", "1", "2", "0"]


@pytest.mark.parametrize(
    ("line", "words", "failure"),
    [
        (
            "lora:\n  target_parameters: [experts.down_proj]",
            ENGINE + RELEASED,
            "zero3_lora_target_parameters_no_checkpoint",
        ),
        ("with deepspeed.zero.GatheredParameters(adapter):", ENGINE + RELEASED, "zero3_dummy_loss"),
        ("  tie_word_embeddings: true", "RuntimeError: mat2 must be a matrix\n", "fsdp2_tied_embeddings_split_groups"),
        (
            "loss(hidden, model.lm_head.weight)",
            "RuntimeError: 'weight' must be 2-D\n",
            "fsdp2_method_or_child_outside_root_forward",
        ),
    ],
)
def test_what_tells_a_failure_may_stand_anywhere_in_the_log(line, words, failure):
    """Breaks when a line that bears an error's words out is only seen within its traceback."""
    match = diagnosed(f"{line}\nstep 1\nstep 2\n\n{words}").match
    assert match and (match.failure.name, match.mechanism) == (failure, "")


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
            rules_out = met(any_of, "")  # what is told by what isn't there
            told_by_it = not rules_out and met(any_of, raises)
            assert not told_by_it or (failure.name, signature) in DEFECTS, (failure.name, signature)


@pytest.mark.parametrize("mode", [*CHECKPOINTING])
def test_that_checkpointing_is_on_bears_nothing_out_that_isnt_about_it(mode):
    """Breaks when a mode in the log, or in the options, stands for the frame that a failure is known by."""
    log = (score.NEAR_MISSES / "made-vector-in-a-checkpointed-product.log").read_text()
    assert diagnosed(log).named == ""
    assert diagnosed(log, **place("fsdp1-full", mode)).named == ""


def test_every_mechanism_has_a_remedy_in_words_for_any_model():
    """Breaks when a failure's mechanism is named and nothing is said of what helps, or what its own model needs is."""
    for failure in FAILURES.values():
        for signature in mechanisms_of(failure):
            fates = remedies.fates(failure, signature, measured.places(failure, signature))
            general = {claim.general for claim in failure.claims.values()} - {""}
            same = matching.mechanism(failure, signature)
            assert general >= {fate.claim.text for fate in matching.worded(fates, same.text)}
            assert matching.worded(fates, "") == fates and general, failure.name


def test_contexts_are_of_signatures_that_there_are():
    for failure in FAILURES.values():
        assert {*failure.recognition.error} <= {*failure.errors}
        tables = (*failure.recognition.error.values(), *failure.recognition.mechanism.values())
        for pattern in (p for each in tables for c in each.any_of for p in (*c.present, *c.absent)):
            re.compile(pattern)
            assert ".*" not in pattern, "it would be tried at each character of a log"


def test_remedies_are_those_of_the_place():
    failure = FAILURES["zero3_dummy_loss"]
    fates = remedies.fates(failure, "empty-gradient", {("zero3", "off")})
    by_key = {fate.key: fate for fate in fates}
    assert (
        {fate.scope for fate in fates} == {"there"}
        and by_key["zero2"].word == "verified"
        and by_key["persistent"].word == "refuted"
    )
    assert all(fate.cells <= 3 for fate in fates), "cells of other places were counted"
    fates = remedies.fates(failure, "empty-gradient", {("ddp", "off")})
    assert {fate.scope for fate in fates} == {"elsewhere"}
    fates = remedies.fates(FAILURES["fsdp_reference_model"], "two-devices", {("ddp", "off")})
    assert {fate.scope for fate in fates} == {"other words"}


def test_remedies_of_the_same_place_in_other_words_come_before_those_of_other_places(asked, log):
    """Breaks when LoRA under ZeRO-2 on trl 0.15.2, where today's torch words the error otherwise, gets what helps
    under DDP."""
    failure = FAILURES["grpo_lora_no_grad"]
    fates = remedies.fates(failure, "no-grad-fn", {("zero2", "reentrant")})
    assert {fate.scope for fate in fates} == {"there in other words"} and {fate.cells for fate in fates} <= {1, 2, 3}
    text = "trl==0.15.2\ngradient_checkpointing_kwargs={'use_reentrant': True}\n" + NO_GRAD
    code, out, _ = asked("diagnose", log(text), "--strategy", "zero2")
    assert code == 0 and "elsewhere" not in out and "as raises (not-a-loss) under zero2" in out


def test_the_nearest_stack_is_none_newer():
    """Breaks when what is said of somebody's versions was measured with newer ones, or on a stack further away."""
    failure = FAILURES["grpo_lora_no_grad"]
    assert nearest.nearest(failure, {"trl": "0.15.2"})[0].versions["trl"] == "0.15.2"
    assert nearest.nearest(failure, {"trl": "0.1.0"}) is None and nearest.nearest(failure, {}) is None
    assert nearest.nearest(failure, {"trl": "not a version"}) is not None


def test_a_failure_that_no_month_was_asked_of_is_told_of_on_its_own_stacks():
    """Breaks when a line about somebody's versions ends before it says anything, or says it of another release."""
    failure, place = FAILURES["zero3_nonreentrant_frozen_checkpointerror"], {("zero3", "non-reentrant")}
    for asked, stack, outcome in (("0.18.3", "deepspeed-0.18.3", "raises"), ("0.19.8", TODAY, "trains")):
        near, did = nearest.nearest(failure, {"deepspeed": asked})
        assert near.name == stack and {each.split()[0] for each in nearest.then(did, place)} == {outcome}
        words = "trl, LoRA\ntorch.utils.checkpoint.CheckpointError: Recomputed values for the following tensors have"
        words += " different metadata: {'shape': torch.Size([0])}"
        here = {"strategies": frozenset(["zero3"]), "modes": frozenset(["non-reentrant"])}
        sure = diagnosed(words, **here, versions={"deepspeed": asked}).match.sure
        assert sure == (CERTAIN if outcome == "raises" else LIKELY)
    for failure in FAILURES.values():
        assert nearest.then(nearest.nearest(failure, measured.pinned())[1], ())


@pytest.fixture
def log(tmp_path):
    def write(text, name="train.log"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return write


def test_exit_codes_tell_known_from_unknown_from_unusable(asked, log, tmp_path):
    assert asked("diagnose", log(TWICE))[0] == 0
    assert asked("diagnose", log("ValueError: x\n"))[0] == 1
    assert asked("diagnose", log("nothing\n"))[0] == 1
    for bad in (log(""), log(bytes(range(32)) * 999, "model.bin"), str(tmp_path / "absent"), str(tmp_path)):
        code, out, errors = asked("diagnose", bad)
        assert code == 2 and not out and len(errors) == 1, bad
    for option in (
        ("--strategy", "zero9"),
        ("--checkpointing", "maybe"),
        ("--stack", "trl=x"),
        ("--stack", "trl>=1"),
        ("--stack", "2019-01-01"),
    ):
        code, _, errors = asked("diagnose", log(TWICE), *option)
        assert code == 2 and len(errors) == 1, option


def test_standard_input_and_several_files(asked, log, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TWICE.encode())))
    code, out, _ = asked("diagnose", "-")
    assert code == 0 and "standard input:1" in out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TWICE.encode())))
    assert asked("diagnose") == (code, out, []), "a log that is piped in needs no -"
    code, out, _ = asked(
        "diagnose", log("RuntimeError: Connection closed by peer\n", "rank0"), log(TWICE, "rank1"), "--json"
    )
    assert code == 0 and json.loads(out)["cause"]["file"].endswith("rank1")


def test_messages_name_the_file_and_the_way_on(asked, log, monkeypatch):
    """Breaks when somebody who gives an empty file, an address or a text isn't told what to give."""
    assert asked("diagnose", log("", "empty.log"))[2][0].endswith("empty.log is empty")
    assert "nothing is downloaded" in asked("diagnose", "https://github.com/huggingface/trl/issues/3150")[2][0]
    assert "begins with its type" in asked("diagnose", "my train.log")[2][0]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert "no log given" in asked("diagnose")[2][0]


def test_an_error_that_the_catalogue_lacks_is_told_apart_from_one_that_is_not_decided(asked, log):
    """Breaks when the same headline stands over an error that nobody knows and one that our own runs raised."""
    assert asked("diagnose", log("ValueError: of nobody\n"))[1].startswith("Not in the catalogue\n")
    assert asked("diagnose", log(NO_GRAD))[1].startswith("One of several  the error alone doesn't show which")
    assert asked("diagnose", log("fine\n"))[1].startswith("No error found in this log\n")
    memory = asked("diagnose", log("torch.OutOfMemoryError: CUDA out of memory.\n"))[1]
    assert memory.startswith("Not in the catalogue  plain out of memory") and memory.count("\n") == 1


def test_a_person_reads_the_name_then_why_then_what_helps(asked, log):
    """Breaks when somebody with a traceback has to search the output for what to do."""
    text = "TRL version: 0.15.2\ngradient_checkpointing_kwargs={'use_reentrant': True}\n" + NO_GRAD
    code, out, _ = asked("diagnose", log(text), "--strategy", "ddp")
    assert code == 0
    failure = FAILURES["grpo_lora_no_grad"]
    parts = (
        *("grpo_lora_no_grad", "certain", "train.log:3", "What helps", "verified", "What doesn't", "refuted", "Fix"),
        *("trl 0.16.0", "trl-0.15.2", "faultline run --cell grpo_lora_no_grad/broken/ddp/reentrant/fp32/w2/cpu"),
        *("faultline reproduce grpo_lora_no_grad", *failure.records),
    )
    at = [out.index(part) for part in parts]
    assert at == sorted(at) and len(out.splitlines()) < 40


def test_json_has_it_all(asked, log):
    code, out, _ = asked(
        "diagnose", log("[rank1]: " + TWICE), "--strategy", "zero2", "--checkpointing", "reentrant", "--json"
    )
    answer = json.loads(out)
    assert (
        code == 0
        and answer["answer"] == NAMED
        and answer["failure"] == "zero_double_reduction"
        and answer["sure"] == CERTAIN
    )
    assert answer["cause"]["rank"] == 1 and answer["cause"]["line"] == 1 and answer["measured"] == "there"
    assert {claim["verdict"] for claim in answer["claims"]} == {"verified", "refuted"}
    page = (paths.ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    section = page.split("\n## JSON\n")[1].strip().split("\n\n")[0]
    keys = [row.split(" | ")[0] for row in section.splitlines()[2:]]
    assert {key for row in keys for key in re.findall("`(\\w+)`", row)} == {*answer}, "the page's keys are others"
    code, out, _ = asked("diagnose", log("ValueError: 12 of /a/b\n"), "--json")
    assert json.loads(out)["answer"] == NOT_THERE and json.loads(out)["search"] == "ValueError"


def test_versions_come_from_the_log_or_from_a_stack(asked, log):
    text = "trl==0.15.2\n- `transformers` version: 4.49.0\nDeepSpeed info: version=0.16.4, git-hash=x\n"
    text += "PyTorch version: 2.6.0+cu124\n"
    versions = diagnosed(text + TWICE).hints.versions
    assert versions == {"trl": "0.15.2", "transformers": "4.49.0", "deepspeed": "0.16.4", "torch": "2.6.0"}
    for stack in ("trl-0.15.2", "trl==0.15.2", "2025-03-01"):
        _, out, _ = asked("diagnose", log(TWICE), "--stack", stack, "--json")
        assert json.loads(out)["versions"]["trl"] == "0.15.2" and json.loads(out)["then"]["date"] == "trl-0.15.2"


@given(st.text(st.characters(codec="utf-8"), max_size=60))
@pytest.mark.slow
def test_no_text_of_a_log_steers_the_terminal(text):
    """Breaks when a log can clear the screen, set a title or write rich's markup."""
    hostile = f"\x1b]0;{text}\x07\x1b[2J[bold red]{text}[/]"
    for content in (f"ValueError: {hostile}\n", f"RuntimeError: has already been reduced {hostile}\n"):
        for name in ("log", f"log{text}\x1b[2J"):
            answer = diagnose(lambda wanted, c=content, n=name: diagnose_lines.lines(n, io.BytesIO(c.encode()), wanted))
            shown = io.StringIO()
            view.show(Console(file=shown, width=200), answer, details(answer))
            assert "\x1b" not in shown.getvalue() and "\x07" not in shown.getvalue()
            assert base_text.plain(shown.getvalue()) == shown.getvalue()


def test_of_chained_errors_the_last_that_is_known_is_the_answer():
    """Breaks when a wrapper that the catalogue knows, or the error within, is passed over for the other."""
    frames = 'Traceback (most recent call last):\n  File "x", line 1, in f\n'
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for text in (
        frames + "KeyError: 'x'\n" + link + frames + TWICE,
        frames + TWICE + link + frames + "KeyError: 'x'\n",
    ):
        answer = diagnosed(text)
        assert answer.named == "zero_double_reduction" and "already been reduced" in answer.cause.text
    neither = diagnosed(frames + "KeyError: 'x'\n" + link + frames + "ValueError: y\n")
    assert neither.named == "" and neither.search == "KeyError \"'x'\""
    known_later = diagnosed(frames + "KeyError: 'x'\n\n" + frames + TWICE)
    assert known_later.named == "", "an error that only came later is of no chain"


def test_words_to_search_for_are_the_errors_own():
    frames = 'Traceback (most recent call last):\n  File "x", line 1, in f\n'
    assert diagnosed(frames + "ValueError: x of 3\nSaving the model\n").search == 'ValueError "x of"'


def test_timeouts_alone_are_unknown_and_told(asked, log):
    """Breaks when ranks that waited in vain are taken for the cause, or nobody says which they are."""
    text = "".join(f"[rank{n}]: [Rank {n}] Watchdog caught collective operation timeout: x\n" for n in (3, 5))
    code, out, _ = asked("diagnose", log(text + "Fatal Python error: Aborted\n"))
    assert code == 1 and out.startswith("This log only shows the aftermath.") and "Ranks 3, 5 waited" in out
    assert out.index("Watchdog") < out.index("Aborted"), "the events aren't in the order of the log"


@pytest.mark.parametrize(("other", "apart"), [("_ALLGATHER_BASE", True), ("ALLREDUCE", False)])
def test_ranks_that_wait_in_different_collectives_are_said_to(asked, log, other, apart):
    """Breaks when nobody says what a timeout of two collectives shows: that ranks run different code."""
    text = "".join(
        f"[rank{n}]: [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={name}, x)\n"
        for n, name in enumerate(["ALLREDUCE", other])
    )
    wait = f"The ranks wait in different collectives: rank 0 in ALLREDUCE, rank 1 in {other}."
    assert (wait in asked("diagnose", log(text))[1]) == apart


def test_an_abort_whose_message_was_cut_off_is_no_cause_beside_a_timeout(asked, log):
    """Breaks when what NCCL's watchdog throws is looked for, and not what made the ranks wait."""
    thrown = "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'\n"
    waited = "[rank1]: [Rank 1] Watchdog caught collective operation timeout: x\n"
    assert asked("diagnose", log(waited + thrown))[1].startswith("This log only shows the aftermath.")
    assert asked("diagnose", log(thrown))[1].startswith("Not in the catalogue"), "nothing says that anybody waited"
