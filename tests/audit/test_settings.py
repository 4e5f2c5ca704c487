"""Settings: what configs and training arguments say of a training, on files that the libraries themselves bring."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.audit import arguments
from faultline.audit.engines import OTHER_TRAINER
from faultline.audit.project import read_project
from faultline.base.paths import ROOT
from faultline.projects.documents import Document


def package(name):
    """Where an installed package lies; nothing of it is imported."""
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def left(tmp_path, text, name="train.yaml"):
    """What one file leaves of each axis."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return read_project([str(file)]).left


TRL = {
    "fsdp1": {"fsdp1-full"},
    "fsdp2": {"fsdp2"},
    "multi_gpu": {"ddp", "ddp-find-unused", "ddp-static-graph"},
    "single_gpu": {"single"},
    "zero1": {"zero1", "zero1-small"},
    "zero2": {"zero2", "zero2-small"},
    "zero3": {"zero3", "zero3-small"},
}


@pytest.mark.parametrize("file", sorted((package("trl") / "accelerate_configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_configs_that_trl_brings(file):
    """Breaks when an accelerate config, as TRL tells its users to take it, is taken for another strategy."""
    setup = read_project([str(file)])
    assert setup.left["strategy"] == TRL[file.stem] and setup.left["precision"] == {"bf16"}
    assert all(place.name == str(file) for place in setup.sources["strategy"])


@pytest.mark.parametrize("stage", range(4))
def test_the_configs_that_deepspeed_brings(stage):
    """Breaks when DeepSpeed's own templates, which have comments or keys that we don't know, are no configs."""
    file = package("deepspeed") / "autotuning" / "config_templates" / f"template_zero{stage}.json"
    results = read_project([str(file)]).left["strategy"]
    assert results and all(name.startswith(f"zero{stage}") for name in results)


@pytest.mark.parametrize("file", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda file: file.stem)
def test_the_configs_that_the_matrix_runs_with(file):
    """Breaks when the very file that a strategy is run with is taken for another strategy."""
    results = read_project([str(file)]).left["strategy"]
    assert file.stem in results
    assert results <= {file.stem, file.stem.removesuffix("-small"), f"{file.stem}-small"}


def test_what_accelerate_itself_writes(tmp_path):
    """Breaks when accelerate writes a key in another way than it is read here."""
    from accelerate.commands.config.config_args import ClusterConfig

    common = {
        "compute_environment": "LOCAL_MACHINE",
        "mixed_precision": "bf16",
        "use_cpu": False,
        "debug": False,
        "num_processes": 2,
    }
    plans = {
        "ddp": ("MULTI_GPU", {}),
        "fsdp2-no-reshard": ("FSDP", {"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}}),
        "fsdp1-grad-op": ("FSDP", {"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}),
        "zero3-offload-param": (
            "DEEPSPEED",
            {
                "deepspeed_config": {
                    "zero_stage": 3,
                    "offload_param_device": "cpu",
                    "offload_optimizer_device": "cpu",
                }
            },
        ),
    }
    for strategy, (kind, more) in plans.items():
        for name in ("config.yaml", "config.json"):
            config = ClusterConfig(distributed_type=kind, **common, **more)
            file = tmp_path / name
            (config.to_yaml_file if name.endswith("yaml") else config.to_json_file)(str(file))
            results = read_project([str(file)]).left
            assert strategy in results["strategy"] and results["precision"] == {"bf16"}, f"{name} for {strategy}"
            assert len(results["strategy"]) == (3 if strategy == "ddp" else 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fsdp: full_shard auto_wrap\nfsdp_config: {version: 1}", {"fsdp1-full"}),
        ("fsdp: [shard_grad_op, auto_wrap]\nfsdp_config: {version: 1}", {"fsdp1-grad-op"}),
        ("fsdp: true\nfsdp_config: {fsdp_version: 2, reshard_after_forward: false}", {"fsdp2-no-reshard"}),
        ("fsdp: full_shard", {"fsdp1-full", "fsdp2"}),  # the default version differs from release to release
        ("fsdp: hybrid_shard auto_wrap\nfsdp_config: {version: 1}", {"fsdp1-hybrid"}),
        ("fsdp: hybrid_shard_zero2 auto_wrap\nfsdp_config: {version: 1}", set()),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 4}", {"fsdp1-hybrid"}),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"
            "parallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 4}",
            {"fsdp2-hsdp"},
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"
            "parallelism_config: {parallelism_config_dp_replicate_size: 1, parallelism_config_dp_shard_size: 8}",
            {"fsdp2"},
        ),
        ("deepspeed: {zero_optimization: {stage: 3, zero_hpz_partition_size: 8}}\noutput_dir: x", {"zero3-hpz"}),
        (
            "deepspeed: {zero_optimization: {stage: 3, zero_hpz_partition_size: 1}}\noutput_dir: x",
            {"zero3", "zero3-small"},
        ),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}\nbase_model: x\nmicro_batch_size: 1", {"fsdp2"}),
        ("deepspeed: {zero_optimization: {stage: 2, reduce_bucket_size: auto}}\noutput_dir: x", {"zero2-small"}),
        ("deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}", {"zero2-offload"}),
        ("deepspeed: examples/deepspeed/ds_z3_config.json", {n for n in strategies.names() if n.startswith("zero3")}),
        ("fsdp: fsdp2\ntuner_type: lora", {"fsdp2"}),
        ("deepspeed: configs/zero3_bf16.json", {n for n in strategies.names() if n.startswith("zero3")}),
        ("deepspeed: zero2_offload", {n for n in strategies.names() if n.startswith("zero2")}),
        ("deepspeed: my_config.json", {n for n in strategies.names() if n.startswith("zero")}),
        (
            "ddp_find_unused_parameters: false",
            {name for name in strategies.names() if name != "ddp-find-unused"},
        ),
        ("distributed_type: NO\nmixed_precision: no", {"single"}),
        ("distributed_type: DistributedType.MULTI_XPU", {"ddp", "ddp-find-unused", "ddp-static-graph"}),
        ("accelerate_config: zero3\nmodel_name_or_path: x", {"zero3", "zero3-small"}),
        ("train_batch_size: 8\nlearning_rate: 1.0e-5", None),  # of diffusers' scripts, and no DeepSpeed config
        ("fsdp: ''\noutput_dir: x", None),
        ("fsdp: null\ndeepspeed: null\noutput_dir: x", None),
    ],
)
def test_strategies_of_training_arguments(tmp_path, text, names):
    """Breaks when arguments name another strategy than the trainer would take, or one where they name none."""
    assert left(tmp_path, text).get("strategy") == (None if names is None else frozenset(names))


def test_a_config_that_another_file_names_is_read(tmp_path):
    """Breaks when a stage that stands in a file of its own is not found."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    assert left(tmp_path, "deepspeed: ds.json\noutput_dir: x")["strategy"] == {"zero1", "zero1-small"}
    accelerate = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    setup = left(tmp_path, accelerate, "accelerate.yaml")
    assert setup["strategy"] == {"zero1", "zero1-small"}


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("gradient_checkpointing: true", {"reentrant", "non-reentrant"}),
        ("gradient_checkpointing: false", {"off"}),
        ("gradient_checkpointing: 'True'\ngradient_checkpointing_kwargs: {use_reentrant: true}", {"reentrant"}),
        ("activation_checkpointing: true\nactivation_checkpointing_kwargs: {use_reentrant: false}", {"non-reentrant"}),
        ("gradient_checkpointing_kwargs: {use_reentrant: false}", {"off", "non-reentrant"}),
        ("finetuning_type: lora\ndisable_gradient_checkpointing: true", {"off"}),
        ("finetuning_type: lora\ndisable_gradient_checkpointing: false\nuse_reentrant_gc: false", {"non-reentrant"}),
        ("fsdp: full_shard\nfsdp_config: {fsdp_activation_checkpointing: true}", {"non-reentrant"}),
        ("output_dir: x", None),  # the default is TRL's, or transformers'
    ],
)
def test_checkpointing(tmp_path, text, modes):
    assert left(tmp_path, text).get("checkpointing") == (None if modes is None else frozenset(modes))


@pytest.mark.parametrize(
    ("text", "adapter"),
    [
        ("use_peft: true\nlora_r: 8", {"yes"}),
        ("use_peft: false\nlora_r: 8", {"no"}),
        ("lora_r: 8", {"yes"}),
        ("base_model: x\nadapter: qlora\nmicro_batch_size: 1", {"yes"}),
        ("base_model: x\nadapter:\nmicro_batch_size: 1", {"no"}),
        ("finetuning_type: full", {"no"}),
        ("output_dir: x", None),
    ],
)
def test_adapters(tmp_path, text, adapter):
    assert left(tmp_path, text).get("adapter") == (None if adapter is None else frozenset(adapter))


@pytest.mark.parametrize(
    ("text", "trainers", "name"),
    [
        ("rlhf_type: gkd", {"gkd", "gkd_on_policy"}, "swift.yaml"),
        ("stage: dpo\nfinetuning_type: lora", {"dpo"}, "train.yaml"),
        ("stage: sft\nfinetuning_type: lora", {OTHER_TRAINER}, "train.yaml"),
        ("rl: orpo\nbase_model: x", {OTHER_TRAINER}, "train.yaml"),
        ("base_model: x\ndatasets: []", {OTHER_TRAINER}, "train.yaml"),
        ("trainer: GRPOTrainer\noutput_dir: x", {"grpo"}, "train.yaml"),
        ("trainer: my_own\noutput_dir: x", None, "train.yaml"),
        ("reward_funcs: [accuracy]\nnum_generations: 4", {"grpo", "rloo"}, "train.yaml"),
        ("reward_funcs: [accuracy]\nnum_generations: 4", {"grpo"}, "grpo.yaml"),
        ("output_dir: x", None, "grpo.yaml"),
    ],
)
def test_trainers(tmp_path, text, trainers, name):
    """Breaks when a failure of one trainer is told of another, or a file's name alone decides."""
    assert left(tmp_path, text, name).get("trainer") == (None if trainers is None else frozenset(trainers))


def test_beta_means_a_reference_model_only_where_it_does(tmp_path):
    """Breaks when DPO's beta, or any trainer's, is taken for GRPO's."""
    grpo = "reward_funcs: [x]\nnum_generations: 4\n"
    assert left(tmp_path, grpo + "beta: 0.04")["reference model"] == {"yes"}
    assert left(tmp_path, grpo + "beta: 0.0")["reference model"] == {"no"}
    assert "reference model" not in left(tmp_path, grpo)
    assert "reference model" not in left(tmp_path, "output_dir: x\nbeta: 0.1")


@pytest.mark.parametrize(
    ("text", "need", "answer"),
    [
        ("gradient_accumulation_steps: 4\noutput_dir: x", "accumulation", "yes"),
        ("gradient_accumulation_steps: 1\noutput_dir: x", "accumulation", "no"),
        ("gradient_accumulation_steps: auto\noutput_dir: x", "accumulation", None),
        ('{"zero_optimization": {}, "gradient_accumulation_steps": 4}', "accumulation", "yes"),
        ('{"zero_optimization": {}, "gradient_accumulation_steps": "auto"}', "accumulation", None),
        ('{"zero_optimization": {}}', "no gradient_clipping", "yes"),
        ('{"zero_optimization": {}, "gradient_clipping": 0.0}', "no gradient_clipping", "no"),
        ("deepspeed: {zero_optimization: {stage: 2}}\noutput_dir: x", "no gradient_clipping", "yes"),
        ("deepspeed: not_there_z2.json\noutput_dir: x", "no gradient_clipping", None),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}", "no gradient_clipping", None),
        (
            "fsdp: full_shard\nfsdp_config: {fsdp_state_dict_type: SHARDED_STATE_DICT}",
            "sharded state dict",
            "yes",
        ),
        ("fsdp: full_shard\nfsdp_config: {state_dict_type: FULL_STATE_DICT}", "sharded state dict", "no"),
        ("fsdp: full_shard\nfsdp_config: {state_dict_type: LOCAL_STATE_DICT}", "sharded state dict", None),
        ("output_dir: x\nprecompute_ref_log_probs: true", "precompute_ref_log_probs", "yes"),
        ("output_dir: x\nprecompute_ref_log_probs: false", "precompute_ref_log_probs", "no"),
        ("use_peft: true\nlora_target_parameters: [x]", "target_parameters", "yes"),
        ("use_peft: true\nlora_modules_to_save: [lm_head]", "trained head", "yes"),
        ("use_peft: true\nlora_modules_to_save: [norm]", "trained head", "no"),
        ("use_peft: true\nlora_r: 8", "trained head", None),
    ],
)
def test_settings_that_a_failure_needs(tmp_path, text, need, answer):
    """Breaks when what a file says of a setting is asked for, or what it doesn't say is taken as said."""
    name = "ds.json" if text.startswith("{") else "train.yaml"
    assert left(tmp_path, text, name).get(need) == (frozenset([answer]) if answer else None)


def configs():
    """The settings of each of TRL's configs by the trainer's name here, its own and inherited ones of TRL."""
    bases, fields = {}, {}
    for file in package("trl").rglob("*_config.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
                fields[node.name] = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}

    def whole(name):
        return fields.get(name, set()).union(*map(whole, bases.get(name, ())))

    return {name.removesuffix("Config").lower(): whole(name) for name in fields}


def test_telling_settings_are_those_trainers_alone():
    """Breaks when TRL moves a setting to another trainer: the trainer would be guessed wrongly."""
    have, known = configs(), {name.replace("_", "") for name in arguments.trainers()}
    for key, names in arguments.TRAINERS_BY_SETTING.items():
        if key == "reward_funcs":  # of TRL's scripts, whose arguments are no config's
            continue
        results = {name for name, fields in have.items() if key in fields and name in known}
        assert results == {name.replace("_", "") for name in names.split()}, f"{key} is a setting of {sorted(results)}"


@pytest.mark.parametrize("key", ["beta", "max_grad_norm"])
def test_a_number_that_no_float_holds_says_nothing(tmp_path, key):
    """Breaks when a file with a long number ends in a traceback."""
    assert not left(tmp_path, f"output_dir: x\n{key}: {'9' * 400}")


def test_a_section_of_a_file_and_lines_are_found(tmp_path):
    """Breaks when a place that is told is not where the key stands."""
    text = "# bf16: false\nmodel:\n  use_reentrant: x\ntraining:\n  output_dir: out\n  bf16: true\n"
    text += "  gradient_checkpointing: true\n  gradient_checkpointing_kwargs:\n    use_reentrant: true\n"
    (tmp_path / "all.yaml").write_text(text)
    setup = read_project([str(tmp_path / "all.yaml")])
    assert str(setup.sources["checkpointing"][-1]).endswith("all.yaml:9 use_reentrant: true")
    assert str(setup.sources["precision"][0]).endswith("all.yaml:6 bf16: true")


def test_what_excludes_each_other_leaves_both_and_says_so(tmp_path):
    """Breaks when one of two configs silently wins."""
    (tmp_path / "accelerate.yaml").write_text(yaml.dump({"distributed_type": "MULTI_GPU"}))
    (tmp_path / "train.yaml").write_text("deepspeed: ds_z2.json\noutput_dir: x")
    setup = read_project([str(tmp_path)])
    assert {"ddp", "zero2"} <= setup.left["strategy"] and any("contradict each other" in note for note in setup.notes)


def test_a_contradiction_names_each_place_once(tmp_path):
    """Breaks when a place that is read in two ways stands twice in a note, and hides another one."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n")
    [note] = read_project([str(tmp_path)]).notes
    assert note.endswith("possible: ds.json:1 stage: 2; fsdp.yaml:3 fsdp_version: 2")


def test_what_only_one_recipe_states_is_unknown_and_says_where(tmp_path):
    """Breaks when somebody has to look for the file whose setting doesn't count."""
    (tmp_path / "a.yaml").write_text("bf16: true\noutput_dir: x")
    (tmp_path / "b.yaml").write_text("output_dir: x")
    [note] = read_project([str(tmp_path)]).notes
    assert note.endswith("because only some of the files of one kind state it: a.yaml:1 bf16: true")


def test_files_of_one_kind_are_alternatives(tmp_path):
    """Breaks when a recipe without an adapter is told of the adapter that another one has."""
    (tmp_path / "a.yaml").write_text("use_peft: true\nbf16: true\noutput_dir: x")
    (tmp_path / "b.yaml").write_text("fp16: false\nbf16: false\noutput_dir: x")
    setup = read_project([str(tmp_path)])
    assert "adapter" not in setup.left and setup.left["precision"] == {"fp32", "bf16"}


def test_document_lines_count_from_one():
    document = Document("x", Path("x"), "a: 1\nb: 2\n")
    assert [document.at(key).where for key in ("a", "b", "missing")] == ["x:1", "x:2", "x:1"]


KEYS = sorted(
    {
        *arguments.ARGUMENTS,
        *arguments.DEEPSPEED,
        *arguments.TRAINERS_BY_SETTING,
        *arguments.TRAINER_KEYS,
        *arguments.LORA,
        "use_reentrant",
    }
    | {"distributed_type", "deepspeed_config", "zero_stage", "version", "beta", "stage", "offload_param", "enabled"}
    | {"mixed_precision", "fsdp_sharding_strategy", "reduce_bucket_size", "deepspeed_config_file", "accelerate_config"}
)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.dates(), st.just("x\x00/../y" * 99)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@hypothesis.settings(max_examples=300)
@given(st.dictionaries(st.one_of(st.sampled_from(KEYS), PLAIN), VALUES, max_size=6))
def test_any_values_are_taken_or_passed_over(data):
    """Breaks when a value of a kind that nobody expected there ends in a traceback."""
    results = arguments.read(Document("x", Path("x"), "", data))
    for answer in results[1] if results else ():
        assert answer.source.name == "x" and answer.axis


def test_fsdp_from_a_file_of_its_own(tmp_path):
    (tmp_path / "fsdp.json").write_text('{"version": 2, "reshard_after_forward": false}')
    assert left(tmp_path, "fsdp: true\nfsdp_config: fsdp.json")["strategy"] == {"fsdp2-no-reshard"}
