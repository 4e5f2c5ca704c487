"""`check` on real ranks: faults in somebody's model are found and placed, healthy models pass, mistakes are told."""

from __future__ import annotations

import json

import pytest

from faultline import strategies
from faultline.base.console import printed
from faultline.base.errors import TargetFailed
from faultline.base.paths import ROOT
from faultline.cells.cell import HALF
from faultline.check import findings, known, model_facts, next_steps, variations, view
from faultline.check.remedies import judge_remedies
from lab.programs.fault import Fault
from lab.proofs import planting
from tests.support.night import sampled

pytestmark = pytest.mark.slow

WILD = ROOT / "tests" / "support" / "wild_models.py"

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24}
FAMILIES = ("ddp", "zero3", "fsdp1-full", "fsdp2")
MODELS = {
    "healthy": FAMILIES,
    "nested_lists": ("fsdp2", "fsdp1-full", "ddp", "zero3"),  # whose layers are no modules that run
    "nested_sequences": ("fsdp1-full", "fsdp2", "ddp", "zero3"),
    "graph": ("zero2", "fsdp1-full", "fsdp2"),  # rows are told apart, though some are sparse
    "one_number": ("fsdp2", "fsdp1-full", "ddp", "zero3"),
    "dropping": ("ddp", "zero2", "fsdp2"),  # dropout of any kind is off
    "normalised_as_before": ("zero3", "ddp", "zero2", "fsdp2"),  # a part that is in eval stays so
    "compiled": ("ddp",),  # runs as it was written: a hook that watches modules can't be compiled
    "compiled_in_part": ("ddp",),
    "other_on_each_rank": ("zero2", "ddp", "zero3"),  # which copy the weights of one rank
    "other_buffer_on_each_rank": ("ddp",),  # which broadcasts buffers
    "numbered_ranks": ("fsdp2", "zero2", "zero3"),  # what changes nothing is a rank's own
    "twice_backward": ("fsdp2", "ddp"),
    # The near miss of a tied module that is given a unit of its own.
    "tied_blocks": ("fsdp2", *(name for name in planting.EVERY if name not in ("single", "fsdp2"))),
}


@pytest.mark.parametrize(
    ("model", "strategy"),
    sampled(
        [(model, strategy) for model, names in MODELS.items() for strategy in names],
        every=6,
        kind=lambda model, strategy: (model, strategy if model == "healthy" else ""),
    ),
)
def test_a_healthy_model_trains(run, model, strategy):
    """A tool that finds faults where there are none is soon ignored."""
    result = run(model, strategy, world=strategies.usual_ranks(strategy))
    assert (result.outcome, result.finding.first, result.checked.apart) == ("trains", None, ()), result.detail


@pytest.mark.parametrize(("precision", "world"), [("bf16", 2), ("fp32", 4), ("fp32", 1)])
def test_a_healthy_model_trains_in_bf16_and_on_any_number_of_ranks(run, precision, world):
    assert run("healthy", "zero2", precision=precision, world=world).outcome == "trains"


@pytest.mark.parametrize("strategy", sampled(["ddp", "fsdp1-full", "fsdp2"], 3))
def test_a_resized_life_trains_and_its_faults_are_seen(run, strategy):
    """Breaks when four ranks that save, and two that load, are not held against one process."""
    assert run("healthy", strategy, life="resized").outcome == "trains"
    lost = run("healthy", strategy, life="resized", inject=Fault("momentum", step=HALF + 1).injection)
    assert (lost.outcome, lost.signature) == ("diverges", "resumed-differs"), lost.detail


def test_what_no_process_can_be_held_against_is_no_fault_of_a_resized_life(run):
    """Breaks when an engine is blamed for a loss that depends on which rows are together."""
    result = run("uneven", life="resized")
    assert result.outcome == "impossible" and "the mean loss of 4 ranks is not that of 2" in result.detail
    assert run("uneven", life="resumed").outcome == "trains"


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
ENGINES = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")


