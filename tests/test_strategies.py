"""Strategies: one order, configs that say what they mean, and evidence that no other strategy could give."""

from __future__ import annotations

import json
import re

import pytest
import torch

from faultline import strategies
from faultline.errors import UsageError
from faultline.strategies import Setup, zero
from faultline.strategies._common import blocks, clean, named
from tiny_models.gemma3 import gemma3
from tiny_models.group_decode import speech_model
from tiny_models.per_image_vision import per_image_vision_model
from tiny_models.qwen2 import add_lora, qwen2

NAMES = strategies.names()
CONFIGS = sorted(zero.CONFIGS.iterdir())
MODELS = {"gemma3": gemma3, "qwen2": qwen2, "speech": speech_model, "per_image": per_image_vision_model}
FUNCTIONS = ("wrap", "arguments", "accelerate", "parameters", "gradients", "evidence", "doubts")
every_strategy = pytest.mark.parametrize("name", NAMES)
every_config = pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)


def setup(**changes):
    known = {"checkpointing": "off", "precision": "fp32", "device": torch.device("cpu"), "folder": "", "deepspeed": {}}
    return Setup(**{"rank": 0, "world_size": 2, **known, **changes})


def test_strategies_go_from_one_process_to_the_most_sharded():
    families = [strategies.family(name).__name__.rsplit(".", 1)[-1] for name in NAMES]
    assert list(dict.fromkeys(families)) == ["single", "ddp", "zero", "fsdp1", "fsdp2"]
    assert families == sorted(families, key=["single", "ddp", "zero", "fsdp1", "fsdp2"].index), "families are mixed"
    stages = [strategies.options(name)["zero"]["stage"] for name in NAMES if name.startswith("zero")]
    assert stages == sorted(stages) and set(stages) == {0, 1, 2, 3}


def test_every_file_has_what_a_strategy_needs_and_no_name_twice():
    found = [name for module in strategies.families().values() for name in module.STRATEGIES]
    assert sorted(found) == sorted(NAMES), "two files name one strategy: one of them would never run"
    for module in strategies.families().values():
        assert isinstance(module.ORDER, int) and module.STRATEGIES
        assert all(callable(getattr(module, function, None)) for function in FUNCTIONS), f"{module.__name__} lacks one"


@every_strategy
def test_options_can_be_changed_without_harm(name):
    strategies.options(name)["changed"] = True
    assert "changed" not in strategies.options(name), "a cell could change what the next one runs"


@every_config
def test_a_config_is_a_strategy_and_says_what_it_means(file):
    assert strategies.family(file.stem) is zero, f"{file.name} belongs to no strategy"
    config = json.loads(file.read_text())
    assert config["gradient_clipping"] == 0.0, "unless it is named, each launcher has a default of its own"
    assert config["zero_allow_untested_optimizer"] is True, "SGD would be refused"
    assert config["train_micro_batch_size_per_gpu"] * 2 == 4, "as it stands, a config is for two ranks and four rows"
    assert config["gradient_accumulation_steps"] == 1
    stage = config["zero_optimization"]["stage"]
    assert file.stem.startswith(f"zero{stage}"), "the name says another stage"
    for part, word in (("offload_optimizer", "-offload"), ("offload_param", "-offload-param")):
        assert (part in config["zero_optimization"]) == (word in file.stem), f"the name is silent on {part}"


@pytest.mark.parametrize("file", [file for file in CONFIGS if "small" in file.stem], ids=lambda file: file.stem)
def test_a_small_bucket_is_smaller_than_any_model(file):
    """An adapter alone has 896 weights and fits; what it shows is that small buckets change nothing there."""
    sizes = {key: value for key, value in zero.read_config(file)["zero_optimization"].items() if "bucket_size" in key}
    plain = zero.read_config(file.with_name(file.name.replace("-small", "")))["zero_optimization"]
    assert "reduce_bucket_size" in sizes and not set(sizes) & set(plain)
    for name, make in MODELS.items():
        trained = sum(parameter.numel() for parameter in make().parameters() if parameter.requires_grad)
        assert all(2 * size < trained for size in sizes.values()), f"all of {name} goes into one bucket"
    adapter = sum(parameter.numel() for parameter in add_lora(qwen2()).parameters() if parameter.requires_grad)
    assert adapter < min(sizes.values()), "the adapter is no exception any more: say so where it is described"


def test_small_configs_differ_from_plain_ones_in_sizes_alone():
    for file in CONFIGS:
        if "small" in file.stem:
            small, plain = (dict(zero.read_config(file.with_name(f"{n}.json"))) for n in (file.stem, file.stem[:5]))
            own, other = small.pop("zero_optimization"), plain.pop("zero_optimization")
            assert small == plain
            assert {key: value for key, value in own.items() if not re.search("bucket|max", key)} == other


@every_config
def test_a_config_is_used_as_it_stands_at_two_ranks_in_fp32(file, tmp_path):
    options = strategies.options(file.stem)
    assert zero.arguments(options, setup()) == {"deepspeed": str(file)}
    other = zero.arguments(options, setup(world_size=4, precision="bf16", folder=str(tmp_path), rank=3))
    content = json.loads((tmp_path / "deepspeed-3.json").read_text())
    assert other == {"deepspeed": str(tmp_path / "deepspeed-3.json")}
    assert content.pop("bf16") == {"enabled": True}
    assert content == {**json.loads(file.read_text()), "train_micro_batch_size_per_gpu": 1}


