"""`check` on real ranks: faults in somebody's model are found and placed, healthy models pass, mistakes are told."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from faultline import strategies
from faultline.base.errors import TargetFailed
from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.check import beside, findings, known, next_steps, remarks, target, view
from faultline.check import cell as checking
from faultline.programs import planted_saves
from faultline.runs.runner import References

pytestmark = pytest.mark.slow

PARAMETERS = ROOT / "tests" / "support" / "parameters.py"
OWN = ROOT / "tests" / "support" / "own_models.py"
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24}


@pytest.fixture(scope="module")
def run(shared_server, tmp_path_factory):
    """Check a function of own_models.py or of another file, or a config, in one cell."""

    def run(
        what, strategy="ddp", mode="off", precision="fp32", world=2, lora="", life="straight", inject="", of=checking
    ):
        folder = tmp_path_factory.mktemp("references")
        if isinstance(what, dict):
            (folder / "config.json").write_text(json.dumps(what))
        relevant = what if ":" in what else f"{OWN}:{what}"
        model = target.parse(str(folder) if isinstance(what, dict) else relevant, lora)
        cell = Cell("check", "model", strategy, mode, precision, world, life=life)
        return of.run(model, shared_server, References(folder), cell, inject)

    return run


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp1-full", "fsdp2"])
@pytest.mark.parametrize("model", ["healthy", "nested_lists", "nested_sequences", "one_number"])
def test_a_healthy_model_trains(run, model, strategy):
    """A tool that finds faults where there are none is soon ignored."""
    results = run(model, strategy)
    assert (results.outcome, results.finding.first) == ("trains", None), results.detail


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp2"])
def test_dropout_of_any_kind_is_off(run, strategy):
    """Breaks when a model with `nn.TransformerEncoder`, an LSTM or functional dropout can't be checked."""
    assert run("dropping", strategy).outcome == "trains"


def test_losses_that_are_equal_are_no_reason_to_refuse_rows_that_differ(run):
    """Breaks when DPO's first step, or a classifier with a head of zeros, can't be checked."""
    assert run("zero_head", "ddp").outcome == "trains"


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
def test_a_part_that_is_in_eval_stays_so(run, strategy):
    """Breaks when a healthy model whose BatchNorm is frozen is called diverging, with what it does for a remedy."""
    results = run("normalised_as_before", strategy)
    assert results.outcome == "trains", results.detail


@pytest.mark.parametrize("life", ["straight", "resized"])
def test_an_error_of_a_function_of_torch_is_the_models(run, life):
    """Breaks when shapes that don't fit are called a fault of Faultline."""
    with pytest.raises(TargetFailed, match="shapes cannot be multiplied") as failed:
        run("wrong_shapes", life=life)
    assert "Faultline" not in str(failed.value)


@pytest.mark.parametrize(("precision", "world"), [("bf16", 2), ("fp32", 4), ("fp32", 1)])
def test_a_healthy_model_trains_in_bf16_and_on_any_number_of_ranks(run, precision, world):
    assert run("healthy", "zero2", precision=precision, world=world).outcome == "trains"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp1-full", "fsdp2"])
def test_a_resized_life_trains_and_its_faults_are_seen(run, strategy):
    """Breaks when four ranks that save, and two that load, are not held against one process."""
    assert run("healthy", strategy, life="resized").outcome == "trains"
    lost = run("healthy", strategy, life="resized", inject=f"{planted_saves.__file__}:MOMENTUM_LOST")
    assert (lost.outcome, lost.signature) == ("diverges", "resumed-differs"), lost.detail


@pytest.mark.parametrize("model", ["uneven", "other_rows"])
def test_what_no_process_can_be_held_against_is_no_fault_of_a_resized_life(run, model):
    """Breaks when an engine is blamed for a loss that depends on which rows are together."""
    results = run(model, life="resized")
    assert results.outcome == "impossible" and "the mean loss of 4 ranks is not that of 2" in results.detail
    assert run(model, life="resumed").outcome == "trains"


