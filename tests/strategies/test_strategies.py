"""Strategies: one order, configs that say what they mean, and evidence that no other strategy could give."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from faultline import strategies
from faultline.base.errors import Impossible, UsageError
from faultline.catalogue import Variant
from faultline.cells.cell import STEPS, Cell
from faultline.ranks import main, plain_loop
from faultline.ranks.run import Run
from faultline.scenario import Scenario, building
from faultline.strategies import Holds, Setup, fsdp2, native, nodes, releases, shared, zero, zero_tensors
from tiny_models.gemma3 import gemma3
from tiny_models.group_decode import speech_model
from tiny_models.per_image_vision import per_image_vision_model
from tiny_models.qwen2 import add_lora, qwen2

NAMES = strategies.names()
CONFIGS = sorted(zero.CONFIGS.iterdir())
MODELS = {"gemma3": gemma3, "qwen2": qwen2, "speech": speech_model, "per_image": per_image_vision_model}
every_strategy = pytest.mark.parametrize("name", NAMES)
every_config = pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)


def setup(**changes):
    known = {"checkpointing": "off", "precision": "fp32", "device": torch.device("cpu"), "folder": "", "deepspeed": {}}
    return Setup(**{"rank": 0, "world_size": 2, **known, **changes})


def test_strategies_go_from_one_process_to_the_most_sharded_each_once_and_whole():
    families = [strategies.family_name(name) for name in NAMES]
    order = ["single", "ddp", "zero", "fsdp1", "fsdp2", "native"]
    assert list(dict.fromkeys(families)) == order
    assert families == sorted(families, key=order.index), "families are mixed"
    stages = [strategies.options(name).zero["stage"] for name in NAMES if name.startswith("zero")]
    assert stages == sorted(stages) and set(stages) == {0, 1, 2, 3}
    results = [name for family in strategies.families().values() for name in family.strategies]
    assert sorted(results) == sorted(NAMES), "two files name one strategy: one of them would never run"


@every_config
def test_a_config_is_a_strategy_and_says_what_it_means(file):
    assert strategies.family(file.stem) is zero.FAMILY, f"{file.name} belongs to no strategy"
    config = json.loads(file.read_text())
    assert config["gradient_clipping"] == 0.0, "unless it is named, each launcher has a default of its own"
    assert config["zero_allow_untested_optimizer"] is True, "SGD would be refused"
    world = strategies.usual_ranks(file.stem)
    assert config["train_micro_batch_size_per_gpu"] * world == 4, "a config is for its ranks and four rows"
    assert config["gradient_accumulation_steps"] == 1
    stage = config["zero_optimization"]["stage"]
    assert file.stem.startswith(f"zero{stage}"), "the name says another stage"
    for part, word in (("offload_optimizer", "-offload"), ("offload_param", "-offload-param")):
        assert (part in config["zero_optimization"]) == (word in file.stem), f"the name is silent on {part}"


@pytest.mark.parametrize("file", [file for file in CONFIGS if "small" in file.stem], ids=lambda file: file.stem)
def test_a_small_bucket_is_smaller_than_any_model_and_all_that_differs(file):
    """An adapter alone has 896 weights and fits; what it shows is that small buckets change nothing there."""
    small, usual = (dict(zero.read_config(file.with_name(f"{name}.json"))) for name in (file.stem, file.stem[:5]))
    relevant, plain = small.pop("zero_optimization"), usual.pop("zero_optimization")
    assert small == usual
    assert {key: value for key, value in relevant.items() if not re.search("bucket|max", key)} == plain
    sizes = {key: value for key, value in relevant.items() if "bucket_size" in key}
    assert "reduce_bucket_size" in sizes and not set(sizes) & set(plain)
    for name, make in MODELS.items():
        trained = sum(parameter.numel() for parameter in make().parameters() if parameter.requires_grad)
        assert all(2 * size < trained for size in sizes.values()), f"all of {name} goes into one bucket"
    adapter = sum(parameter.numel() for parameter in add_lora(qwen2()).parameters() if parameter.requires_grad)
    assert adapter < min(sizes.values()), "the adapter is no exception any more: say so where it is described"


@every_config
def test_a_config_is_used_as_it_stands_at_its_usual_ranks_in_fp32(file, tmp_path):
    options = strategies.options(file.stem)
    assert zero.arguments(options, setup(world_size=strategies.usual_ranks(file.stem))) == {"deepspeed": str(file)}
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
    assert zero.config(options, setup()) == json.loads(options.file.read_text()), "the next cell has the changes too"


def alone(scenario, tmp_path):
    """The run of a scenario in one process."""
    cell = Cell("example", "broken", "single", world_size=1)
    return Run(SimpleNamespace(scenario=scenario), Variant("broken"), cell, setup(world_size=1, folder=str(tmp_path)))


def scenario(**parts):
    return Scenario(
        torch.nn.Linear(1, 1), lambda model, batch: model(batch).sum(), lambda *_: torch.ones(1, 1), **parts
    )


@pytest.mark.parametrize("through", ["the engine", "accelerate"])
def test_a_scenarios_changes_reach_the_engine_whoever_wraps_it(monkeypatch, tmp_path, through):
    """Breaks when a scenario that trains through accelerate gets the config of the file as it stands."""

    def wrap(built, name, setup):
        assert setup.deepspeed == {"a": 1}
        raise InterruptedError

    for module in (strategies, main.accelerate):
        monkeypatch.setattr(module, "wrap", wrap)
    second = (lambda accelerator: None) if through == "accelerate" else None
    with pytest.raises(InterruptedError):
        plain_loop.train(alone(lambda *_: scenario(second=second, deepspeed={"a": 1}), tmp_path))


def test_gradients_are_those_before_the_step(monkeypatch, tmp_path):
    """Breaks when gradients are kept as they are left by a step that changes them in place, such as one that clips."""

    class Clipping(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad.zero_()
            return super().step(closure)

    run = alone(lambda *_: scenario(optimizer=lambda model: Clipping(model.parameters(), lr=0.1)), tmp_path)
    monkeypatch.setattr(plain_loop, "show", lambda *_: None)
    plain_loop.train(run)
    assert [step["weight"].item() for step in run.trace.gradients] == [1.0] * STEPS


def test_a_reference_may_be_built_without_what_goes_wrong_in_one_process_too(tmp_path):
    """Breaks when a failure that needs no second rank is held against a run that has it, and agrees with it."""
    answer = []
    run = alone(lambda remedy, setup: (answer.append(setup.reference), scenario())[1], tmp_path)
    main.record(run, tmp_path / "reference")
    assert answer == [True, True], "once as it is, and once to measure noise"
    assert not run.setup.reference, "and a cell's own run is none"


@pytest.mark.parametrize("stage", [0, 3])
def test_weights_without_a_master_are_read_as_they_are(monkeypatch, stage):
    """Breaks when ZeRO's weights can't be read in bf16 once something is unfrozen that the optimizer doesn't hold:
    stage 3 knows nothing of it, and raises; stage 0 has no master of it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)).bfloat16()
    unfrozen, held = model.parameters()
    master = torch.full((2, 2), 1.0001)  # bf16 doesn't tell it from 1
    held.data.fill_(1)

    def full_master(parameter):
        if stage == 3 and parameter is unfrozen:
            raise KeyError(id(parameter))
        return master if stage == 3 else None

    monkeypatch.setattr("deepspeed.utils.safe_get_full_fp32_param", full_master)
    monkeypatch.setattr(shared, "all_gather", lambda tensors: tensors)
    model.zero_optimization_stage = lambda: stage
    model.optimizer = SimpleNamespace(fp16_groups=[[held]], fp32_groups=[[master]])
    read = zero.parameters(model)
    assert torch.equal(read["0.weight"], unfrozen), "what has no master is not what the model computes with"
    assert torch.equal(read["1.weight"], master), "what has a master is not read from it any more"


