"""A user's model in a rank: configs made small, batches made up and shared, and what is seen of its modules."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BatchEncoding

from faultline.base.errors import Impossible
from faultline.ranks import compare, observer, parameters, state
from faultline.ranks.facts import not_in_one_order
from faultline.ranks.own_model import batch as own_model_batch
from faultline.ranks.own_model import fsdp_units, loss_state, rows, shrink, target
from faultline.strategies.shared import units
from tests.support import own_models

# As they lie in the folders of the models' makers, without what makes no difference here.
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "attention_dropout": 0.1,
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 896, "vision_use_head": False},
}
QWEN2_VL = {
    **QWEN2,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "image_token_id": 151655,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "video_token_id": 151656,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 896, "num_heads": 16, "patch_size": 14},
}


def default(kind, name, **values):
    """A config of which only this differs from the defaults of transformers."""
    return {"architectures": [name], "model_type": kind, **values}


QWEN2_AUDIO = default(
    "qwen2_audio",
    "Qwen2AudioForConditionalGeneration",
    audio_config={"model_type": "qwen2_audio_encoder", "d_model": 1280},
    text_config={"model_type": "qwen2", "hidden_size": 4096, "num_hidden_layers": 32},
)
CONFIGS = [
    *(QWEN2, GEMMA3, QWEN2_VL, QWEN2_AUDIO),
    default("mixtral", "MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=False),
    default("deepseek_v3", "DeepseekV3ForCausalLM", n_routed_experts=256, n_group=8, first_k_dense_replace=3),
    default("whisper", "WhisperForConditionalGeneration", d_model=512),
    default("bert", "BertForSequenceClassification", hidden_dropout_prob=0.1),
    default("t5", "T5ForConditionalGeneration", d_model=512, decoder_start_token_id=0),
    default("vit", "ViTForImageClassification"),
]
WITH_EYES = [
    default("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    default("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    default("clip", "CLIPModel"),
    default("siglip", "SiglipModel"),
    default("dinov2", "Dinov2ForImageClassification"),
    default("resnet", "ResNetForImageClassification"),
]
BLIND = [
    default("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    default("falcon_h1", "FalconH1ForCausalLM"),
    default("gpt_neo", "GPTNeoForCausalLM"),
    default("speech_to_text", "Speech2TextForConditionalGeneration"),
    default("wav2vec2", "Wav2Vec2ForCTC"),
    default("moonshine", "MoonshineForConditionalGeneration"),
]


def made(tmp_path, config):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    return target.tiny(file)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_a_config_gives_a_small_model_of_its_class_that_learns(tmp_path, config):
    """Every part takes part: layers, experts, towers; else a check would say nothing of them."""
    model = made(tmp_path, config)
    assert type(model).__name__ == config["architectures"][0]
    assert sum(parameter.numel() for parameter in model.parameters()) < 400_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    batch, without = own_model_batch.of(model)
    assert not without, "a part of the model was left out of the batch"
    assert config is not GEMMA3 or batch["pixel_values"].shape == (4, 3, shrink.IMAGE, shrink.IMAGE)
    assert config is not QWEN2_AUDIO or batch["input_features"].ndim == 3
    own_model_batch.loss(model, batch).backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    assert not idle, "parameters of a whole model have no gradient"
    tied = config.get("tie_word_embeddings", config["model_type"] in ("gemma3", "whisper", "t5"))
    assert bool(parameters.tied(model)) == tied, "tying is part of a model's structure"


@pytest.mark.parametrize("config", [*WITH_EYES, *BLIND], ids=lambda config: config["model_type"])
def test_a_default_config_gets_a_whole_batch(tmp_path, config):
    """Breaks when a type of model that people use a lot can only be checked with a batch of their own."""
    batch, without = own_model_batch.of(made(tmp_path, config))
    assert not without, "a part of the model was left out of the batch"
    assert ("pixel_values" in batch) == (config in WITH_EYES)


def test_structure_is_kept():
    small = shrink.shrunk(QWEN2)
    assert small["num_attention_heads"] // small["num_key_value_heads"] > 1, "grouped queries stay grouped"
    assert small["tie_word_embeddings"] and small["bos_token_id"] != small["eos_token_id"]
    assert small["attention_dropout"] == 0.0 and small["use_cache"] is False


KINDS = st.lists(st.sampled_from(["full_attention", "sliding_attention", "linear_attention"]), min_size=2, max_size=40)


@given(KINDS)
def test_every_kind_of_layer_is_kept_in_its_order(kinds):
    """A layer of each kind is enough, and all are needed: a fault may be in one kind alone."""
    small = shrink.shrunk({"layer_types": kinds, "num_hidden_layers": len(kinds)})
    remaining = small["layer_types"]
    assert set(remaining) == set(kinds) and small["num_hidden_layers"] == len(remaining) <= max(2, len(set(kinds)))
    assert list(dict.fromkeys(remaining)) == list(dict.fromkeys(kinds))


@given(
    st.dictionaries(
        st.sampled_from(["bos_token_id", "eos_token_id", "pad_token_id", "image_token_index"]), st.integers(0, 300_000)
    )
)
def test_special_tokens_stay_apart_and_fit_the_vocabulary(ids):
    small = shrink.shrunk(ids)
    assert all(number < 32 for number in small.values())
    assert all((small[a] == small[b]) == (ids[a] == ids[b]) for a in ids for b in ids)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (QWEN2 | {"model_type": "my_own"}, "has no 'my_own'"),
        (QWEN2 | {"architectures": ["Mine"]}, "no class 'Mine'"),
        (
            default("dots1", "Dots1ForCausalLM"),
            r"leaves out what Dots1ForCausalLM needs \(TypeError: .*\); it has no value for .*n_routed_experts, num",
        ),
        (
            default("deepseek_v2", "DeepseekV2ForCausalLM"),
            r"has no value for n_group, topk_group, num_experts_per_tok\. Tried: text",
        ),
    ],
)
def test_a_config_that_lacks_something_is_one_clear_line(tmp_path, config, words):
    """Breaks when a default of transformers that builds no model ends in a traceback, or names no key."""
    with pytest.raises(target.Refused, match=words):
        own_model_batch.of(made(tmp_path, config))


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_shares_are_the_whole_batch(times, world):
    """A row that no rank gets, or two get, makes every comparison wrong."""
    batch = {"x": torch.arange(4 * times), "rest": [torch.arange(4), "text"], "n": 3}
    parts = [rows.share(batch, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([part["x"] for part in parts]), batch["x"])
    assert torch.equal(torch.cat([part["rest"][0] for part in parts]), batch["rest"][0])
    assert all(part["n"] == 3 and part["rest"][1] == "text" for part in parts)


class Named(NamedTuple):
    x: torch.Tensor
    kind: str


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    kind: str


@pytest.mark.parametrize("kind", [Named, Record, lambda x, kind: BatchEncoding({"x": x})])
def test_a_share_is_of_the_batch_own_kind(kind):
    """A loss asks its batch for what it gave it."""
    part = rows.share(kind(torch.arange(4), "text"), 1, 2)
    assert type(part) is type(kind(torch.arange(4), "text")) and torch.equal(part.x, torch.tensor([2, 3]))


ROWS = {"x": torch.zeros(4, 5)}
shared = partial(rows.share, rank=0, world_size=2)


@pytest.mark.parametrize(
    ("take", "given", "words"),
    [
        # Samples would be cut in two, and each rank have a part of all.
        (shared, [{"x": torch.zeros(8), "y": 1}] * 4, "a list of 4 samples"),
        (shared, [(torch.zeros(8), torch.tensor(1))] * 4, "a list of 4 samples"),
        (shared, {"text": ["a", "b", "c", "d"], "y": torch.arange(4)}, "a list of 4 texts or numbers"),
        (shared, {"lengths": [3, 2, 5, 1], **ROWS}, "a list of 4 texts or numbers"),
        (shared, {"x": [[0.0] * 8] * 4, "y": [0, 1, 2, 3]}, "without a tensor"),
        (shared, {"x": torch.zeros(3, 8)}, r"\[3, 8\], which 2 ranks can't share"),
        (shared, {"adjacency": torch.eye(4).to_sparse(), **ROWS}, r"a sparse tensor \[4, 4\], which ranks can't share"),
        (rows.scalar, None, "returns nothing"),
        (rows.scalar, (torch.zeros(()), 1), "returns a tuple"),
        (rows.scalar, 1.5, "returns a float"),
        (rows.scalar, torch.zeros(2), r"has the shape \[2\]"),
        (target.parts, nn.Linear(1, 1), r"return \(model, loss, batch\)"),
        (target.parts, 7, r"the function returns an int: return a model, or \(model, loss, batch\)"),
        (target.parts, (nn.Linear(1, 1), 0.5, ROWS), "the loss is a float: return a function"),
        (target.check, nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), r"0\.weight, 0\.bias: lazy"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_plain_words(take, given, words):
    """Breaks when somebody reads torch's words for what they gave, or is told what nothing here says."""
    with pytest.raises(target.Refused, match=words):
        take(given)