# What each engine refuses, in its own words; the rest trains.
REFUSED = {
    ("sparse", "zero2"): "'aten::view' with arguments from the 'SparseCPU' backend",
    ("sparse", "zero3"): "between dense and sparse Tensors is not implemented",
    ("sparse", "fsdp1-full"): "reshape is not implemented for sparse tensors",
    ("sparse", "fsdp2"): "with arguments from the 'SparseCPU' backend",
    ("mixed", "zero2"): "must have the same dtype",
    ("mixed", "zero3"): "len(set(t.dtype for t in tensors)) == 1",
    ("complex_numbers", "zero2"): "must have the same dtype",
    ("complex_numbers", "zero3"): "len(set(t.dtype for t in tensors)) == 1",
    ("complex_numbers", "fsdp1-full"): "Cannot flatten integer dtype tensors",
    ("scalar", "zero2"): "self.dim() cannot be 0 to view Float as Byte",
    ("scalar", "zero3"): "self.dim() cannot be 0 to view Float as Byte",
    ("scalar", "fsdp1-full"): "FSDP doesn't support scalar parameters",
    ("scalar", "fsdp2"): "fully_shard doesn't support scalar parameters",
    ("empty", "zero3"): "'status': 'NOT_AVAILABLE'",
    ("empty", "fsdp1-full"): "unsharded_start_idx",
    ("empty", "fsdp2"): "_chunk_cat expects non-empty tensor",
    ("not_contiguous", "zero2"): "must be 1 to view Float as Byte",
    ("not_contiguous", "zero3"): "must be 1 to view Float as Byte",
    ("not_contiguous", "fsdp2"): "does not support non-contiguous parameters",
    ("integers", "zero2"): "can't be cast to the desired output type Char",
    ("integers", "fsdp1-full"): "Cannot flatten integer dtype tensors",
}
KINDS = (
    *("sparse", "double", "mixed", "complex_numbers", "scalar", "empty", "not_contiguous", "integers", "one_storage"),
)


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_parameter_trains_or_is_refused_by_the_engine(run, kind, strategy):
    """Breaks when a model that is unusual ends in an error of ours, or is called wrong where it trains."""
    result = run(f"{PARAMETERS}:{kind}", strategy)
    words = REFUSED.get((kind, strategy), "")
    assert ("torch.view_as_complex" in str(remarks.of_model(result.checked.facts))) is (kind == "complex_numbers")
    assert result.outcome == ("raises" if words else "trains") and words in result.detail, result.detail


def test_a_model_that_checkpoints_by_itself_is_taken_as_it_is(run):
    results = run("checkpoints_by_itself")
    assert results.outcome == "trains" and results.checked.facts.checkpointing == "non-reentrant"
    assert run("checkpoints_by_itself", mode="reentrant").outcome == "impossible"


@pytest.mark.parametrize("strategy", ["zero3", "fsdp1-full", "fsdp2"])
def test_what_is_refused_before_it_could_checkpoint_is_refused(run, strategy):
    """Breaks when an engine's refusal is called a cell without evidence, as no recomputation was seen by then."""
    assert run("checkpoints_by_itself_and_mixes", strategy).outcome == "raises"


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_a_hang_before_it_could_checkpoint_is_a_hang(run, strategy):
    """Breaks when a hang is called a cell without evidence, as no recomputation was seen by then."""
    results = run("checkpoints_by_itself_and_waits", strategy)
    assert (results.outcome, results.signature) == ("hangs", "no-progress"), results.detail


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp1-full", "fsdp2"])
def test_an_error_of_one_rank_is_no_hang_of_the_report_on_it(run, strategy):
    """Breaks when looking at tied weights after an error gathers them: ZeRO-3 does so within a forward pass."""
    results = run("one_rank_raises_within_tied", strategy)
    assert (results.outcome, results.detail) == ("raises", "ValueError: one rank's own")


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_the_module_that_differs_first_is_named(run, strategy):
    """Everything behind it is off as well: a list of all parameters says nothing."""
    results = run("doubled", strategy)
    assert results.outcome == "diverges"
    assert (results.finding.first.step, results.finding.first.phase) == (1, "forward")
    assert results.finding.first.module.startswith("layers.1"), "the second layer is at fault"


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_an_engine_that_copies_the_weights_of_one_rank_mends_what_ranks_build(run, strategy):
    assert run("other_on_each_rank", strategy).outcome == "trains"