@pytest.fixture
def two_ranks():
    """A process group of two, of which this process is one and the other one isn't there: shapes are real."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def wrapped(name, model):
    return strategies.wrap(Scenario(model, lambda *_: None, lambda *_: None), name, setup())


TOKENS = torch.arange(8).view(1, 8)


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2-no-reshard"])
def test_fsdp2_shows_what_a_rank_owns_while_a_forward_pass_has_left_it_whole(two_ranks, name):
    """Breaks when a forward pass without a backward pass makes a sharded model look like one that isn't; or when the
    root is told to reshard, which torch and accelerate don't: an optimizer made after a forward pass would be no
    failure any more."""
    model, evidence = wrapped(name, qwen2()).model, strategies.family("fsdp2").evidence
    before = evidence(model)
    assert before["bytes_held"] * 2 == before["bytes_whole"]
    with torch.no_grad():
        model(input_ids=TOKENS)
    assert not hasattr(model.lm_head.weight, "to_local"), "the root is left whole"
    sharded = [hasattr(parameter, "to_local") for parameter in model.model.layers.parameters()]
    assert all(sharded) if name == "fsdp2" else not any(sharded)
    assert evidence(model) == before


def test_fsdp1_without_sharding_is_read_though_a_forward_pass_went_around_its_root(two_ranks):
    """Breaks when such a model is gathered to be read, which FSDP1 refuses."""
    model, family = wrapped("fsdp1-no-shard", qwen2()).model, strategies.family("fsdp1-no-shard")
    bare = dict(qwen2().named_parameters())
    model.module.model(input_ids=TOKENS).last_hidden_state.sum().backward()
    weights, gradients = family.parameters(model), family.gradients(model)
    assert weights.keys() == bare.keys() and all(torch.equal(weights[name], bare[name]) for name in bare)
    assert {name for name, gradient in gradients.items() if gradient is None} == {"lm_head.weight"}


@pytest.mark.parametrize("name", ["fsdp1-full", "fsdp1-grad-op"])
def test_reading_fsdp1_does_not_make_its_root_known(two_ranks, name):
    """Breaks when being looked at initialises the root: what a training does before its first forward pass would
    end otherwise than it does in a script of its own."""
    model, family = wrapped(name, qwen2()).model, strategies.family(name)
    units = FullyShardedDataParallel.fsdp_modules(model)
    family.parameters(model), family.gradients(model), family.evidence(model)
    assert [unit._is_root for unit in units] == [None] * len(units)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        pass
    assert model._is_root, "an initialisation wouldn't be seen: this shows nothing"


def test_only_sums_over_all_ranks_are_put_together(monkeypatch):
    """Breaks when another DeepSpeed asks for something else, and gets a sum over all ranks without a word."""
    from deepspeed import comm

    monkeypatch.setattr(comm, "get_world_size", lambda group=None: 2 if group in (None, "all") else 1)
    tensor = torch.ones(1)
    for wrong in ({"op": comm.ReduceOp.MAX}, {"op": comm.ReduceOp.AVG}, {"group": "some"}):
        with pytest.raises(NotImplementedError), zero_tensors.one_collective():
            comm.all_reduce(tensor, **wrong)
    with pytest.raises(NotImplementedError), zero_tensors.one_collective():
        comm.all_gather_into_tensor(tensor, tensor, group="some")
    summed = []
    monkeypatch.setattr(torch.distributed, "all_reduce", summed.append)
    with zero_tensors.one_collective():
        comm.all_reduce(tensor, group="all")
        comm.all_reduce(tensor, op=comm.ReduceOp.SUM)
    assert [total.tolist() for total in summed] == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"zero_optimization": {"stage": 2,}}', "line 1 column"),
        ("{}", "KeyError: 'zero_optimization'"),
        ('{"zero_optimization": 3}', "TypeError"),
        ('{"zero_optimization": {"stage": 4}}', "stage must be 0, 1, 2 or 3, not 4"),
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
    """The evidence of a strategy in force on its usual ranks, and each single change that must raise a doubt."""
    options, family = strategies.options(name), strategies.family_name(name)
    world = strategies.usual_ranks(name)
    sharded = {"bytes_held": (20_000, 40_000)}
    nodes = {"shard_groups": ([[0, 1]],), "replica_groups": ([],)}
    if world == 4:
        nodes = {"shard_groups": ([[2, 3]], [[0, 2]]), "replica_groups": ([[0, 2]], [[0, 1]])}
    seen = {"world_size": (world,), "device": ("cpu",), "bytes_held": (40_000,), "bytes_whole": (40_000,)}
    if family == "single":
        seen |= {"world_size": (1,), "wrapper": ("Qwen2ForCausalLM",)}
    elif family == "ddp":
        seen |= {"wrapper": ("DistributedDataParallel",)}
        seen |= {option: (value, not value) for option, value in asdict(options).items()}
    elif family == "fsdp1":
        other = "FULL_SHARD" if world == 4 else "HYBRID_SHARD"
        seen |= {"wrapper": ("FullyShardedDataParallel",), "sharding": (options.sharding, other), "units": (3, 1)}
        seen |= nodes | ({} if name == "fsdp1-no-shard" else sharded)
    elif family == "fsdp2":
        reshard = options.reshard_after_forward
        seen |= {"wrapper": ("FSDPModule",), "units": (3, 1), "reshard_after_forward": (reshard, not reshard)}
        seen |= nodes | sharded
    elif family == "native":
        asked = {axis.removesuffix("_size"): size for axis, size in native.sizes(options, world).items()}
        seen |= {"wrapper": ("DTensor",), "mesh": ({axis: size for axis, size in asked.items() if size > 1}, {})}
        seen |= sharded | {"fsdp_units": (3, 0) if options.fsdp else (0, 3)}
    else:
        seen |= of_zero(options.zero, world) | (sharded if options.zero["stage"] == 3 else {})
    return {key: pair[0] for key, pair in seen.items()}, {key: pair[1] for key, pair in seen.items() if len(pair) > 1}


def of_zero(config, world):
    """What DeepSpeed's engine shows of itself with a config, and what must raise a doubt."""
    stage, bucket = config["stage"], config.get("reduce_bucket_size")
    partitions = (None, False, True, None)[stage]
    offloads, of_parameters = "offload_optimizer" in config, "offload_param" in config
    seen = {
        "wrapper": ("DeepSpeedEngine",),
        "stage": (stage, (stage + 1) % 4),
        "engine_accumulates": (2,),
        "accumulation": (2, 1),
        "optimizer": (zero.OPTIMIZERS.get(stage, "SGD"), "SGD" if stage else "DeepSpeedZeroOptimizer"),
        "partition_gradients": (partitions, not partitions),
        "reduce_bucket_size": (bucket or 500_000_000, 5_000_000 if bucket else 39_999),
        "offload_optimizer": (offloads, not offloads),
        "offload_param": (of_parameters, not of_parameters),
        "masters_on": (["cpu"],),
        "masters_held": (50, 100) if stage else (100, 50),
        "masters_whole": (100,),
    }
    if world == 4:
        groups = {"secondary_held": (20_000, 40_000), "secondary_groups": ([[2, 3]], [[1, 2]])}
        return seen | groups | {"used": ([4, 8, 12], [4, 8, 8])}
    return seen | ({"secondary_held": (0, 20_000), "secondary_groups": ([],)} if stage == 3 else {})


