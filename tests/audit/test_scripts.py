"""Scripts and code: what their flags and arguments say is read, nothing of them is run, and a variable says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.audit import python_calls, shell
from faultline.audit.project import read_project
from faultline.projects.documents import Document


def stated(tmp_path, text, name):
    (tmp_path / name).write_text(text)
    return read_project([str(tmp_path)])


def family(prefix):
    return {name for name in strategies.names() if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("command", "axis", "values"),
    [
        ("accelerate launch --use_fsdp --fsdp_version 2 train.py --output_dir x", "strategy", {"fsdp2"}),
        ("accelerate launch --use_fsdp train.py", "strategy", {"fsdp1-full"}),
        (
            "accelerate launch --use_fsdp --fsdp_version=2 --fsdp_reshard_after_forward=false train.py",
            "strategy",
            {"fsdp2-no-reshard"},
        ),
        ("accelerate launch --use_fsdp --fsdp_version $VERSION train.py", "strategy", family("fsdp")),
        ("accelerate launch --use_deepspeed --zero_stage 3 train.py", "strategy", {"zero3", "zero3-small"}),
        ("accelerate launch --use_deepspeed train.py", "strategy", {"zero2", "zero2-small"}),
        ("accelerate launch --use_deepspeed --zero_stage $STAGE train.py", "strategy", family("zero")),
        (
            "accelerate launch --use_deepspeed --zero_stage 3 --offload_param_device cpu train.py",
            "strategy",
            {"zero3-offload-param"},
        ),
        ("python -m accelerate.commands.launch --multi_gpu train.py", "strategy", family("ddp")),
        ("accelerate launch --mixed_precision bf16 --multi_gpu train.py", "precision", {"bf16"}),
        ("accelerate launch --zero_stage 3 train.py", "strategy", None),  # without --use_deepspeed it has no effect
        ("torchrun --nproc_per_node 8 train.py --zero_stage 3", "strategy", None),
        ("torchrun --nproc_per_node 8 train.py --deepspeed ds_z3_config.json", "strategy", family("zero3")),
        ("deepspeed --num_gpus=8 train.py --deepspeed $DS", "strategy", None),
        ("deepspeed train.py --deepspeed --deepspeed_config ds_z3.json", "strategy", family("zero3")),
        ("deepspeed train.py --deepspeed --deepspeed_config $DS", "strategy", None),
        ("DS=ds_z3.json\ndeepspeed train.py --deepspeed $DS", "strategy", family("zero3")),
        ("DS=ds_z3.json\nDS=ds_z2.json\ndeepspeed train.py --deepspeed $DS", "strategy", None),
        ('deepspeed train.py --deepspeed "${DS:-ds_z3.json}"', "strategy", None),
        ("torchrun train.py --gradient_checkpointing true", "checkpointing", {"reentrant", "non-reentrant"}),
        ("torchrun train.py --gradient-checkpointing --bf16", "checkpointing", {"reentrant", "non-reentrant"}),
        ("torchrun train.py --gradient_checkpointing false", "checkpointing", {"off"}),
        ("torchrun train.py --gradient_checkpointing $GC --bf16", "checkpointing", None),
        (
            """swift sft --gradient_checkpointing true --gradient_checkpointing_kwargs '{"use_reentrant": false}'""",
            "checkpointing",
            {"non-reentrant"},
        ),
        ("swift rlhf --rlhf_type dpo --train_type lora", "trainer", {"dpo"}),
        ("swift sft --tuner_type lora", "trainer", {"another"}),
        ("accelerate launch swift/cli/sft.py --tuner_type lora", "trainer", {"another"}),
        ("swift rlhf --rlhf_type dpo --train_type lora", "adapter", {"yes"}),
        ("swift rlhf --rlhf_type dpo --tuner_type full", "adapter", {"no"}),
        ("swift rlhf --rlhf_type dpo --tuner_type llamapro", "adapter", None),
        ("trl grpo --accelerate_config zero2 --output_dir x", "trainer", {"grpo"}),
        ("trl grpo --accelerate_config zero2 --output_dir x", "strategy", {"zero2", "zero2-small"}),
        ("python -m trl.scripts.dpo --output_dir x", "trainer", {"dpo"}),
        ("torchrun train.py --lora_target_modules q_proj v_proj --output_dir x", "adapter", {"yes"}),
        ("torchrun train.py --use_peft $PEFT --lora_r 8", "adapter", None),
        (
            "torchrun train.py --gradient_accumulation_steps $(expr 16 / $N) --output_dir x",
            "accumulation",
            None,
        ),
        ("torchrun train.py --gradient_accumulation_steps `expr 4` --bf16", "precision", {"bf16"}),
        ("echo use --deepspeed ds_z3.json with train.py --bf16", "strategy", None),
        ("# torchrun train.py --deepspeed ds_z3.json", "strategy", None),
        ("torchrun train.py --dataset ours#1000 --deepspeed ds_z3.json # --bf16", "strategy", family("zero3")),
        ("P='a\n#### 42'\ntorchrun train.py --deepspeed ds_z3.json", "strategy", family("zero3")),
        ("cat <<EOF > run.sh\ntorchrun train.py --deepspeed ds_z3.json\nEOF", "strategy", None),
    ],
)
def test_flags_of_commands(tmp_path, command, axis, values):
    """Breaks when a flag is read wrongly, or one whose value nobody knows is taken for known."""
    (tmp_path / "none.txt").write_text("torch==2.13.0")
    (tmp_path / "none.txt").rename(tmp_path / "requirements.txt")
    assert stated(tmp_path, f"#!/bin/bash\n{command}\n", "train.sh").left.get(axis) == values


SCRIPT = """\
#!/bin/bash
echo "it isn't a flag: --fsdp"
if [ -n "$DEBUG" ]; then set -x; fi
CUDA_VISIBLE_DEVICES=0,1 \\
accelerate launch --config_file=zero3.yaml \\
  train.py --output_dir 'my "out"' \\
  # --gradient_checkpointing false
  --gradient_checkpointing \\
  --max_grad_norm 0.5 "$@"