@pytest.mark.parametrize("strategy", ["fsdp1-full", "fsdp2"])
def test_ranks_that_start_with_different_weights_are_named(run, strategy):
    """Breaks when that is told as an error of the forward pass, which computes rightly with what it has."""
    result = run("other_on_each_rank", strategy)
    assert (result.outcome, result.signature) == ("diverges", "start-differs")
    assert result.detail.startswith("ranks start with different weights: ")
    assert (result.finding.first.step, result.finding.first.phase) == (0, "start")
    console = Console(file=io.StringIO(), width=200)
    view.show(console, "train.py:build", (), [result])
    assert "rank 0's weights" in console.file.getvalue()


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"])
def test_a_buffer_that_ranks_draw_unlike_is_a_start_and_no_drift(run, strategy):
    """Breaks when a constant buffer is called one that training moves apart, whose remedies don't help."""
    result = run("other_buffer_on_each_rank", strategy)
    if strategy == "ddp":
        assert result.outcome == "trains", "DDP broadcasts buffers"
        return
    assert (result.outcome, result.signature) == ("diverges", "start-differs")
    assert result.detail.startswith("ranks start with different buffers: projection differs by ")
    unsaved = run("other_unsaved_buffer_on_each_rank", strategy)
    assert unsaved.detail.startswith("ranks start with different buffers: projection differs by ")
    assert run("numbered_ranks", strategy).outcome == "trains", "what changes nothing is a rank's own"
    lines = next_steps.same_start(findings.Group((findings.Form((result,), ""),)))
    assert any("broadcast(buffer, 0)" in line for line in lines)


@pytest.mark.parametrize("model", ["counts_in_its_loss", "counts_in_a_closure"])
def test_what_a_loss_keeps_moves_once_in_a_step(run, model):
    """Breaks when a schedule in the loss moves once for each rank in one process, and a healthy model is wrong."""
    result = run(model, "fsdp2")
    assert result.outcome == "trains", result.detail
    assert any(name.startswith("loss.") for name in result.checked.facts.not_saved) is (model == "counts_in_its_loss")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("weights_in_its_loss", "are parameters of the loss and not of the model"),
        ("negatives_of_the_batch", "from the mean of the ranks' losses"),
        ("healthy", ""),
    ],
)
def test_what_no_gradient_shows_is_said_of_the_loss(run, model, text):
    """Breaks when agreement with one process is taken for that with the loss of all rows, or for trained weights."""
    result = run(model)
    lines = " ".join(remarks.of_model(result.checked.facts))
    assert result.outcome == "trains" and (text in lines if text else lines == "")


def test_files_are_read_in_the_folder_of_who_asks(run, monkeypatch, tmp_path):
    """Breaks when a batch that is read from a file is looked for in the clone."""
    monkeypatch.chdir(tmp_path)
    torch_free = [[[1.0] * 8, 0], [[2.0] * 8, 1], [[3.0] * 8, 2], [[4.0] * 8, 3]]
    (tmp_path / "rows.json").write_text(json.dumps(torch_free))
    assert run("from_a_file", "ddp").outcome == "trains"


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp2"])
def test_a_model_of_half_precision_is_trained_as_the_cell_says(run, strategy):
    """Breaks when ZeRO's copies in fp32 are called a difference to weights in bf16."""
    results = run("in_bf16", strategy)
    assert results.outcome == "trains", results.detail
    assert results.checked.facts.cast == ("bfloat16",) and "bfloat16" in remarks.of_model(results.checked.facts)[-1]


def test_an_error_whose_class_is_called_as_one_of_the_suites_is_no_agreement(run):
    """Breaks when a model that raises its own `Impossible` is told to do what one process does."""
    results = run("impossible")
    assert (results.outcome, results.detail) == ("raises", "Impossible: such shapes")
    assert not findings.agrees([results])