@pytest.mark.parametrize("batch", [{"names": ["a", "b"], **ROWS}, [ROWS, ROWS], [torch.zeros(4, 5), torch.arange(4)]])
def test_a_batch_of_columns_is_shared(batch):
    assert shared(batch)


def test_a_step_that_says_nothing_is_refused():
    """Breaks when ranks are held against a step without a loss or with equal rows; or when DPO's first step, or a
    classifier with a head of zeros, whose losses are equal for rows that differ, can't be checked."""

    def share(loss, x):
        return rows.Share(torch.tensor(loss, requires_grad=True), {"x": torch.tensor(x)})

    rows.trainable([share(1.0, 1.0), share(1.0, 2.0)])
    assert rows.same_batch(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    with pytest.raises(target.Refused, match="give rows that differ"):
        rows.trainable([share(1.0, 1.0), share(1.0, 1.0)])
    with pytest.raises(target.Refused, match="the loss is nan in one process already"):
        rows.trainable([share(1.0, 1.0), share(float("nan"), 2.0)])


def test_weights_in_a_plain_list_are_named():
    """Breaks when layers that nothing trains are passed over, or a list that hides frozen weights is called a fault."""
    model = nn.Module()
    model.blocks, model.heads = [nn.Linear(2, 2)], {"a": [nn.Linear(2, 2)], "b": 1}
    model.scales = (nn.Parameter(torch.zeros(1)),)
    model.layers, model.again = nn.ModuleList([nn.Linear(2, 2)]), []
    model.again.append(model.layers[0])
    model.layers[0].teacher = [nn.Linear(2, 2).requires_grad_(False)]
    model.layers[0].hidden = [nn.Linear(2, 2)]
    model.recurrent = nn.GRU(2, 2)
    del model.recurrent._parameters["weight_hh_l0"]  # as a dropout of weights puts another tensor in its place
    model.alphas, model.layers[0].scaled = torch.zeros(1, requires_grad=True), model.layers[0].weight * 2
    model.register_buffer("mean", torch.zeros(1, requires_grad=True))
    assert loss_state.unregistered(model) == ["blocks", "heads", "scales", "alphas", "layers.0.hidden"]


def test_what_only_peft_has_around_a_model_is_no_unit():
    """Breaks when FSDP gathers nothing, as PEFT calls the model inside, and a healthy adapter is called broken."""
    model = target.ready(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {"r": 2, "target_modules": "all-linear"})
    assert model._no_split_modules == ["Linear"]
    assert {type(unit).__module__.partition(".")[0] for unit in units(model)} == {"peft", "torch"}


def units_of(model):
    fsdp_units.keep_together(model)
    fsdp_units.name_blocks(model)
    return units(model)


def test_what_shares_a_parameter_is_no_unit():
    """FSDP wants shared parameters in one unit: breaks when a tied head of the blocks' class gets one of its own; when
    the whole model, which names no blocks, is one, which proves nothing; or when a block is left to the root though
    nothing outside of it has its parameters."""
    model = own_models.TiedBlocks()
    assert units_of(model) == [*model.layers] and model._no_split_modules == ["Linear"]
    model = own_models.Model()
    for layer in model.layers:
        layer.append(nn.Linear(8, 8))
        layer[2].weight = layer[0].weight
    model.again = model.layers[0]  # one block by two names
    assert units_of(model) == [*model.layers]
    model = own_models.Repeated()
    assert units_of(model) == [model.head], "blocks that all share leave the other parts"
    del model.head
    with pytest.raises(Impossible, match="no part of the model"):
        units_of(model)


def test_what_a_model_lacks_is_impossible_and_processes_of_its_own_are_refused():
    with pytest.raises(Impossible, match="no gradient_checkpointing_enable"):
        target.checkpoint(nn.Linear(1, 1), "reentrant")
    with target.forbid_processes(), pytest.raises(target.Refused, match="processes of its own"):
        torch.multiprocessing.get_context("spawn").Process(target=print).start()


def test_weights_that_any_generator_draws_are_alike(tmp_path):
    """Breaks when a layer that numpy initialises is said to differ, as each rank server draws another."""
    (file := tmp_path / "model.py").write_text(
        "import random, numpy\ndef build():\n    return random.random(), numpy.random.rand()"
    )
    assert target.call(file, "build", ()) == target.call(file, "build", ())


class Twice(nn.Module):
    """Runs one layer twice, has one that never runs and one that runs for positive rows only; tied to its head. Its
    `parameters` takes nothing, as a meta learner's."""

    def __init__(self):
        super().__init__()
        self.layer, self.idle, self.some, self.head = (nn.Linear(2, 2) for _ in range(4))
        self.head.weight = self.layer.weight

    def parameters(self):
        return [*super().parameters()]

    def forward(self, x):
        x = self.layer(self.layer(x))
        return self.head(self.some(x) if (x > 0).all() else x)


def seen(rows):
    model = Twice()
    with torch.no_grad():
        model.layer.weight.copy_(torch.eye(2))
        model.layer.bias.zero_()
    watched = observer.Observer(model)
    with watched.step():
        for watched.share, row in enumerate(rows):
            model(row).sum().backward()
    return model, watched


@given(st.permutations("abcd"), st.permutations("abcd"), st.sets(st.sampled_from("abcd")))
def test_modules_in_unlike_order_are_those_that_all_run_and_in_another_place(one, other, left_out):
    """Breaks when ranks that use modules in the same order are warned of ZeRO-2, or others are not."""
    fewer = [name for name in other if name not in left_out]
    differs = not_in_one_order([one, fewer])
    assert bool(differs) == ([name for name in one if name in fewer] != fewer)
    assert differs <= {*fewer} and not_in_one_order([one, one]) == not_in_one_order([]) == set()


def test_what_modules_do_is_seen():
    _, watched = seen([torch.ones(1, 2), -torch.ones(1, 2)])
    facts = watched.facts()
    assert facts.several_calls == ("layer",) and facts.unequal == ("some",)
    assert facts.no_gradient == ("idle.weight", "idle.bias")
    assert facts.tied == (("layer.weight", "head.weight"),) and facts.apart == ()
    assert [name for name in watched.outputs if name.startswith("0")] == [
        *("0 layer#1", "0 layer#2", "0 some#1", "0 head#1", "0 #1")
    ]
    model, watched = seen([torch.ones(1, 2)] * 2)
    assert watched.facts().unequal == (), "ranks that use the same"
    assert watched.facts().unlike_order == (), "in the same order"
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    assert watched.facts().apart == (("layer.weight", "head.weight"),), "training one alone changes the model"


@pytest.mark.parametrize(("call", "outside"), [(lambda b, x: b(x), ()), (lambda b, x: b[1](b[0](x)), ("0", "1"))])
def test_what_blocks_share_is_part_of_each(call, outside):
    """Breaks when an activation that blocks share is said to run where its block doesn't; or one without weights, as
    a loss is, where the model's own forward pass doesn't."""
    shared = nn.PReLU()
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), shared, nn.Tanh()), nn.Sequential(nn.Linear(2, 2), shared))
    model._no_split_modules = ["Sequential"]
    watched = observer.Observer(model, alone=True)
    with watched.step():
        call(model[1], call(model[0], torch.ones(1, 2))).sum().backward()
    assert watched.facts().without_unit == outside
    assert "0.0" in watched.facts().without_root and "0.2" not in watched.facts().without_root