def doubts(name, results):
    return strategies.family(name).doubts(strategies.options(name), results)


@every_strategy
def test_good_evidence_raises_no_doubt_and_every_change_of_it_does(name):
    results, changes = good(name)
    assert doubts(name, results) == []
    in_parts = strategies.holds(name) in (Holds.SHARDS, Holds.NODE_SHARDS, Holds.PARTS)
    assert (results["bytes_held"] < results["bytes_whole"]) == in_parts, "its family says otherwise"
    for key, value in changes.items():
        [doubt] = doubts(name, {**results, key: value})
        assert "\n" not in doubt
        shown = str(value).strip("[]")
        assert shown in doubt or key in ("bytes_held", "masters_held", "used"), f"{doubt!r}: {key} is {value}"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("zero")])
def test_offload_on_a_gpu_is_seen_from_where_the_weights_are(name):
    """Breaks when a cell on a GPU passes whose optimizer keeps its weights there although it should not, or the
    other way round; on the CPU there is only one place."""
    results = {**good(name)[0], "device": "cuda:0"}
    places = ["cpu"], ["cuda"]
    passed = [place for place in places if not doubts(name, {**results, "masters_on": place})]
    assert passed == [places["offload" not in name]]


@every_strategy
def test_no_strategy_passes_for_another(name):
    results, _ = good(name)
    for other in NAMES:
        if other != name and (other, results["wrapper"]) != ("single", "FSDPModule"):
            assert doubts(other, results), f"what {name} shows would be taken for {other}"
    assert doubts("single", {"wrapper": "FSDPQwen2ForCausalLM", "world_size": 1}), "a model under FSDP2"