"""


def test_a_command_over_lines_has_the_line_of_each_flag(tmp_path):
    """Breaks when a continued command ends early, or a flag is said to stand elsewhere."""
    (tmp_path / "zero3.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n")
    (tmp_path / "zero2.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n")
    known = stated(tmp_path, SCRIPT, "train.sh")
    assert known.left["strategy"] == {"zero3", "zero3-small"}, "the command says which of two configs it takes"
    assert [place.where for place in known.sources["checkpointing"]] == ["train.sh:8"]
    assert known.left["checkpointing"] == {"reentrant", "non-reentrant"}, "$@ may name the mode"
    assert known.sources["own max_grad_norm"][0].where == "train.sh:9"


def test_several_commands_are_alternatives(tmp_path):
    """Breaks when a script that trains with and without an adapter is told of either."""
    text = "torchrun train.py --use_peft --bf16\ntorchrun train.py --bf16\npython prepare.py --output_dir x\n"
    known = stated(tmp_path, text, "train.sh")
    assert "adapter" not in known.left and known.left["precision"] == {"bf16"}


def test_a_command_that_another_file_does_not_fit_stays_possible(tmp_path):
    """Breaks when of two launches only that is known which has a config beside it."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    text = "accelerate launch --use_fsdp --fsdp_version 2 train.py\ntorchrun train.py --deepspeed ds.json\n"
    assert {"zero2", "fsdp2"} <= stated(tmp_path, text, "train.sh").left["strategy"]


PROGRAM = '''\
"""Trains; from peft import LoraConfig says LoraConfig(r=8)."""
from trl import GRPOConfig

if __name__ == "__main__":
    config = GRPOConfig(
        output_dir="x",
        num_generations=8,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
        bf16=args.bf16,
    )
    if args.lora:
        peft_config = LoraConfig(r=8)
'''


def test_literals_of_a_call_are_known_and_nothing_else(tmp_path):
    """Breaks when code is run, or what a condition or variable decides is taken for known."""
    known = stated(tmp_path, PROGRAM + "\nopen('owned', 'w')\n", "train.py")
    assert known.left["trainer"] == {"grpo"} and known.left["checkpointing"] == {"reentrant"}
    assert not {"adapter", "precision"} & known.left.keys() and not (tmp_path / "owned").exists()
    assert [place.where for place in known.sources["checkpointing"]] == ["train.py:8", "train.py:9"]