# By day each kind under one engine or two, and each engine with some.
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [*sampled([(kind, name) for kind in KINDS for name in ENGINES], 4), ("empty_and_idle", "zero3")],
)
def test_any_kind_of_parameter_trains_or_is_refused_by_the_engine(run, kind, strategy):
    """Breaks when a model that is unusual ends in an error of ours, or is called wrong where it trains."""
    result = run(f"parameters.py:{kind}", strategy)
    words = REFUSED.get((kind, strategy), "")
    assert ("torch.view_as_complex" in str(model_facts.of_model(result.checked.facts))) is (kind == "complex_numbers")
    assert result.outcome == ("raises" if words else "trains") and words in result.detail, result.detail


def test_a_model_that_checkpoints_by_itself_is_taken_as_it_is(run):
    result = run("checkpoints_by_itself")
    assert result.outcome == "trains" and result.checked.facts.checkpointing == "non-reentrant"
    assert run("checkpoints_by_itself", mode="reentrant").outcome == "impossible"


def test_an_error_of_one_rank_is_no_hang_of_the_report_on_it(run):
    """Breaks when looking at tied weights after an error gathers them: ZeRO-3 does so within a forward pass."""
    result = run("one_rank_raises_within_tied", "zero3")
    assert (result.outcome, result.detail) == ("raises", "ValueError: one rank's own")


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_the_module_that_differs_first_is_named(run, strategy):
    """Everything behind it is off as well: a list of all parameters says nothing."""
    result = run("doubled", strategy)
    assert result.outcome == "diverges"
    assert (result.finding.first.step, result.finding.first.phase) == (1, "forward")
    assert result.finding.first.module.startswith("layers.1"), "the second layer is at fault"


UNLIKE = [
    ("other_on_each_rank", "weights: ", "rank 0's weights"),
    ("other_buffer_on_each_rank", "buffers: projection differs by ", "broadcast(buffer, 0)"),
    ("other_unsaved_buffer_on_each_rank", "buffers: projection differs by ", "broadcast(buffer, 0)"),
]


@pytest.mark.parametrize(
    ("strategy", "model", "detail", "step"),
    sampled([(name, *each) for each in UNLIKE for name in ("fsdp2", "fsdp1-full")], 2),
)
def test_what_ranks_start_with_unlike_is_a_start_and_no_drift(run, strategy, model, detail, step):
    """Breaks when that is told as an error of the forward pass, which computes rightly with what it has; or as a buffer
    that training moves apart, whose remedies don't help."""
    result = run(model, strategy)
    assert (result.outcome, result.signature) == ("diverges", "start-differs")
    assert result.detail.startswith(f"ranks start with different {detail}")
    assert (result.finding.first.step, result.finding.first.phase) == (0, "start")
    steps = next_steps.same_start(findings.Group((findings.Form((result,), ""),)))
    assert any(step in line for line in steps)


@pytest.mark.parametrize(
    ("model", "strategy", "outcome", "text"),
    [
        ("healthy", "ddp", "trains", ""),
        # What no gradient shows is said of the loss.
        ("weights_in_its_loss", "ddp", "trains", "are parameters of the loss and not of the model"),
        ("negatives_of_the_batch", "ddp", "trains", "negatives or statistics of the batch"),
        # ZeRO's copies in fp32 are no difference to weights in bf16.
        ("in_bf16", "zero2", "trains", "bfloat16"),
        ("in_bf16", "fsdp2", "trains", "bfloat16"),
        # A WGAN that ZeRO trains otherwise.
        ("clipped", "zero2", "diverges", "the forward pass writes them"),
        ("of_the_wrapper", "ddp", "raises", "getattr(model, 'module', model).number"),
        # A collective of one rank alone: ranks that wait for each other, or a crash in gloo's words.
        ("of_one_rank", "ddp", "crashes", "a rank was sent"),
        ("of_one_rank", "zero2", "hangs", "Every rank has to call"),
    ],
)
def test_what_a_check_saw_is_said(run, model, strategy, outcome, text):
    """Breaks when agreement with one process is taken for trained weights, or a difference comes without its reason."""
    result = run(model, strategy)
    steps = [line for group in findings.groups([result]) for line in next_steps.next_steps(group, [result])]
    lines = " ".join([*model_facts.of_model(result.checked.facts), *steps])
    assert result.outcome == outcome and (text in lines if text else lines == ""), (lines, result.detail)
    assert "ranks keep their own" not in lines
    at = "rank 0: own_models.py:"
    assert outcome != "hangs" or (result.checked.at[0].startswith(at) and result.checked.at[0].endswith(" in asking"))


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp2"])
def test_a_loss_that_asks_other_ranks_is_named_and_no_engine_is_blamed(run, strategy):
    """Breaks when DINO's centre, which is the mean over ranks, or a codebook that they share is called a difference, or
    it isn't said of what kind of a single process it is none."""
    result = run("centred", strategy, of=variations)
    [named] = result.checked.collectives  # an engine's are none of the model's
    assert named.startswith("all_reduce in the loss (own_models.py:")
    assert (result.outcome, variations.agreed_references(result)) == ("trains", ("rows",)), (
        "it is the mean over all rows"
    )
    assert "agrees with one process on all rows, and not with the mean of the ranks' losses" in view.verdict([result])