def test_a_scenarios_changes_go_into_the_config_and_nowhere_else():
    options = strategies.options("zero3")
    changes = {"zero_optimization": {"stage3_param_persistence_threshold": 7}, "zero_allow_untested_optimizer": False}
    made = zero.config(options, setup(deepspeed=changes))
    assert made["zero_optimization"] == {"stage": 3, "stage3_param_persistence_threshold": 7}
    assert made["zero_allow_untested_optimizer"] is False
    assert zero.config(options, setup()) == json.loads(options["file"].read_text()), "the next cell has the changes too"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"zero_optimization": {"stage": 2,}}', "line 1 column"),
        ("", "line 1 column 1"),
        ("[]", "TypeError"),
        ("{}", "KeyError: 'zero_optimization'"),
        ('{"zero_optimization": {}}', "KeyError: 'stage'"),
        ('{"zero_optimization": 3}', "TypeError"),
        ('{"zero_optimization": {"stage": 4}}', "stage must be 0, 1, 2 or 3, not 4"),
        ('{"zero_optimization": {"stage": "3"}}', "stage must be 0, 1, 2 or 3, not '3'"),
        (b"\xff", "UnicodeDecodeError"),
    ],
)
def test_a_broken_config_is_refused_with_its_name(tmp_path, content, words):
    file = tmp_path / "zero9.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"^zero9\.json: ") as refused:
        zero.read_config(file)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def good(name):
    """The evidence of a strategy that is in force on two ranks, and each single change that must raise a doubt."""
    options, family = strategies.options(name), strategies.family(name).__name__.rsplit(".", 1)[-1]
    found = {"world_size": 2, "bytes_held": 400, "bytes_whole": 400}
    sharded = {"bytes_held": 200}, {"bytes_held": 400}
    if family == "single":
        return {**found, "world_size": 1, "wrapper": "Qwen2ForCausalLM"}, {}
    if family == "ddp":
        return {**found, "wrapper": "DistributedDataParallel", **options}, {k: not v for k, v in options.items()}
    if family == "fsdp1":
        shard, whole = sharded if name != "fsdp1-no-shard" else ({}, {})
        kind = {"wrapper": "FullyShardedDataParallel", "sharding": options["sharding"], "units": 3}
        return {**found, **kind, **shard}, {"sharding": "HYBRID_SHARD", "units": 1, **whole}
    if family == "fsdp2":
        kind = {"wrapper": "FSDPModule", "units": 3, **options}
        changes = {"units": 1, "reshard_after_forward": not options["reshard_after_forward"]}
        return {**found, **kind, **sharded[0]}, {**changes, **sharded[1]}
    config = options["zero"]
    kind = {
        "wrapper": "DeepSpeedEngine",
        "stage": config["stage"],
        "reduce_bucket_size": config.get("reduce_bucket_size", "default"),
        "offload_optimizer": "offload_optimizer" in config,
        "offload_param": "offload_param" in config,
    }
    changes = {
        "stage": (config["stage"] + 1) % 4,
        "reduce_bucket_size": 5_000_000,
        "offload_optimizer": not kind["offload_optimizer"],
        "offload_param": not kind["offload_param"],
    }
    shard, whole = sharded if config["stage"] == 3 else ({}, {})
    return {**found, **kind, **shard}, {**changes, **whole}


def doubts(name, found):
    return strategies.family(name).doubts(strategies.options(name), found)


@every_strategy
def test_good_evidence_raises_no_doubt_and_every_change_of_it_does(name):
    found, changes = good(name)
    assert doubts(name, found) == []
    for key, value in changes.items():
        [doubt] = doubts(name, {**found, key: value})
        assert "\n" not in doubt
        assert str(value) in doubt or key in ("bytes_held", "wrapper"), f"{doubt!r} doesn't say that {key} is {value}"


WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel", "FSDPModule", "Gemma3ForCausalLM")


@every_strategy
def test_a_model_in_another_wrapper_is_doubted(name):
    """On a machine without a GPU, libraries quietly train with plain DDP when something else was asked for."""
    found, _ = good(name)
    for wrapper in {*WRAPPERS[:3], *(WRAPPERS[3:] if name != "single" else ())} - {found["wrapper"]}:
        assert doubts(name, {"wrapper": wrapper, "world_size": found["world_size"]}), f"{wrapper} passes for {name}"


@every_strategy
def test_no_strategy_passes_for_another(name):
    found, _ = good(name)
    for other in NAMES:
        if other != name and (other, found["wrapper"]) != ("single", "FSDPModule"):
            assert doubts(other, found), f"what {name} shows would be taken for {other}"


def test_a_model_under_fsdp2_is_not_single():
    assert doubts("single", {"wrapper": "FSDPQwen2ForCausalLM", "world_size": 1})


@pytest.mark.parametrize("name", ["zero3", "zero3-small", "fsdp1-full", "fsdp1-grad-op", "fsdp2"])
def test_one_rank_holds_everything_and_that_is_no_doubt(name):
    found, _ = good(name)
    alone = {**found, "world_size": 1, "bytes_held": 400}
    if name.startswith("fsdp1"):
        assert doubts(name, alone), "FSDP1 shards nothing on one rank, and says so"
        alone["sharding"] = "NO_SHARD"
    assert doubts(name, alone) == []


def test_names_are_those_of_the_bare_model():
    model = qwen2()
    bare = dict(model.named_parameters())
    for prefix in ("module.", "_fsdp_wrapped_module.", "module._fsdp_wrapped_module.", "_orig_mod."):
        assert [clean(prefix + name) for name in bare] == [*bare], "reference and ranks would not be compared"
    inner = {
        name.replace("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module."): name for name in bare
    }
    assert [clean(name) for name in inner] == [*bare]
    assert named(model).keys() == bare.keys()


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_units_to_shard(name):
    model = MODELS[name]()
    units = [module for module in model.modules() if isinstance(module, tuple(blocks(model)))]
    within = {id(parameter) for unit in units for parameter in unit.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in within]
    assert units and outside, "with the root's own unit there must be two: one is no sharding"