@pytest.mark.parametrize(
    ("code", "axis", "values"),
    [
        ("TrainingArguments(gradient_checkpointing=False)", "checkpointing", {"off"}),
        ("transformers.TrainingArguments('out', bf16=True)", "precision", {"bf16"}),
        ("Seq2SeqTrainingArguments(gradient_accumulation_steps=2)", "accumulation", {"yes"}),
        ("Seq2SeqTrainingArguments(gradient_accumulation_steps=STEPS)", "accumulation", None),
        ("TrainingArguments(deepspeed={'zero_optimization': {'stage': 1}})", "strategy", {"zero1", "zero1-small"}),
        ("TrainingArguments(deepspeed={'zero_optimization': {'stage': stage}})", "strategy", None),
        ("TrainingArguments(fsdp='full_shard', fsdp_config={'version': 2})", "strategy", {"fsdp2"}),
        ("TrainingArguments(fsdp='full_shard', fsdp_config=config)", "strategy", None),
        ("TrainingArguments(fsdp='full_shard', **more)", "strategy", None),
        ("SFTConfig(max_grad_norm=0.3)", "trainer", {"sft"}),
        ("SFTConfig(max_grad_norm=0.3)", "reference model", {"no"}),
        ("TrainingArguments('x', bf16=True); DPOTrainer(model)", "trainer", {"dpo"}),
        ("CPOConfig(bf16=True)", "trainer", None),
        ("LoraConfig(r=8, modules_to_save=['lm_head'])", "trained head", {"yes"}),
        ("LoraConfig(r=8, target_parameters=['x'])", "target_parameters", {"yes"}),
        ("LoraConfig(r=8)", "adapter", {"yes"}),
        ("LoraConfig(r=8) if lora else None", "adapter", None),
        ("if __name__ == '__main__':\n    LoraConfig(r=8)", "adapter", {"yes"}),
        ("if lora:\n    LoraConfig(r=8)", "adapter", None),
        ("Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)", "accumulation", {"yes"}),
        (
            "p = FullyShardedDataParallelPlugin(fsdp_version=2)\nAccelerator(fsdp_plugin=p)",
            "strategy",
            {"fsdp2"},
        ),
        (
            "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy=S.FULL))",
            "strategy",
            family("fsdp"),
        ),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", "strategy", {"zero3", "zero3-small"}),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='ds_z3.json'))", "strategy", family("zero3")),
        ("BitsAndBytesConfig(load_in_4bit=True)\nAutoConfig(beta_=1)", "adapter", None),
    ],
)
def test_calls_of_python_files(tmp_path, code, axis, values):
    """Breaks when an argument is read wrongly, or one whose value nobody knows is taken for known."""
    (tmp_path / "requirements.txt").write_text("torch==2.13.0")
    assert stated(tmp_path, code, "train.py").left.get(axis) == values


def test_a_script_and_its_code_hold_together(tmp_path):
    """Breaks when what the code says is lost because the command says something else."""
    (tmp_path / "train.py").write_text(PROGRAM)
    known = stated(tmp_path, "accelerate launch --use_deepspeed --zero_stage 2 train.py --bf16\n", "train.sh")
    assert known.left["strategy"] == {"zero2", "zero2-small"} and known.left["precision"] == {"bf16"}
    assert known.left["trainer"] == {"grpo"}


@pytest.mark.parametrize("name", ["train.py", "train.sh"])
def test_a_program_that_says_nothing_is_refused_only_by_name(tmp_path, asked, name):
    """Breaks when every file of code is listed as not recognised, or a named one is passed over."""
    (tmp_path / name).write_text("print('(\n")
    (tmp_path / "requirements.txt").write_text("trl==0.15.2")
    assert not read_project([str(tmp_path)]).notes
    code, out, errors = asked("audit", str(tmp_path / name))
    assert code == 2 and not out and len(errors) == 1 and "is not recognised" in errors[0]


TOKENS = (
    "accelerate",
    "launch",
    "train.py",
    "--deepspeed",
    "--bf16",
    "$X",
    "'",
    '"',
    "\\\n",
    "\n",
    "`",
    "<<E",
    "$(",
    ")",
)


@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(TOKENS)).map(" ".join)))
def test_any_script_is_read(text):
    for statements in shell.read(Document("x", Path("x"), text)):
        assert all(each.source.name == "x" and each.source.line for each in statements)


PARTS = (
    "SFTConfig(",
    "bf16=True, ",
    "deepspeed=",
    "{'a': 1}, ",
    "x",
    "**k, ",
    ")",
    "\n",
    "if x:",
    " ",
    "lambda: ",
    "(" * 50,
)


@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PARTS)).map("".join)))
def test_any_code_is_read(text):
    for statements in python_calls.read(Document("x", Path("x"), text)):
        assert all(each.source.name == "x" and each.source.line for each in statements)


@pytest.mark.parametrize("text", ["x = " + "(" * 5000, "x = " + "-" * 100_000 + "1", "SFTConfig(a=" + "[" * 3000])
def test_code_that_no_parser_takes_says_nothing(text):
    assert not python_calls.read(Document("x", Path("x"), text + "\nSFTConfig(bf16=True)"))