def test_files_are_read_in_the_folder_of_who_asks(run, monkeypatch, tmp_path):
    """Breaks when a batch that is read from a file is looked for in the clone."""
    monkeypatch.chdir(tmp_path)
    rows = [[[1.0] * 8, 0], [[2.0] * 8, 1], [[3.0] * 8, 2], [[4.0] * 8, 3]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert run("from_a_file", "ddp").outcome == "trains"


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_the_module_of_an_error_is_named(run, strategy):
    """Breaks when an error of a strategy's own is told without its place, or with a difference that only follows."""
    result = run("fails_on_ranks", strategy)
    assert result.outcome == "raises" and "only for one" in result.detail
    assert (result.checked.raised_in, result.finding.first) == ("layers.1", None)
    assert result.checked.at[-1].startswith("own_models.py:") and "raise" in result.checked.at[-1]


@pytest.mark.parametrize(
    ("model", "strategy", "named"),
    [
        ("unused", "ddp", "ddp_unused_vision_tower"),
        ("alternating", "ddp", "ddp_unused_vision_tower"),
        ("alternating", "zero2", "weight_decay_without_gradient"),
        ("alternating", "fsdp2", ""),
        ("twice_backward", "zero2", "zero12_manual_ga_keeps_last_microbatch"),
        ("by_rank", "ddp", "ddp_unused_vision_tower"),
        ("by_rank", "zero2", None),
        ("temperature", "fsdp2", "zero_broadcast_of_scalar_weights"),
        ("over_ranks", "ddp", "global_count_without_world_size"),
        pytest.param("over_ranks", "zero2", "global_count_without_world_size", marks=pytest.mark.nightly),
        ("over_ranks", "fsdp2", "global_count_without_world_size"),
        ("over_ranks_and_back", "ddp", ""),
        ("a_third_of_it", "ddp", None),
        ("around_the_wrapper", "ddp", "ddp_forward_bypasses_wrapper"),
        ("around_the_wrapper", "zero2", ""),
        ("unfrozen_late", "ddp", "ddp_unfreeze_after_wrap"),
        ("unfrozen_late", "zero3", "zero_unfreeze_after_initialize"),
        ("unfrozen_late", "zero0", ""),
        ("never_frozen", "ddp", ""),
    ],
)
def test_a_cause_is_named_and_no_other(run, model, strategy, named):
    """Breaks when a silent fault has no name, what a model is like decides against an engine's words, or a healthy loop
    is called wrong.

    An empty name says that it trains, and None that nothing known has it.
    """
    result = run(model, strategy)
    match, _ = known.recognised(result, [result])
    assert (result.outcome == "trains") == (named == ""), result.detail
    assert (match and match.failure.name) == (named or None)


def test_a_config_with_an_adapter_is_checked(run):
    result = run(QWEN2, "zero3", "non-reentrant", lora="r=4,target=all-linear")
    assert result.outcome == "trains", result.detail
    facts = result.checked.facts
    assert facts.model == "PeftModel" and 0 < facts.trainable < facts.parameters
    with pytest.raises(TargetFailed, match="PEFT refuses the adapter: Target modules"):
        run(QWEN2, lora="target=nothing_of_the_sort")


@pytest.mark.parametrize("strategy", ["ddp", "ddp-find-unused", "fsdp2"])
def test_blocks_that_the_models_own_checkpoints_cut_off_are_named(run, strategy):
    """Breaks when a model that checkpoints by hand behind a frozen embedding is told to train as it should: it does as
    in one process, where half of it never moves, and DDP that looks for unused parameters only says nothing."""
    result = run("cut_off", strategy)
    assert result.checked.facts.frozen_input == ("blocks.0", "blocks.1")
    assert result.outcome == ("raises" if strategy == "ddp" else "trains"), result.detail
    [group] = findings.groups([result])
    assert (group.failure.name, group.either) == ("reentrant_frozen_embeddings_adapters", ())


@pytest.mark.parametrize(
    ("what", "answer", "line"),
    [
        ("waits", r"hangs: .*waits \(own_models.py", ""),
        ("no_graph", "the loss has no graph", ""),
        ("exits", r"exits \(code 3\)", "sys.exit(3)"),
        ("dies", "left with exit code 5$", ""),
        ("fails", "AttributeError: 'NoneType' object has no attribute 'shape'", "return value.shape"),
        ("unseeded", "random numbers that the model draws", ""),
        ("unguarded", r"torch\.distributed\.is_initialized", "all_reduce(out.detach().clone())"),
    ],
)
def test_a_mistake_is_one_message_with_the_users_own_traceback(run, what, answer, line):
    """Breaks when somebody has to read our frames to see what is wrong in theirs."""
    with pytest.raises(TargetFailed, match=answer) as failed:
        run(what)
    assert "\n" not in str(failed.value)
    assert (line in failed.value.traceback) if line else not failed.value.traceback
    assert f"{ROOT}/faultline" not in failed.value.traceback


# Models as people have them: no answer that nothing was run for, and no advice that makes things worse.


@pytest.fixture
def promised(run):
    """The result of a model of wild_models.py, or of another file, in one cell, held against what else there is."""

    def promised(model, strategy, **axes):
        return run(model if ":" in model else f"wild_models.py:{model}", strategy, of=variations, **axes)

    return promised


def test_what_needs_a_gpu_is_said(promised):
    result = promised("synchronised", "ddp")
    assert result.outcome == "impossible" and "--device cuda" in result.detail


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_no_advice_leads_around_a_wrapper_that_no_forward_pass_goes_through(promised, strategy):
    """Breaks when an actor-critic without `forward` is told to ask the model behind DDP, which then reduces nothing."""
    result = promised("actor_critic", strategy)
    if result.outcome == "trains":  # DeepSpeed's engine has its model's attributes
        return
    lines = " ".join(next_steps.next_steps(findings.groups([result])[0], [result]))
    assert "getattr" not in lines and "`forward` do what `get_action_and_value` does" in lines
    assert "(not tried on your model)" in lines


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_container_that_can_not_be_changed_is_left_as_it_is(promised, strategy):
    """Breaks when a model with a frozen config can't be checked, or a counter beside it isn't put back."""
    result = promised("configured", strategy)
    assert result.outcome == "trains", result.detail


def test_all_causes_of_a_cell_are_told_the_gravest_first(promised, run):
    """Breaks when weights that are wrong hide under buffers that differ between ranks."""
    wrong, alone = promised("critic", "zero2"), run("stateful.py:batch_norm", "zero2")
    assert findings.causes(wrong)[0] in ("differs", "unmoved") and findings.causes(wrong)[1] == "buffers-apart"
    assert "differs by" in wrong.detail.partition("buffers differ")[0]
    assert findings.causes(alone) == ("buffers-apart",), "the near miss has one cause"
    assert [[form.results[0] for form in group.forms] for group in findings.groups([alone, wrong])] == [
        [wrong],
        [alone],
    ]


@pytest.mark.parametrize(
    ("model", "agreed", "said"),
    [
        ("configured", ("shares", "rows"), "every gradient and weight agrees."),
        (
            "own_models.py:negatives_of_the_batch",
            ("shares",),
            "the mean of the ranks' losses in one process, and not with one process on",
        ),
        ("bank", ("shares",), "and not with one process on all rows."),
    ],
)
def test_an_answer_says_which_process_it_agrees_with(promised, model, agreed, said):
    """Breaks when a contrastive loss, or what only rank 0's rows leave in a buffer, is called right without saying of
    what kind of a single process that is true."""
    result = promised(model, "ddp")
    assert result.outcome == "trains" and variations.agreed_references(result) == agreed, result.detail
    assert said in view.verdict([result])


def test_towers_with_half_of_their_gradient_are_told_with_the_factor(promised):
    """Breaks when features that were gathered without their gradient have no cause."""
    result = promised("of_gathered_rows", "ddp")
    words = "every gradient of those that are off is 0.5 times what it should be (1 / world size)"
    assert words in variations.other_run(result, variations.ROWS).detail and result.outcome == "diverges"
    both = [result, promised("of_gathered_rows", "fsdp2")]
    [group] = findings.groups(both)
    assert not group.match, "no engine is to blame"
    assert not any("all_gather" in line for line in next_steps.next_steps(group, both)), "that stands above already"
    shown = printed(lambda console: view.show(console, "clip.py:of_gathered_rows", [], [result]))
    assert "all_gather in the loss (wild_models.py:117)" in shown
    headline = shown.partition("diverges (differs)  ddp\n  ")[2].partition("\n")[0]
    assert headline.startswith("agrees neither with the mean") and headline.endswith(
        f"{words}, against one process on all rows"
    )


def test_what_depends_on_the_units_of_fsdp_is_marked(promised):
    """Breaks when a cell that trains, or fails, only with the units that check has chosen is told without them."""
    result, healthy = promised("around", "fsdp2"), promised("configured", "fsdp2")
    other = variations.other_run(result, variations.UNITS)
    assert result.outcome == "trains" and other.outcome == "raises", (result, other)
    assert variations.other_run(healthy, variations.UNITS) is None
    [line] = view.other_units([result, healthy])
    assert "fsdp2: trains here, and raises with the root as FSDP's only unit" in line
    assert "other units of FSDP" in view.verdict([result, healthy])


def test_units_are_those_that_are_asked_for(promised):
    """Breaks when others are taken, or such as a model hasn't."""
    for units, outcome, other in (("root", "raises", "blocks"), ("Linear", "trains", "root only")):
        result = promised("around", "fsdp2", units=units)
        assert (result.outcome, result.checked.beside[0].what) == (outcome, other), result.detail
    with pytest.raises(TargetFailed, match="no module of the model is a Blok; there are Linear"):
        promised("around", "fsdp2", units="Blok")


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_random_draws_are_alike_and_named_with_their_lines(promised, strategy):
    """Breaks when a mixture that draws its second expert is called wrong under every engine, and no word is said of
    random numbers."""
    result = promised("drawing", strategy)
    assert result.outcome == "trains", result.detail
    lines = WILD.read_text().splitlines()
    drawn = [lines[int(place.partition(":")[2].split()[0]) - 1] for place in result.checked.facts.draws]
    for word, line in zip(("multinomial", "random.random()", "generator="), drawn, strict=True):
        assert word in line
    assert not promised("configured", strategy).checked.facts.draws
    assert "which draws other random numbers" in view.verdict([result])
    assert any("other random numbers are drawn" in line for line in model_facts.of_model(result.checked.facts))


def test_a_forward_pass_in_a_hook_is_no_checkpoint_and_its_error_is_known(promised):
    """Breaks when GradCache is said to checkpoint, or when check calls an error unknown that diagnose names."""
    results = [promised("grad_cache", "zero2"), promised("grad_cache", "zero3"), promised("grad_cache", "ddp")]
    assert results[0].checked.facts.checkpointing == "off" and results[2].outcome == "trains"
    [group] = findings.groups(results)
    assert group.failure.name == "zero_double_reduction" and "second backward pass" in group.match.mechanism
    assert not any("checkpointing" in fate.claim.swap for fate in group.fates), "nothing is checkpointed here"


# Models that have the mechanism of a known failure, or that change themselves.


@pytest.fixture
def under(run):
    """The results of a model of mechanisms.py, or of another file, under strategies."""

    def under(model, *names, **axes):
        return [run(model if ":" in model else f"mechanisms.py:{model}", name, **axes) for name in names]

    return under


@pytest.mark.parametrize(
    ("model", "strategies", "failure"),
    [
        ("gradient_penalty", ("ddp-static-graph", "zero2-small", "zero3", "fsdp1-full", "fsdp2"), "double_backward"),
        ("weight_penalty", ("zero3", "fsdp2"), "penalty_outside"),
        ("stateful.py:batch_norm", ("zero2", "fsdp2"), "buffers_never"),
        ("method", ("fsdp1-full", "fsdp2"), "fsdp2_method_or_child"),
        ("residual", ("zero3",), "inplace_on_module_input"),
        ("adversarial", ("zero2", "zero3"), "input_gradient_through_engine"),
    ],
)
def test_a_mechanism_is_known_in_whatever_words_it_ends(under, model, strategies, failure):
    """Breaks when somebody's gradient penalty gets no name, because its layers make an error with other words."""
    results = under(model, *strategies)
    assert not any(map(known.fine, results)), [result.outcome for result in results]
    [group] = findings.groups(results)
    assert group.failure.name.startswith(failure) and group.match.sure
    assert any(each.word == "verified" for each in judge_remedies(group, results))


@pytest.mark.parametrize("model", ["saliency", "penalty_inside"])
def test_what_is_like_a_mechanism_is_not_taken_for_it(under, model):
    """Breaks when a gradient of inputs, or a penalty where a weight is whole, is taken for the failure."""
    results = under(model, "ddp", "fsdp2")
    facts = findings.facts_of(results)
    assert not facts.double_backward and facts.read_outside == facts.without_root == ()
    assert all(map(known.fine, results)), [result.detail for result in results]


def test_what_each_rank_keeps_of_its_rows_is_named(under):
    """Breaks when a model that keeps something of its first rows differs everywhere, and nobody says why."""
    results = under("cached", "ddp", "zero2")
    [group] = findings.groups(results)
    assert findings.facts_of(results).left_unlike == ("mean",), "a counter is the same on every rank"
    assert any("rows leave another value in mean: ranks keep" in line for line in next_steps.next_steps(group, results))


def test_what_begins_anew_after_resuming_is_named(under):
    """Breaks when somebody whose model counts its steps has to look for what no checkpoint holds."""
    results = under("warming", "ddp", "fsdp2", life="resumed")
    [group] = findings.groups(results)
    assert findings.facts_of(results).not_saved == ("calls", "seen")
    holds = "a checkpoint holds no attribute of a module, and no buffer with `persistent=False`"
    assert f"{holds}, so calls, seen begin anew" in next_steps.next_steps(group, results)


def test_a_weight_that_the_model_moves_itself_is_no_frozen_one(under):
    """Breaks when a target network under ZeRO-3 is sent to a failure of parameters that are unfrozen."""
    results = under("target", "ddp", "zero3")
    [group] = findings.groups(results)
    lines = next_steps.next_steps(group, results)
    assert "the model moves them by itself, without gradients: a rank that has a shard moves a copy, or a part" in lines
    assert not any("unfreeze" in line for line in lines)
    assert "the model moves them by itself" in " ".join(model_facts.of_model(findings.facts_of(results)))


def test_what_runs_on_one_rank_is_named(under):
    """Breaks when a branch by the rank's number, which one process never takes, is no part of the answer."""
    results = under("on_one_rank", "ddp-find-unused")
    assert model_facts.by_rank(results) == ["extra: run on some ranks only, whatever their rows are"]
    assert model_facts.by_rank(under("gradient_penalty", "ddp")) == []


def test_what_ranks_use_by_turns_is_unequal(under):
    """Breaks when ranks of which each uses other layers in a step pass for alike, as all use all in the end."""
    [result] = under("by_turns", "ddp")
    assert result.checked.facts.unequal == ("extra",)
    assert known.recognised(result)[0].failure.name == "ddp_unused_vision_tower"


def test_remedies_of_another_engine_are_no_answer(run):
    """Breaks when somebody under ZeRO-3 reads what helped under FSDP."""
    results = [run("parameters.py:mixed", "zero3")]
    [group] = findings.groups(results)
    assert group.failure.name == "fsdp2_mixed_original_dtype"
    assert judge_remedies(group, results) == []


# What a model keeps is held against one process and between ranks.

STATEFUL = ROOT / "tests" / "support" / "stateful.py"
KEPT = [
    # What moves alike on every rank: the reference moves it once, and a cache counts for nothing.
    *((model, name, "", "") for model in ("counter", "average", "spectral", "group_norm") for name in ENGINES),
    # What DDP broadcasts: other ranks get rank 0's buffers with the next forward pass, or between two.
    *((model, "ddp", "", "") for model in ("batch_norm", "statistic", "two_passes")),
    ("average", "ddp", "LAST_BIT", ""),  # overwritten before anything is computed with it
    # A frozen parameter, where parameters are whole.
    *(("frozen_average", name, "", "") for name in ("ddp", "zero2")),
]
FOUND = [
    ("counter", "zero2", "ONE_RANK_COUNTS_ON", "buffers-apart"),
    ("counter", "fsdp2", "ONE_RANK_COUNTS_ON", "buffers-apart"),
    ("average", "zero3", "LAST_BIT", "buffers-apart"),
    ("statistic", "ddp", "NOT_BROADCAST", "buffers-apart"),
    ("batch_norm", "ddp", "TWICE", "buffers-differ"),
    ("batch_norm", "ddp", "FORWARD_AGAIN", "buffers-differ"),
    ("two_passes", "ddp", "TWICE", "buffers-differ"),
    ("two_passes", "ddp", "NOT_BROADCAST", "buffers-apart"),
    ("frozen_average", "ddp", "FROZEN_MOVES", "differs"),
    ("frozen_average", "zero2", "FROZEN_MOVES", "differs"),
]
# Each rank keeps buffers of its own, which no engine but DDP synchronises.
APART = [(*each, name) for each in (("batch_norm", "running_mean"), ("statistic", "mean")) for name in ENGINES[1:]]


@pytest.mark.parametrize(("model", "name", "strategy"), sampled(APART, 3))
def test_buffers_that_no_engine_synchronises_are_named(run, model, name, strategy):
    """Breaks when ranks whose running statistics differ are called right; a checkpoint has those of one."""
    result = run(f"stateful.py:{model}", strategy)
    assert (result.outcome, result.signature) == ("diverges", "buffers-apart"), result.detail
    assert f"between.{name}" in result.finding.apart
    assert "between.constant" not in result.finding.apart


@pytest.mark.parametrize(
    ("model", "strategy", "fault", "signature"),
    [*sampled(KEPT, 3, lambda model, _, fault, __: (model, fault)), *FOUND],
)
def test_what_is_kept_rightly_trains_and_a_fault_of_it_is_found(run, model, strategy, fault, signature):
    """Breaks when the reference moves a model's state once for each rank; when ranks are held against what their own
    rows left, of which a broadcast left nothing; or when a buffer or a frozen parameter is left out of what is
    compared, on any rank."""
    result = run(f"stateful.py:{model}", strategy, inject=fault and f"{STATEFUL}:{fault}")
    wanted = ("diverges", signature) if signature else ("trains", "")
    assert (result.outcome, result.signature) == wanted, result.detail