@pytest.mark.parametrize("name", ["zero3", "zero3-small", "fsdp1-full", "fsdp1-grad-op", "fsdp2"])
def test_one_rank_holds_everything_and_that_is_no_doubt(name):
    results, _ = good(name)
    alone = {**results, "world_size": 1, "bytes_held": 40_000, "masters_held": 100}
    if name.startswith("fsdp1"):
        assert doubts(name, alone), "FSDP1 shards nothing on one rank, and says so"
        alone["sharding"] = "NO_SHARD"
    assert doubts(name, alone) == []


def test_a_unit_within_a_unit_of_fsdp2_is_sharded_first(monkeypatch):
    """The other way round its parameters are shards already, which `fully_shard` refuses."""
    model = per_image_vision_model()
    model._no_split_modules = [*model._no_split_modules, "Linear"]
    sharded = []
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda module, **settings: sharded.append(module))
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_: None)
    options = strategies.options("fsdp2")
    strategies.family("fsdp2").wrap(model, lambda model: SimpleNamespace(), options, setup())
    assert sharded[-1] is model and {type(module).__name__ for module in sharded} > {"Linear", "Qwen2DecoderLayer"}
    for place, unit in enumerate(sharded):
        assert not {*unit.modules()} - {unit} & {*sharded[place:]}, "a unit came before one that it holds"