@pytest.mark.parametrize(("strategy", "module"), [("ddp", "layers.1"), ("fsdp2", "layers.1"), ("zero3", "layers.1")])
def test_the_module_of_an_error_is_named(run, strategy, module):
    """Breaks when an error of a strategy's own is told without its place, or with a difference that only follows."""
    results = run("fails_on_ranks", strategy)
    assert results.outcome == "raises" and "only for one" in results.detail
    assert (results.checked.raised_in, results.finding.first) == (module, None)
    assert results.checked.at[-1].startswith("own_models.py:") and "raise" in results.checked.at[-1]


@pytest.mark.parametrize("strategy", [name for name in strategies.names() if name != "single"])
def test_tied_weights_that_stay_together_train(run, strategy):
    """The near miss: breaks when a strategy is given a tied module of its own, and its error is called the model's."""
    results = run("tied_blocks", strategy, world=strategies.usual_ranks(strategy))
    assert (results.outcome, results.finding.first, results.checked.apart) == ("trains", None, ()), results.detail
    assert results.checked.facts.tied == (("embed.weight", "head.weight"),)


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_tied_weights_that_come_apart_are_named(run, strategy):
    """The seeded fault: the model itself unties them, once there are several ranks."""
    results = run("tied", strategy)
    assert results.outcome != "trains" and results.checked.apart == (("layers.0.0.weight", "head.weight"),)


def test_a_parameter_without_a_gradient_is_told_and_recognised(run):
    results = run("unused")
    assert results.checked.facts.no_gradient == (
        "spare.weight",
        "spare.bias",
    )
    match, _ = known.recognised(results)
    assert (match.failure.name, match.signature, match.sure) == (
        "ddp_unused_vision_tower",
        "unfinished-reduction",
        "likely",
    )


def test_ranks_that_use_different_parameters_are_told_and_what_comes_of_it(run):
    """ZeRO-2 and FSDP2 put the gradients of different parameters together without a word; FSDP1 and DDP that asks for
    unused parameters cope."""
    results = run("experts", "zero2")
    assert results.checked.facts.unequal == (
        "left",
        "right",
    )
    assert (results.outcome, results.finding.first.phase) == ("diverges", "backward")
    assert run("experts", "ddp-find-unused").outcome == "trains"
    died = run("experts", "ddp")
    assert known.recognised(died)[0].failure.name == "ddp_unused_vision_tower"


def test_a_silent_failure_is_found_placed_and_recognised(run):
    """A tower that runs once per image, under ZeRO-3 with small buckets: no error, and wrong gradients."""
    results = run("per_image", "zero3-small", "reentrant")
    assert (results.outcome, results.finding.first.phase) == ("diverges", "backward")
    assert results.finding.first.module.startswith("vpm.")
    assert known.recognised(results)[0].failure.name == "zero_double_reduction"
    assert run("per_image", "zero3-small", "non-reentrant").outcome == "trains"


WRITTEN = """
import torch
from torch import distributed

def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

def batch(step, rank, world):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)
    rows = 4 // world
    return {"x": x[rank * rows : (rank + 1) * rows], "y": y[rank * rows : (rank + 1) * rows]}

def error(model, batch):
    return (model(batch["x"]) - batch["y"]) ** 2

def build():
    model = net()
    BEFORE
    def loss(model, batch):
        LOSS
    return model, loss, batch
"""
COUNTED = """count = torch.tensor(float(batch["y"].numel()))
        if distributed.is_initialized():
            distributed.all_reduce(count)
        return error(model, batch).sum() / count"""
TIMES = COUNTED.replace("sum() /", "sum() * (distributed.get_world_size() if distributed.is_initialized() else 1) /")
THIRD = "return error(model, batch).mean() / (3 if distributed.is_initialized() else 1)"
INSIDE = 'return error(getattr(model, "module", model), batch).mean()'
UNFROZEN = """for parameter in model.parameters():
            parameter.requires_grad_(True)
        return error(model, batch).mean()"""


