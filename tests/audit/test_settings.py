"""Settings: what configs and training arguments say of a training, alone and in projects as people have them."""

import ast
import importlib.util
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.audit import adapters, arguments, conditions
from faultline.audit.engines import OTHER_TRAINER
from faultline.base.paths import ROOT
from faultline.projects.documents import Document
from tests.support.projects import GRPO, family, put, read_project, written


def package(name):
    """Where an installed package lies; nothing of it is imported."""
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def left(tmp_path, text, name="train.yaml"):
    """What one file leaves of each axis."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return read_project([str(file)]).left


DDP = {"ddp", "ddp-find-unused", "ddp-static-graph"}
TRL = {"fsdp1": {"fsdp1-full"}, "fsdp2": {"fsdp2"}, "multi_gpu": DDP, "single_gpu": {"single"}}
TRL |= {f"zero{stage}": {f"zero{stage}", f"zero{stage}-small"} for stage in (1, 2, 3)}


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


@pytest.mark.slow
def test_what_accelerate_itself_writes(tmp_path):
    """Breaks when accelerate, or transformers, writes a key in another way than it is read here."""
    from accelerate.commands.config.config_args import ClusterConfig
    from transformers import TrainingArguments

    common = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "bf16", "use_cpu": False, "debug": False}
    offload = {"zero_stage": 3, "offload_param_device": "cpu", "offload_optimizer_device": "cpu"}
    plans = {
        "ddp": ("MULTI_GPU", {}),
        "fsdp2-no-reshard": ("FSDP", {"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}}),
        "fsdp1-grad-op": ("FSDP", {"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}),
        "zero3-offload-param": ("DEEPSPEED", {"deepspeed_config": offload}),
    }
    for strategy, (kind, more) in plans.items():
        for name in ("config.yaml", "config.json"):
            config = ClusterConfig(distributed_type=kind, num_processes=2, **common, **more)
            file = tmp_path / name
            (config.to_yaml_file if name.endswith("yaml") else config.to_json_file)(str(file))
            results = read_project([str(file)]).left
            assert strategy in results["strategy"] and results["precision"] == {"bf16"}, f"{name} for {strategy}"
            assert len(results["strategy"]) == (3 if strategy == "ddp" else 1)
    kwargs = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    text = TrainingArguments(str(tmp_path), use_cpu=True, **kwargs).to_json_string()
    assert left(tmp_path, text, "arguments.json")["checkpointing"] == {"reentrant"}


NODES = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: "
NODES += "{parallelism_config_dp_replicate_size: %d, parallelism_config_dp_shard_size: %d}"
SAID = {
    "strategy": [
        ("fsdp: full_shard auto_wrap\nfsdp_config: {version: 1}", {"fsdp1-full"}),
        ("fsdp: [shard_grad_op, auto_wrap]\nfsdp_config: {version: 1}", {"fsdp1-grad-op"}),
        ("fsdp: true\nfsdp_config: {fsdp_version: 2, reshard_after_forward: false}", {"fsdp2-no-reshard"}),
        ("fsdp: full_shard", {"fsdp1-full", "fsdp2"}),  # the default version differs from release to release
        ("fsdp: hybrid_shard_zero2 auto_wrap\nfsdp_config: {version: 1}", set()),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 4}", {"fsdp1-hybrid"}),
        (NODES % (2, 4), {"fsdp2-hsdp"}),
        (NODES % (1, 8), {"fsdp2"}),
        ("deepspeed: {zero_optimization: {stage: 3, zero_hpz_partition_size: 8}}", {"zero3-hpz"}),
        ("deepspeed: {zero_optimization: {stage: 3, zero_hpz_partition_size: 1}}", {"zero3", "zero3-small"}),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}\nbase_model: x\nmicro_batch_size: 1", {"fsdp2"}),
        ("deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}", {"zero2-offload"}),
        ("fsdp: fsdp2\ntuner_type: lora", {"fsdp2"}),
        ("deepspeed: configs/zero3_bf16.json", family("zero3")),
        ("deepspeed: zero2_offload", {"zero2-offload"}),
        ("actor_rollout_ref: {actor: {strategy: fsdp2, fsdp_config: {fsdp_size: -1}}}", {"fsdp2"}),
        ("deepspeed: my_config.json", family("zero")),
        ("ddp_find_unused_parameters: false", {*strategies.names()} - {"ddp-find-unused"}),
        ("distributed_type: NO\nmixed_precision: no", {"single"}),
        ("ddp_static_graph: true\noutput_dir: x", {*strategies.names()} - {"ddp", "ddp-find-unused"}),
        ("distributed_type: DistributedType.MULTI_XPU", DDP),
        ("accelerate_config: zero3\nmodel_name_or_path: x", {"zero3", "zero3-small"}),
        ("train_batch_size: 8\nlearning_rate: 1.0e-5", None),  # of diffusers' scripts, and no DeepSpeed config
        ("fsdp: ''\noutput_dir: x", None),
    ],
    "checkpointing": [
        ("gradient_checkpointing: true", {"reentrant", "non-reentrant"}),
        ("gradient_checkpointing: false", {"off"}),
        ("gradient_checkpointing: 'True'\ngradient_checkpointing_kwargs: {use_reentrant: true}", {"reentrant"}),
        ("activation_checkpointing: true\nactivation_checkpointing_kwargs: {use_reentrant: false}", {"non-reentrant"}),
        ("gradient_checkpointing_kwargs: {use_reentrant: false}", {"off", "non-reentrant"}),
        ("finetuning_type: lora\ndisable_gradient_checkpointing: true", {"off"}),
        ("finetuning_type: lora\ndisable_gradient_checkpointing: false\nuse_reentrant_gc: false", {"non-reentrant"}),
        ("fsdp: full_shard\nfsdp_config: {fsdp_activation_checkpointing: true}", {"non-reentrant"}),
        ("tuner_type: lora\ngradient_checkpointing_kwargs: '{\"use_reentrant\": true}'", {"off", "reentrant"}),
        ("output_dir: x", None),  # the default is TRL's, or transformers'
    ],
    "precision": [
        ("tuner_type: lora\ntorch_dtype: bfloat16", {"bf16"}),
        ("output_dir: x\ntorch_dtype: bfloat16", None),  # only ms-swift trains in the weights' precision
    ],
    "adapter": [
        ("use_peft: false\nlora_r: 8", {"no"}),
        ("lora_r: 8", {"yes"}),
        ("tuner_type: lora\nrlhf_type: dpo", {"yes"}),
        ("base_model: x\nadapter: qlora\nmicro_batch_size: 1", {"yes"}),
        ("base_model: x\nadapter:\nmicro_batch_size: 1", {"no"}),
        ("finetuning_type: full", {"no"}),
    ],
    "trainer": [
        ("rlhf_type: gkd", {"gkd", "gkd_on_policy", OTHER_TRAINER}),
        ("stage: sft\nfinetuning_type: lora", {OTHER_TRAINER}),
        ("rl: orpo\nbase_model: x", {OTHER_TRAINER}),
        ("base_model: x\ndatasets: []", {OTHER_TRAINER}),
        ("trainer: GRPOTrainer\noutput_dir: x", {"grpo"}),
        ("trainer: my_own\noutput_dir: x", None),
        ("reward_funcs: [accuracy]\nnum_generations: 4", {"grpo", "rloo"}),
    ],
    "accumulation": [
        ("gradient_accumulation_steps: 1\noutput_dir: x", {"no"}),
        ("gradient_accumulation_steps: auto\noutput_dir: x", None),
        ('{"zero_optimization": {}, "gradient_accumulation_steps": 4}', {"yes"}),
        ('{"zero_optimization": {}, "gradient_accumulation_steps": "auto"}', None),
    ],
    "no gradient_clipping": [
        ('{"zero_optimization": {}}', {"yes"}),
        ('{"zero_optimization": {}, "gradient_clipping": 0.0}', {"no"}),
        ("deepspeed: {zero_optimization: {stage: 2}}\noutput_dir: x", {"yes"}),
        ("deepspeed: not_there_z2.json\noutput_dir: x", None),
        ("deepspeed: zero2\ntuner_type: lora", {"no"}),  # ms-swift's own config has it
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}", None),
    ],
    "sharded state dict": [
        ("fsdp: full_shard\nfsdp_config: {fsdp_state_dict_type: SHARDED_STATE_DICT}", {"yes"}),
        ("fsdp: full_shard\nfsdp_config: {state_dict_type: FULL_STATE_DICT}", {"no"}),
        ("fsdp: full_shard\nfsdp_config: {state_dict_type: LOCAL_STATE_DICT}", None),
    ],
    "precompute_ref_log_probs": [
        ("output_dir: x\nprecompute_ref_log_probs: true", {"yes"}),
        ("output_dir: x\nprecompute_ref_log_probs: false", {"no"}),
    ],
    "average_tokens_across_devices": [("output_dir: x\naverage_tokens_across_devices: false", {"no"})],
    "target_parameters": [
        ("use_peft: true\nlora_target_parameters: [x]", {"yes"}),
        ("use_peft: true\nlora_target_parameters: ", {"no"}),
    ],
    "trained head": [
        ("use_peft: true\nlora_modules_to_save: [lm_head]", {"yes"}),
        ("use_peft: true\nlora_modules_to_save: [norm]", {"no"}),
        ("use_peft: true\nlora_r: 8", None),
    ],
    "reference model": [  # only GRPO's beta means one, not DPO's or any trainer's
        ("reward_funcs: [x]\nnum_generations: 4\nbeta: 0.04", {"yes"}),
        ("reward_funcs: [x]\nnum_generations: 4\nbeta: 0.0", {"no"}),
        ("reward_funcs: [x]\nnum_generations: 4", None),
        ("output_dir: x\nbeta: 0.1", None),
        ("reward_funcs: [x]\nnum_generations: 4\nbeta: " + "9" * 400, None),  # which no float holds
    ],
    "own max_grad_norm": [("output_dir: x\nmax_grad_norm: " + "9" * 400, None)],
}


@pytest.mark.parametrize(("axis", "text", "values"), [(axis, *row) for axis, rows in SAID.items() for row in rows])
def test_what_a_file_says_of_an_axis(tmp_path, axis, text, values):
    """Breaks when a file is taken to say another thing than the trainer would do, or one where it says nothing."""
    assert left(tmp_path, text, "ds.json" if text.startswith("{") else "train.yaml").get(axis) == values


def test_a_files_name_decides_only_between_trainers_that_its_settings_leave(tmp_path):
    """Breaks when a failure of one trainer is told of another because of what a file is called."""
    assert left(tmp_path, "reward_funcs: [accuracy]\nnum_generations: 4", "grpo.yaml")["trainer"] == {"grpo"}
    assert "trainer" not in left(tmp_path, "output_dir: x", "grpo.yaml")


def test_a_config_that_another_file_names_is_read(tmp_path):
    """Breaks when a stage that stands in a file of its own is not found."""
    config, sharded = '{"zero_optimization": {"stage": 1}}', '{"version": 2, "reshard_after_forward": false}'
    put(tmp_path, {"ds.json": config, "fsdp.json": sharded})
    accelerate = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    for text in ("deepspeed: ds.json\noutput_dir: x", accelerate):
        assert left(tmp_path, text)["strategy"] == {"zero1", "zero1-small"}
    assert left(tmp_path, "fsdp: true\nfsdp_config: fsdp.json")["strategy"] == {"fsdp2-no-reshard"}


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


def test_a_section_of_a_file_and_lines_are_found(tmp_path):
    """Breaks when a place that is told is not where the key stands."""
    text = "# bf16: false\nmodel:\n  use_reentrant: x\ntraining:\n  output_dir: out\n  bf16: true\n"
    text += "  gradient_checkpointing: true\n  gradient_checkpointing_kwargs:\n    use_reentrant: true\n"
    sources = written(tmp_path, {"all.yaml": text}).sources
    assert str(sources["checkpointing"][-1]).endswith("all.yaml:9 use_reentrant: true")
    assert str(sources["precision"][0]).endswith("all.yaml:6 bf16: true")


def test_what_excludes_each_other_leaves_both_and_says_so(tmp_path):
    """Breaks when one of two configs silently wins."""
    ddp, zero2 = "distributed_type: MULTI_GPU\n", "deepspeed: ds_z2.json\noutput_dir: x"
    setup = written(tmp_path, {"accelerate.yaml": ddp, "train.yaml": zero2})
    assert {"ddp", "zero2"} <= setup.left["strategy"] and any("contradict each other" in note for note in setup.notes)
    (tmp_path / "train.yaml").unlink()
    zero2, fsdp2 = '{"zero_optimization": {"stage": 2}}', "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    [note] = written(tmp_path, {"ds.json": zero2, "accelerate.yaml": fsdp2}).notes
    assert note.endswith("possible: accelerate.yaml:3 fsdp_version: 2; ds.json:1 stage: 2"), "each place is named once"
    without = {"ds.json": zero2, "accelerate.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"}
    setup = written(tmp_path, without | {"requirements.txt": "accelerate==1.4.0"})
    assert not setup.notes and "no gradient_clipping" not in setup.left, "neither says anything of clipping"
    without["accelerate.yaml"] = without["accelerate.yaml"].replace("2}", "2, gradient_clipping: 1.0}")
    assert "gradient_clipping: these contradict" in written(tmp_path, without).notes[0]


def test_files_of_one_kind_are_alternatives(tmp_path):
    """Breaks when a recipe without an adapter is told of the adapter that another one has, or nobody is told where it
    stands."""
    with_adapter, without = "use_peft: true\nbf16: true\noutput_dir: x", "fp16: false\nbf16: false\noutput_dir: x"
    setup = written(tmp_path, {"a.yaml": with_adapter, "b.yaml": without})
    assert "adapter" not in setup.left and setup.left["precision"] == {"fp32", "bf16"}
    [note] = setup.notes
    assert note.endswith("because only some of the files of one kind state it: a.yaml:1 use_peft: true")


KEYS = sorted(
    {*arguments.ARGUMENTS, *arguments.DEEPSPEED, *arguments.TRAINERS_BY_SETTING, *arguments.TRAINER_KEYS}
    | {*adapters.LORA, "use_reentrant", "distributed_type", "deepspeed_config", "zero_stage", "version", "beta"}
    | {"stage", "offload_param", "enabled", "mixed_precision", "fsdp_sharding_strategy", "reduce_bucket_size"}
    | {"deepspeed_config_file", "accelerate_config"}
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


ZERO2 = {"zero2", "zero2-small"}
AUTO = (
    '{"zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto"}, "bf16": {"enabled": true},'
    '"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto"}'
)
AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
datasets: [{path: teknium/GPT4-LLM-Cleaned, type: alpaca}]
adapter: lora
gradient_accumulation_steps: 2
bf16: auto
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: true}
deepspeed: deepspeed_configs/zero3_bf16.json
"""
LLAMA_FACTORY = """\
stage: dpo
do_train: true
finetuning_type: lora
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]
gradient_accumulation_steps: 8
bf16: true
"""
TRAIN = """\
def main():
    args = GRPOConfig(
        output_dir="out", bf16=True, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}
    )
    GRPOTrainer("model", reward, args=args, peft_config=LoraConfig(r=8, target_modules="all-linear")).train()
"""
SH = 'accelerate launch --use_deepspeed --zero_stage 2 --num_processes 8 train.py "$@"\n'
MOST = {"checkpointing": {"reentrant"}, "precision": {"bf16"}, "adapter": {"yes"}}
ACCUMULATES, CLIPS = {"accumulation": {"yes"}}, {"no gradient_clipping": {"no"}}
KINDS = {
    "axolotl": (
        {"config.yml": AXOLOTL, "deepspeed_configs/zero3_bf16.json": AUTO},
        {**MOST, "strategy": {"zero3-small"}, "trainer": {"another"}, **ACCUMULATES, **CLIPS},
    ),
    "LLaMA-Factory": (
        {"llama3_lora_dpo.yaml": LLAMA_FACTORY, "run.sh": "llamafactory-cli train llama3_lora_dpo.yaml\n"},
        {**MOST, "strategy": family("zero3"), "trainer": {"dpo", "another"}, **ACCUMULATES},
    ),
    "TRL's YAML": (GRPO, {**MOST, "strategy": ZERO2, "trainer": {"grpo"}, **CLIPS}),
    "a script and its code": (
        {"train.sh": SH, "src/train.py": TRAIN, "requirements.txt": GRPO["requirements.txt"]},
        {**MOST, "strategy": ZERO2, "trainer": {"grpo"}, **CLIPS, "own max_grad_norm": {"yes"}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_files_of_a_kind_say(tmp_path, kind):
    """Breaks when a library's own way to write a setting isn't read, or says what it doesn't; or the record's own
    setting isn't certain however it is written."""
    files, known = KINDS[kind]
    project = written(tmp_path, files)
    assert {axis: {*values} for axis, values in project.left.items()} == known and not project.notes
    if known["trainer"] == {"grpo"}:
        certain = [each.failure.name for each in conditions.findings(project) if each.certain]
        assert certain == ["grpo_lora_no_grad"]
    if kind == "axolotl":
        place = project.sources["strategy"][0]
        assert "reduce_bucket_size: auto, which makes buckets smaller than the model" in str(place)


RECIPE = "num_generations: 8\nuse_peft: true\ngradient_checkpointing: true\n" + (
    "gradient_checkpointing_kwargs: {use_reentrant: true}\noutput_dir: x\n"
)
EARLY = {"grpo", "rloo"}


@pytest.mark.parametrize(
    ("pin", "left"),
    [
        ("==0.15.2", {"grpo"}),
        ("<0.22", {"grpo"}),
        ("==0.22.0", EARLY),
        ("==0.25.0", EARLY | {"gold"}),
        (">=0.15.2", EARLY | {"gold", "iw_opd", "sdft", "sdpo"}),
        ("", EARLY | {"gold", "iw_opd", "sdft", "sdpo"}),
    ],
)
def test_a_setting_stands_for_the_trainers_that_a_release_has(tmp_path, pin, left):
    """Breaks when trainers that the pinned TRL lacks leave a failure undecided, or one that it may have is left out."""
    engine = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
    project = written(tmp_path, {"requirements.txt": f"trl{pin}\n", "train.yaml": RECIPE, "accelerate.yaml": engine})
    assert project.left["trainer"] == left
    certain = [each.failure.name for each in conditions.findings(project) if each.certain]
    assert certain == (["grpo_lora_no_grad"] if pin == "==0.15.2" else [])
    assert ("with trl" in str(project.sources["trainer"][0])) == (len(left) < 6)
    named = {"requirements.txt": f"trl{pin}\n", "train.yaml": "trainer: rloo\noutput_dir: x\n"}
    assert written(tmp_path, named).left["trainer"] == {"rloo"}, "what is named was there, with other settings"


def test_the_installed_trl_has_every_trainer_that_a_release_brought():
    """Breaks when TRL drops or renames a trainer whose first release is written down."""
    files = {file.name.removesuffix("_trainer.py") for file in package("trl").rglob("*_trainer.py")}
    assert arguments.SINCE.keys() <= files & arguments.trainers()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.yaml", "output_dir: x\nbf16: true: false\n", "train.yaml:2 is not valid YAML: mapping values are not"),
        ("ds.json", '{\n"zero_optimization": {"stage": 2},\n}', "ds.json:3 is not valid JSON: "),
        ("pyproject.toml", "[project]\nname = x\n", "pyproject.toml is not valid TOML: "),
        (
            "ds.json",
            '{"zero_optimization": {"stage": "three"}}',
            "ds.json:1 stage: three: not a stage (0, 1, 2 or 3), so it could be any",
        ),
        ("requirements.txt", "peft==0.14.0\ntranformers==4.49.0\n", "did you mean transformers?"),
    ],
)
def test_a_slip_is_said_with_its_place(tmp_path, name, text, expected):
    """Breaks when a file that doesn't parse, a misspelt package or a stage that is none is passed over."""
    (tmp_path / "reqs.txt").write_text("trl==0.15.2\n")
    [note] = written(tmp_path, {name: text}).notes
    assert expected in note and name in note


@pytest.mark.parametrize(
    ("source", "version", "note"),
    [
        ('{ git = "https://github.com/huggingface/trl", tag = "v0.15.2" }', "==0.15.2", ""),
        ('{ git = "https://github.com/huggingface/trl", rev = "v0.15.2" }', "==0.15.2", ""),
        ('{ url = "https://example.org/trl-0.15.2-py3-none-any.whl" }', "==0.15.2", ""),
        ('{ git = "https://github.com/huggingface/trl", rev = "0a1b2c3" }', None, "comes from git"),
        ('{ git = "https://github.com/huggingface/trl", branch = "main" }', None, "comes from branch main"),
        ('{ path = "../trl", editable = true }', None, "comes from path ../trl"),
        ('{ index = "ours" }', ">=0.15", ""),
        ('[{ index = "ours", marker = "sys_platform == \'linux\'" }]', ">=0.15", ""),
    ],
)
def test_sources_of_uv(tmp_path, source, version, note):
    """Breaks when a tag isn't the version, or a branch is taken for a release."""
    text = f'[project]\nname = "ours"\nversion = "0"\ndependencies = ["trl>=0.15"]\n[tool.uv.sources]\ntrl = {source}\n'
    project = written(tmp_path, {"pyproject.toml": text})
    assert (project.versions["trl"].text if "trl" in project.versions else None) == version
    assert [f"pyproject.toml:6: trl {note}" in each for each in project.notes] == ([True] if note else [])