def test_an_option_that_trainers_of_a_stack_do_not_have_is_impossible_there(monkeypatch):
    """Breaks when an older transformers, which can't be told of a static graph, is said to fail under it."""
    from transformers import TrainingArguments

    known = {name: field for name, field in TrainingArguments.__dataclass_fields__.items() if "static" not in name}
    monkeypatch.setattr(TrainingArguments, "__dataclass_fields__", known)
    ddp = strategies.family("ddp-static-graph")
    assert ddp.arguments(strategies.options("ddp"), None) == {"ddp_find_unused_parameters": False}
    lacks = pytest.raises(Impossible, match="this stack lacks it: TrainingArguments has no ddp_static_graph")
    with lacks, building():  # as a trainer is built
        ddp.arguments(strategies.options("ddp-static-graph"), None)


def hybrid(name, **changes):
    """What a hybrid strategy is doubted for, whose evidence is good but for these changes."""
    return doubts(name, {**good(name)[0], **changes})


@pytest.mark.parametrize("name", ["fsdp1-hybrid", "fsdp2-hsdp"])
@pytest.mark.parametrize(
    ("shards", "replicas"),
    [
        ([[0]], [[0, 1, 2, 3]]),  # every rank is a node
        ([[0, 1, 2, 3]], [[0]]),  # all ranks are one
        ([[1, 2]], [[0, 2]]),  # half of two nodes
        ([[0, 1]], [[0, 3]]),  # copies that are not of one place in their nodes
        ([[0, 1], [0, 1, 2, 3]], [[0, 2]]),  # some of the units only
        ([[0, 1]], []),
    ],
)
def test_ranks_that_are_not_two_nodes_are_doubted(name, shards, replicas):
    """Breaks when a mesh of another shape passes for nodes that shard within and replicate between them."""
    assert hybrid(name, shard_groups=shards, replica_groups=replicas)