@pytest.mark.parametrize(
    ("around", "again"),
    [
        (lambda body, x: x + body(x), ("body",)),
        (lambda body, x: body(x) + x, ("body",)),
        (lambda body, x: x + body(x.clone()), ()),
        (lambda body, x: body(x), ()),
        (lambda body, x: body[1](body[0](x)) + 1, ()),  # what it gives back is read
    ],
)
def test_an_input_that_is_written_and_read_again_is_seen(around, again):
    """Breaks when a skip connection around `ReLU(inplace=True)` gets no name, or each such activation gets one."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Module(), nn.ReLU(inplace=True), nn.Linear(2, 1))
    model[1].body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))
    model[1].forward = lambda x: around(model[1].body, x)
    watched = observer.Observer(model, alone=True)
    with watched.step():
        model(torch.ones(1, 2)).sum().backward()
    assert watched.facts().written_inputs == tuple(f"1.{name}" for name in again)


@pytest.mark.parametrize("mended", [False, True])
def test_frozen_inputs_of_checkpointed_layers_are_seen(tmp_path, mended):
    """With an adapter on a frozen model, reentrant checkpointing has no graph to run backward on."""
    base = made(tmp_path, QWEN2)
    if mended:
        base.enable_input_require_grads()
    model = target.add_lora(base, {"r": 2, "target_modules": "all-linear"})
    watched = observer.Observer(model)
    with watched.step():
        own_model_batch.loss(model, own_model_batch.of(model)[0]).backward()
    frozen = watched.facts().frozen_input
    assert frozen == (() if mended else ("base_model.model.model.layers.0",))


def test_an_output_that_differs_is_bad_and_rounding_is_not():
    """The first module of a forward pass that is off is where a fault is; one unit in the last place is none."""
    right = {"a": torch.ones(3), "b": torch.ones(3)}
    noisy = {name: tensor * (1 + 2.0**-23) for name, tensor in right.items()}

    def run(outputs):
        return compare.Trace({"w": torch.ones(1)}, [{"w": torch.ones(1)}], [{"w": torch.zeros(1)}], [outputs])

    def bad(outputs):
        return compare.compare(run(outputs), run(right), run(noisy), "fp32")[0].outputs

    assert bad(noisy) == {}
    assert bad(right | {"b": torch.full((3,), 2.0)}) == {"b": 1.0}
    assert bad({"b": torch.ones(2)}) == {"b": float("inf")}, "another shape is another output"
    assert list(bad({"a": torch.full((3,), float("nan"))})) == ["a"]
    one = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert compare.distance(one, one) == 0.0 == compare.distance({}, {})
    assert compare.distance(one, {"a": -torch.ones(2)}) == pytest.approx(2.0)


class Careful(nn.Module):
    """Takes care of its part's first error."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x, again):
        with contextlib.suppress(RuntimeError):
            self.part(x)
        return self.part(x) if again else x