@pytest.mark.parametrize(
    ("strategy", "before", "loss", "named"),
    [
        ("ddp", "", COUNTED, "global_count_without_world_size"),
        ("zero2", "", COUNTED, "global_count_without_world_size"),
        ("fsdp2", "", COUNTED, "global_count_without_world_size"),
        ("ddp", "", TIMES, ""),
        ("ddp", "", THIRD, None),
        ("ddp", "", INSIDE, "ddp_forward_bypasses_wrapper"),
        ("zero2", "", INSIDE, ""),
        ("ddp", "", "return error(model, batch).mean()", ""),
        ("ddp", "model[0].requires_grad_(False)", UNFROZEN, "ddp_unfreeze_after_wrap"),
        ("zero3", "model[0].requires_grad_(False)", UNFROZEN, "zero_unfreeze_after_initialize"),
        ("zero0", "model[0].requires_grad_(False)", UNFROZEN, ""),
        ("ddp", "", UNFROZEN, ""),
    ],
)
def test_a_loss_that_goes_wrong_over_ranks_is_named_by_what_it_does(run, tmp_path, strategy, before, loss, named):
    """Breaks when a silent fault has no name, or another one has its name; an empty one means that it trains."""
    file = tmp_path / "train.py"
    file.write_text(WRITTEN.replace("BEFORE", before or "pass").replace("LOSS", loss))
    results = run(f"{file}:build", strategy)
    match, _ = known.recognised(results)
    assert (results.outcome == "trains") == (named == ""), results.detail
    assert (match and match.failure.name) == (named or None) or named == ""


def test_a_config_with_an_adapter_is_checked(run):
    results = run(QWEN2, "zero3", "non-reentrant", lora="r=4,target=all-linear")
    assert results.outcome == "trains", results.detail
    assert (
        results.checked.facts.model == "PeftModel"
        and 0 < results.checked.facts.trainable < results.checked.facts.parameters
    )


def test_an_adapter_that_never_moves_is_named(run):
    """Adapters on Gemma3's vision tower, trained on text: ZeRO-2 trains without a word, and they are what they were."""
    results = run("adapters_of_an_unused_tower", "zero2")
    assert results.outcome == "trains"
    tower = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj"
    assert results.checked.facts.no_gradient == (
        f"{tower}.lora_A.default.weight",
        f"{tower}.lora_B.default.weight",
    )
    assert remarks.of_model(results.checked.facts)[0].endswith(
        "these adapters never move, not even in a single process"
    )
    assert known.recognised(run("adapters_of_an_unused_tower", "ddp"))[0].failure.name == "ddp_unused_vision_tower"


@pytest.mark.parametrize("strategy", ["zero2", "fsdp2"])
def test_an_adapter_that_reentrant_checkpointing_cuts_off_is_named(run, strategy):
    """Embeddings that were made beforehand have no graph: nothing is raised, because the head's adapter has one."""
    results = run("adapters_behind_inputs_without_a_graph", strategy, "reentrant")
    assert results.checked.facts.frozen_input == ("base_model.model.model.layers.0",)
    assert (results.outcome, results.signature, results.finding.first.phase) == ("diverges", "unmoved", "backward")
    never = results.detail.partition("never moved: ")[2].split(", ")
    projection = "base_model.model.model.layers.0.self_attn.q_proj"
    assert never == [f"{projection}.lora_A.default.weight", f"{projection}.lora_B.default.weight"]
    assert run("adapters_behind_inputs_without_a_graph", strategy, "non-reentrant").outcome == "trains"


@pytest.mark.parametrize("strategy", ["ddp", "ddp-find-unused", "fsdp2"])
def test_blocks_that_the_models_own_checkpoints_cut_off_are_named(run, strategy):
    """Breaks when a model that checkpoints by hand behind a frozen embedding is told to train as it should: it does as
    in one process, where half of it never moves, and DDP that looks for unused parameters only says nothing."""
    results = run("cut_off", strategy)
    assert results.checked.facts.frozen_input == (
        "blocks.0",
        "blocks.1",
    )
    assert results.outcome == ("raises" if strategy == "ddp" else "trains"), results.detail
    [group] = findings.groups([results])
    assert (group.failure.name, group.either) == ("reentrant_frozen_embeddings_adapters", ())
    answer = {fate.claim.text: fate.word for fate in group.fates}
    assert answer["`use_reentrant=False`"] == "verified"
    assert answer.get("`find_unused_parameters=True`") == ("refuted" if strategy == "ddp" else None)


