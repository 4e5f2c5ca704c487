"""Projects as people have them, of each kind: what is known of them, and what is certain."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from faultline.audit import arguments, conditions
from faultline.audit.project import read_project

ZERO2, ZERO3 = {"zero2", "zero2-small"}, {"zero3", "zero3-small"}
AUTO = """{
  "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto"},
  "bf16": {"enabled": true},
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_micro_batch_size_per_gpu": "auto"
}"""
AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
adapter: lora
lora_r: 16
lora_target_modules: [q_proj, v_proj]
gradient_accumulation_steps: 2
micro_batch_size: 2
bf16: auto
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: true
deepspeed: deepspeed_configs/zero3_bf16.json
"""
LLAMA_FACTORY = """\
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
### method
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]
### train
gradient_accumulation_steps: 8
bf16: true
"""
SWIFT = """\
model: Qwen/Qwen2.5-7B-Instruct
rlhf_type: dpo
tuner_type: lora
torch_dtype: bfloat16
gradient_checkpointing: true
gradient_checkpointing_kwargs: '{"use_reentrant": true}'
gradient_accumulation_steps: 16
deepspeed: zero2
"""
SWIFT_SCRIPT = """\
# 4 * 80GiB
nproc_per_node=4
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
NPROC_PER_NODE=$nproc_per_node \\
swift rlhf \\
    --rlhf_type dpo \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --train_type lora \\
    --dataset 'hjh0119/shareAI-Llama3-DPO-zh-en-emoji#1000' \\
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\
    --gradient_checkpointing true \\
    --gradient_checkpointing_kwargs '{"use_reentrant": true}' \\
    --deepspeed zero2
"""
TRL_YAML = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
reward_funcs: [accuracy]
num_generations: 8
use_peft: true
gradient_checkpointing: true
gradient_checkpointing_kwargs: '{"use_reentrant": true}'
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
TRAIN = """\
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def main():
    args = GRPOConfig(
        output_dir="out", num_generations=8, gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True}, bf16=True,
    )
    adapter = LoraConfig(r=8, target_modules="all-linear")
    GRPOTrainer("Qwen/Qwen2.5-0.5B", reward, args=args, train_dataset=data, peft_config=adapter).train()
"""
SH = """\
#!/usr/bin/env bash
set -euo pipefail
accelerate launch --use_deepspeed --zero_stage 2 --num_processes 8 train.py "$@"
"""
OLD = "torch==2.13.0\ntransformers==4.49.0\naccelerate==1.4.0\npeft==0.14.0\ndeepspeed==0.16.4\n"
UV = """\
[project]
name = "ours"
version = "0"
dependencies = ["trl", "torch==2.13.0", "transformers==4.49.0", "peft==0.14.0", "accelerate==1.4", "deepspeed==0.16.4"]
[tool.uv.sources]
trl = { git = "https://github.com/huggingface/trl", tag = "v0.15.2" }
"""
KINDS = {
    "axolotl": (
        {"config.yml": AXOLOTL, "deepspeed_configs/zero3_bf16.json": AUTO},
        {
            "strategy": {"zero3-small"},
            "checkpointing": {"reentrant"},
            "precision": {"bf16"},
            "trainer": {"another"},
            "adapter": {"yes"},
            "accumulation": {"yes"},
            "no gradient_clipping": {"no"},
        },
    ),
    "LLaMA-Factory": (
        {"llama3_lora_dpo.yaml": LLAMA_FACTORY, "run.sh": "llamafactory-cli train llama3_lora_dpo.yaml\n"},
        {
            "strategy": {"zero3", "zero3-small", "zero3-hpz", "zero3-offload", "zero3-offload-param"},
            "checkpointing": {"reentrant"},
            "precision": {"bf16"},
            "trainer": {"dpo"},
            "adapter": {"yes"},
            "accumulation": {"yes"},
        },
    ),
    "ms-swift": (
        {"dpo.yaml": SWIFT},
        {
            "strategy": {*ZERO2, "zero2-offload"},
            "checkpointing": {"reentrant"},
            "precision": {"bf16"},
            "trainer": {"dpo"},
            "adapter": {"yes"},
            "accumulation": {"yes"},
        },
    ),
    "ms-swift's script": (
        {"train.sh": SWIFT_SCRIPT},
        {
            "strategy": {*ZERO2, "zero2-offload"},
            "checkpointing": {"reentrant"},
            "trainer": {"dpo"},
            "adapter": {"yes"},
        },
    ),
    "TRL's YAML": (
        {"grpo.yaml": TRL_YAML, "accelerate.yaml": ACCELERATE, "requirements.txt": OLD + "trl==0.15.2\n"},
        {
            "strategy": ZERO2,
            "checkpointing": {"reentrant"},
            "trainer": {"grpo"},
            "adapter": {"yes"},
            "no gradient_clipping": {"no"},
        },
    ),
    "a script and its code": (
        {"train.sh": SH, "src/train.py": TRAIN, "pyproject.toml": UV},
        {
            "strategy": ZERO2,
            "checkpointing": {"reentrant"},
            "precision": {"bf16"},
            "trainer": {"grpo"},
            "adapter": {"yes"},
            "no gradient_clipping": {"no"},
            "own max_grad_norm": {"yes"},
        },
    ),
}


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return read_project([str(folder)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_files_of_a_kind_say(tmp_path, kind):
    """Breaks when a library's own way to write a setting isn't read, or says what it doesn't."""
    files, known = KINDS[kind]
    project = written(tmp_path, files)
    assert {axis: {*values} for axis, values in project.left.items()} == known and not project.notes


@pytest.mark.parametrize("kind", ["TRL's YAML", "a script and its code"])
def test_the_same_failure_is_certain_however_it_is_written(tmp_path, kind):
    """Breaks when the record's own setting isn't certain, or comes with one that isn't there."""
    project = written(tmp_path, KINDS[kind][0])
    assert [each.failure.name for each in conditions.findings(project) if each.certain] == ["grpo_lora_no_grad"]


GRPO = "num_generations: 8\nuse_peft: true\ngradient_checkpointing: true\n" + (
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
        ("==1.0.0", EARLY | {"gold", "sdft", "sdpo"}),
        (">=0.15.2", EARLY | {"gold", "iw_opd", "sdft", "sdpo"}),
        ("", EARLY | {"gold", "iw_opd", "sdft", "sdpo"}),
    ],
)
def test_a_setting_stands_for_the_trainers_that_a_release_has(tmp_path, pin, left):
    """Breaks when trainers that the pinned TRL lacks leave a failure undecided, or one that it may have is left out."""
    engine = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
    project = written(tmp_path, {"requirements.txt": f"trl{pin}\n", "train.yaml": GRPO, "accelerate.yaml": engine})
    assert project.left["trainer"] == left
    certain = [each.failure.name for each in conditions.findings(project) if each.certain]
    assert certain == (["grpo_lora_no_grad"] if pin == "==0.15.2" else [])
    assert ("with trl" in str(project.sources["trainer"][0])) == (len(left) < 6)


def test_a_trainer_that_is_named_stays_whatever_the_release(tmp_path):
    """Breaks when the older RLOO, which had other settings, counts as no trainer of its release."""
    project = written(tmp_path, {"requirements.txt": "trl==0.15.2\n", "train.yaml": "trainer: rloo\noutput_dir: x\n"})
    assert project.left["trainer"] == {"rloo"}


def test_the_installed_trl_has_every_trainer_that_a_release_brought():
    """Breaks when TRL drops or renames a trainer whose first release is written down."""
    [folder] = importlib.util.find_spec("trl").submodule_search_locations
    files = {file.name.removesuffix("_trainer.py") for file in Path(folder).rglob("*_trainer.py")}
    assert arguments.SINCE.keys() <= files & arguments.trainers()


def test_a_bucket_that_is_auto_is_explained(tmp_path):
    """Breaks when `zero3-small` is said of a config that names no such thing, without a reason."""
    [place] = written(tmp_path, KINDS["axolotl"][0]).sources["strategy"][:1]
    assert "reduce_bucket_size: auto, which makes buckets smaller than the model" in str(place)


def test_the_current_folder_is_read_and_an_empty_one_is_said(tmp_path, asked, monkeypatch):
    """Breaks when `faultline audit` alone looks elsewhere, or an empty folder passes."""
    monkeypatch.chdir(tmp_path)
    code, out, [error] = asked("audit")
    assert code == 2 and not out and "no requirements, lock file or training config in ." in error
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    code, out, errors = asked("audit")
    assert code == 0 and not errors and "requirements.txt:1" in out


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.yaml", "output_dir: x\nbf16: true: false\n", "train.yaml:2 is not valid YAML: mapping values are not"),
        ("ds.json", '{\n"zero_optimization": {"stage": 2},\n}', "ds.json:3 is not valid JSON: "),
        ("pyproject.toml", "[project]\nname = x\n", "pyproject.toml is not valid TOML: "),
        ("requirements.txt", "peft==0.14.0\ntranformers==4.49.0\n", "did you mean transformers?"),
    ],
)
def test_a_slip_is_said_with_its_place(tmp_path, name, text, expected):
    """Breaks when a file that doesn't parse, or a misspelt package, is passed over."""
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