def test_the_module_that_an_error_ended_is_seen():
    """Breaks when an error is placed in a module that had ended, or whose error the model took care of."""
    model = Careful()
    watched = observer.Observer(model)
    with watched.step():
        model(torch.ones(1, 2), False)
        assert watched.facts().inside is None
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 2), True)
    assert watched.facts().inside == "part"


def test_parameters_that_share_elements_are_seen_and_neighbours_are_not():
    """Breaks when slices of one tensor, of which engines make copies, come with no reason, or all views do."""
    whole, other = torch.randn(6, 4), torch.randn(6, 4)
    slices = {"first": whole[:4], "second": whole[2:], "left": other[:, :2], "right": other[:, 2:]}
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(part) for name, part in slices.items()})
    model["tied"] = model["first"]
    model["none"] = torch.nn.Parameter(torch.empty(0, 4))
    assert parameters.overlapping(model) == ["first", "second"]


def test_what_a_loss_keeps_is_put_back():
    """Breaks when a counter in a loss, or in a variable of its function, moves once for each rank in one process."""
    model, inner, calls, number = torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1), [], 0
    teacher = torch.nn.Linear(1, 1).requires_grad_(False)
    weight = teacher.weight.clone()

    class Loss:
        def __init__(self):
            self.steps = 0

        def __call__(self, model, rows):
            nonlocal number
            self.steps, number = self.steps + 1, number + 1
            calls.append(inner(rows))
            teacher.weight.add_(1.0)
            return model(rows).mean()

    made = Loss()
    assert made in loss_state.holders(partial(made), model)
    seen = loss_state.holders(made.__call__, model)
    assert inner in seen and model not in seen and not any(isinstance(each, torch.Tensor) for each in seen)
    before = state.Snapshot(model, beside=seen)
    made(model, torch.ones(2, 1))
    assert (made.steps, number, len(calls), int(inner.num_batches_tracked)) == (1, 1, 1, 1)
    before.restore()
    assert (made.steps, number, len(calls), int(inner.num_batches_tracked)) == (0, 0, 0, 0)
    assert torch.equal(teacher.weight, weight), "a teacher that the loss moves"
    assert loss_state.parameters(seen, model) == ["weight", "bias"]