def test_an_unused_part_beside_blocks_that_are_cut_off_is_told_as_well(run):
    """Breaks when what helps against one of two causes is told to help against both."""
    [group] = findings.groups([run("cut_off_and_unused", "ddp")])
    names = ["ddp_unused_vision_tower", "reentrant_frozen_embeddings_adapters"]
    assert [group.failure.name, *(match.failure.name for match in group.either)] == names
    answer = {fate.claim.text: fate.word for fate in group.fates}
    assert answer["`find_unused_parameters=True`"] == "refuted", "against both, in reentrant checkpoints"
    assert answer[f"`use_reentrant=False`, against {names[1]}"] == "verified"
    assert answer[f"freeze the unused parameters (`requires_grad=False`), against {names[0]}"] == "verified"


@pytest.mark.parametrize("model", ["not_reentrant", "trained_embedding", "frozen_blocks"])
def test_checkpoints_that_cut_nothing_off_are_quiet(run, model):
    """The near misses: a graph that comes through, and blocks that are frozen on purpose."""
    results = run(model, "fsdp2")
    assert (results.outcome, results.checked.facts.frozen_input) == ("trains", ()), results.detail
    assert results.checked.facts.checkpointing == ("non-reentrant" if model == "not_reentrant" else "reentrant")
    assert not findings.groups([results])


def test_an_adapter_that_fits_nothing_is_refused(run):
    with pytest.raises(TargetFailed, match="PEFT refuses the adapter: Target modules"):
        run(QWEN2, lora="target=nothing_of_the_sort")


@pytest.mark.parametrize(
    ("what", "answer", "line"),
    [
        ("without_a_loss", r"return \(model, loss, batch\)", ""),
        ("no_model", r"the function returns an int: return a model, or \(model, loss, batch\)", ""),
        ("no_function", "the loss is a float: return a function", ""),
        ("no_number", "the loss is nan in one process already", ""),
        ("equal_rows", "give rows that differ", ""),
        ("several_lines", "ValueError: the first line$", "raise ValueError"),
        ("waits", r"hangs: .*waits \(own_models.py", ""),
        ("three_rows", "2 ranks can't share", ""),
        ("no_graph", "the loss has no graph", ""),
        ("exits", r"exits \(code 3\)", "sys.exit(3)"),
        ("dies", "left with exit code 5$", ""),
        ("fails", "AttributeError: 'NoneType' object has no attribute 'shape'", "return value.shape"),
        ("spawns", "processes of its own", "torch.multiprocessing.spawn"),
        ("unseeded", "random numbers that the model draws", ""),
        ("no_tensors", "without a tensor", ""),
    ],
)
def test_a_mistake_is_one_message_with_the_users_own_traceback(run, what, answer, line):
    with pytest.raises(TargetFailed, match=answer) as failed:
        run(what)
    assert "\n" not in str(failed.value)
    assert (line in failed.value.traceback) if line else not failed.value.traceback
    assert f"{ROOT}/faultline" not in failed.value.traceback
    assert "/torch/multiprocessing/" not in failed.value.traceback


@pytest.mark.parametrize("model", ["compiled", "compiled_in_part"])
def test_what_is_compiled_runs_as_it_was_written(run, model):
    """Breaks when a hook that watches modules is compiled, and somebody is blamed for its error."""
    result = run(model)
    assert result.outcome == "trains", result.detail