@pytest.mark.parametrize("name", ["fsdp1-hybrid", "fsdp2-hsdp"])
def test_every_rank_of_two_nodes_is_believed(name):
    """The near miss: breaks when a rank is doubted for its place."""
    for rank in range(8):
        world = 8 if rank > 3 else 4
        half = world // 2
        node = [*range(rank // half * half, rank // half * half + half)]
        replicas, held = [[rank % half, rank % half + half]], 40_000 // half
        assert not hybrid(name, shard_groups=[node], replica_groups=replicas, world_size=world, bytes_held=held)


def test_two_nodes_need_four_ranks():
    """Breaks when a hybrid strategy on too few ranks runs as another one."""
    for world in (1, 2, 3, 5):
        with pytest.raises(Impossible, match="are not 2 nodes of several ranks"):
            nodes.mesh(setup(world_size=world))


# What older releases lack: a cell there is impossible, and never another strategy under the same name.


def before_fsdp2(sharding_strategy="", cpu_ram_efficient_loading=True):
    return SimpleNamespace(sharding_strategy=sharding_strategy)


def with_fsdp2(fsdp_version=1, sharding_strategy="", cpu_ram_efficient_loading=True):
    return SimpleNamespace(fsdp_version=fsdp_version, sharding_strategy=sharding_strategy)


@pytest.fixture
def accelerate(monkeypatch):
    """Accelerate's part is played, by a plugin that the test chooses; variables are put back."""
    monkeypatch.setattr(os, "environ", {})

    def of(plugin):
        monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(FullyShardedDataParallelPlugin=plugin))

    return of


def test_fsdp2_is_impossible_before_accelerate_has_it(accelerate):
    """Breaks when FSDP1 runs where FSDP2 was asked for, or a TypeError looks like a failure of the stack."""
    accelerate(before_fsdp2)
    with pytest.raises(Impossible, match="no FSDP2"):
        releases.fsdp_plugin(2)
    with pytest.raises(Impossible, match="no FSDP2"):
        fsdp2.arguments(fsdp2.Options(), None)
    assert releases.fsdp_plugin(1, sharding_strategy="FULL_SHARD").sharding_strategy == "FULL_SHARD"


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2_is_said_in_both_ways(accelerate, reshard):
    """Breaks when transformers 4, which takes FSDP2 from variables, or 5, from the config, runs FSDP1."""
    accelerate(with_fsdp2)
    assert releases.fsdp_plugin(2).fsdp_version == 2
    answer = fsdp2.arguments(fsdp2.Options(reshard), None)
    assert answer["fsdp_config"]["version"] == 2 and answer["fsdp_config"]["reshard_after_forward"] is reshard
    assert os.environ["FSDP_VERSION"] == "2" and os.environ["FSDP_RESHARD_AFTER_FORWARD"] == str(reshard).lower()


@pytest.mark.parametrize(
    ("rows", "doubts"),
    [
        ("aabb", []),
        ("aaaa", ["every rank trained on the same rows"]),
        ("abcc", ["ranks 0 and 1 share a batch, and trained on different rows"]),
    ],
)
def test_ranks_that_share_a_batch_have_the_same_rows_and_others_have_others(rows, doubts):
    pairs = replace(strategies.family("ddp"), data_place=lambda options, rank, world: (rank // 2, world // 2))
    assert pairs.doubt_rows("ddp", dict(enumerate(rows)), 4) == doubts
    same = pairs.doubt_rows("ddp", dict(enumerate(rows)), 4, same=True)  # where that is the failure
    assert (same == []) is (rows == "aaaa") and (rows != "aabb" or same == ["ranks trained on different rows"])