def test_micro_batches_of_all_ranks_are_those_of_one_process():
    """Breaks when a rank that accumulates trains on other rows than its reference, or on rows of another step."""
    batch, each = torch.arange(8), 2
    for world in (1, 2):
        numbers = range(2 * world * each)
        alone = [rows.of(batch, world, each, number, 0, 1) for number in numbers]
        assert [one.last for one in alone] == [number % (world * each) == world * each - 1 for number in numbers]
        for rank in range(world) if world > 1 else ():
            for number in range(2 * each):
                step, nth = divmod(number, each)
                one, its = rows.of(batch, world, each, number, rank, world), alone[(step * world + rank) * each + nth]
                assert (one.place, one.step) == (its.place, its.step) and torch.equal(one.batch, its.batch)
        assert torch.equal(torch.cat([one.batch for one in alone[: world * each]]), batch)


@pytest.mark.parametrize(("value", "apart"), [(1.0, 0.5), (1e38, 0.0)])
def test_how_far_all_rows_are_from_the_ranks_is_a_number(value, apart):
    """Breaks when weights that training drove out of range make a result that can't be read again."""
    watching = SimpleNamespace(drew=False, share=0, generators=(), known=SimpleNamespace(cast=()))

    def give(number, rank, world_size):
        return rows.Rows(number, torch.full((4, 1), value))

    setup = SimpleNamespace(device=torch.device("cpu"))
    far = rows.whole_apart(lambda model, batch: batch.sum(), watching, setup, give, 2, (), nn.Linear(1, 1))
    assert far == pytest.approx(apart)