@pytest.mark.nightly
def test_the_command_tells_a_fault_from_a_mistake():
    """Scripts go by the exit code: 1 is an answer, 2 is none."""
    words = [sys.executable, "-m", "faultline", "check"]
    options = ["--strategy", "ddp", "--checkpointing", "off", "--workers", "1"]
    bad = subprocess.run([*words, f"{OWN}:unused", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert bad.returncode == 1, bad.stderr
    assert "ddp_unused_vision_tower" in bad.stdout and "spare.weight, spare.bias: never get a gradient" in bad.stdout
    mistake = [*words, f"{OWN}:fails", *options, "--json"]
    failed = subprocess.run(mistake, cwd=ROOT, capture_output=True, text=True, check=False)
    assert failed.returncode == 2 and "return value.shape" in failed.stderr and not failed.stdout


ASKING = """
import torch
from torch import distributed, nn
from torch.distributed import all_reduce

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 6))

    def forward(self, model, batch):
        out = model(batch)
        target = torch.softmax((out.detach() - self.center) / 0.1, -1)
        mean = out.detach().mean(0, keepdim=True)
        if distributed.is_initialized():
            all_reduce(mean)
            mean /= distributed.get_world_size()
        self.center.mul_(0.5).add_(mean)
        return -(target * torch.log_softmax(out, -1)).sum(-1).mean()

def centred():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)), Centred(), torch.randn(4, 6)

def unguarded():
    def loss(model, batch):
        out = model(batch).mean()
        all_reduce(out.detach().clone())
        return out
    return nn.Linear(6, 6), loss, torch.randn(4, 6)

def of_one_rank():
    def loss(model, batch):
        out = model(batch).mean()
        if distributed.is_initialized() and distributed.get_rank() == 0:
            all_reduce(out.detach().clone())
        return out
    return nn.Linear(6, 6), loss, torch.randn(4, 6)
"""


@pytest.fixture
def asking(tmp_path):
    file = tmp_path / "asks.py"
    file.write_text(ASKING)
    return file


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp2"])
def test_a_loss_that_asks_other_ranks_is_named_and_no_engine_is_blamed(run, asking, strategy):
    """Breaks when DINO's centre, which is the mean over ranks, is called a difference and no more is said."""
    result = run(f"{asking}:centred", strategy, of=beside)
    assert result.checked.collectives == ("all_reduce (asks.py:16)",), "an engine's are none of the model's"
    assert (result.outcome, beside.alike(result)) == ("trains", ("rows",)), "it is the mean over all rows"


def test_a_collective_without_a_guard_says_what_guards_it(run, asking):
    with pytest.raises(TargetFailed, match=r"torch\.distributed\.is_initialized"):
        run(f"{asking}:unguarded")


@pytest.mark.parametrize(
    ("strategy", "outcome", "line"),
    [("ddp", "crashes", "a rank was sent"), ("zero2", "hangs", "Every rank has to call")],
)
def test_a_collective_of_one_rank_alone_is_explained(run, asking, strategy, outcome, line):
    """Breaks when ranks that wait for each other, or a crash in gloo's words, leave somebody without a next step."""
    result = run(f"{asking}:of_one_rank", strategy)
    [group] = findings.groups([result])
    assert result.outcome == outcome and next_steps.mismatched(group)[0].startswith(line), result.detail
    assert outcome == "crashes" or result.checked.at == ("rank 0: asks.py:35 in loss",)


@pytest.mark.parametrize(
    ("model", "strategy", "named"),
    [
        ("alternating", "ddp", "ddp_unused_vision_tower"),
        ("alternating", "zero2", "weight_decay_without_gradient"),
        ("alternating", "fsdp2", ""),
        ("twice_backward", "ddp", ""),
        ("twice_backward", "fsdp2", ""),
        ("twice_backward", "zero2", "zero12_manual_ga_keeps_last_microbatch"),
        ("by_rank", "ddp", "ddp_unused_vision_tower"),
        ("by_rank", "zero2", None),
        ("temperature", "fsdp2", "zero_broadcast_of_scalar_weights"),
    ],
)
def test_a_cause_is_named_and_no_other(run, model, strategy, named):
    """Breaks when what a model is like decides against an engine's words, or a healthy loop is called wrong.

    An empty name says that it trains, and None that nothing known has it.
    """
    result = run(model, strategy)
    match, _ = known.recognised(result, [result])
    assert (result.outcome == "trains") == (named == ""), result.detail
    assert (match and match.failure.name) == (named or None)


def test_weights_that_a_forward_pass_writes_are_named(run):
    """Breaks when a WGAN that ZeRO trains otherwise has a difference without a reason."""
    result = run("clipped", "zero2")
    assert result.outcome == "diverges" and "head.weight" in result.checked.facts.written
    assert "the forward pass writes them" in " ".join(remarks.of_model(result.checked.facts))


def test_an_attribute_that_a_wrapper_lacks_is_explained(run):
    result = run("of_the_wrapper", "ddp")
    [line] = next_steps.of_wrapper(findings.groups([result])[0])
    assert result.outcome == "raises" and "getattr(model, 'module', model).number" in line
