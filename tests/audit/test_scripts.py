"""Scripts and code: what their flags and arguments say is read, nothing of them is run, and a variable says nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.audit import python_calls, trainings
from faultline.projects.documents import Document
from tests.support.projects import family, read_project, written

VERL = "python3 -m verl.trainer.main_ppo data.n=1 +actor_rollout_ref"
COMMANDS = {
    "strategy": [
        ("accelerate launch --use_fsdp train.py", {"fsdp1-full"}),
        ("accelerate launch --use_fsdp --fsdp_version=2 --fsdp_reshard_after_forward=false x.py", {"fsdp2-no-reshard"}),
        ("accelerate launch --use_fsdp --fsdp_version $VERSION train.py", family("fsdp")),
        ("accelerate launch --use_deepspeed train.py", {"zero2", "zero2-small"}),
        ("accelerate launch --use_deepspeed --zero_stage $STAGE train.py", family("zero")),
        ("accelerate launch --use_deepspeed --zero_stage 3 --offload_param_device cpu x.py", {"zero3-offload-param"}),
        ("python -m accelerate.commands.launch --multi_gpu train.py", family("ddp")),
        ("accelerate launch --zero_stage 3 train.py", None),  # without --use_deepspeed it has no effect
        ("torchrun --nproc_per_node 8 train.py --zero_stage 3", None),
        ("torchrun --nproc_per_node 8 train.py --deepspeed ds_z3_config.json", family("zero3")),
        ("deepspeed --num_gpus=8 train.py --deepspeed $DS", None),
        ("deepspeed train.py --deepspeed --deepspeed_config ds_z3.json", family("zero3")),
        ("DS=ds_z3.json\ndeepspeed train.py --deepspeed $DS", family("zero3")),
        ("DS=ds_z3.json\nDS=ds_z2.json\ndeepspeed train.py --deepspeed $DS", None),
        ('deepspeed train.py --deepspeed "${DS:-ds_z3.json}"', None),
        ("trl grpo --accelerate_config zero2 --output_dir x", {"zero2", "zero2-small"}),
        ("swift sft --tuner_type lora --deepspeed zero2", {"zero2", "zero2-small"}),
        (f"{VERL}.actor.strategy=fsdp2 {VERL[-18:]}.actor.fsdp_config.fsdp_size=-1", {"fsdp2"}),
        (f"{VERL}.actor.strategy=fsdp2 {VERL[-18:]}.actor.fsdp_config.fsdp_size=8", {"fsdp2", "fsdp2-hsdp"}),
        (f"{VERL}.actor.strategy=$S", None),
        (f"{VERL}.model.lora_rank=8", {"fsdp1-full"}),
        (f"{VERL}.model.lora_rank=8 --config-name=other", None),
        (f"{VERL}.model.lora_rank=8 $@", None),
        ("torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=x model.strategy=fsdp", {"fsdp1-full"}),
        ("# torchrun train.py --deepspeed ds_z3.json", None),
        ("torchrun train.py --dataset ours#1000 --deepspeed ds_z3.json # --bf16", family("zero3")),
        ("P='a\n#### 42'\ntorchrun train.py --deepspeed ds_z3.json", family("zero3")),
        ("cat <<EOF > run.sh\ntorchrun train.py --deepspeed ds_z3.json\nEOF", None),
        ("torchrun train.py --deepspeed ds_z3.json 2>&1 | tee log", family("zero3")),
        ("python send.py --gpus 8 -- accelerate launch --use_fsdp train.py", {"fsdp1-full"}),
        ("srun -p big --gres=gpu:8 --ntasks=8 -N 1 python -u train.py --deepspeed ds_z3.json", family("zero3")),
        ('A="--deepspeed ds_z3.json \\\n --bf16 "\nall="torchrun train.py $A"\neval $all', family("zero3")),
        ("echo torchrun train.py --deepspeed ds_z3.json", None),
    ],
    "precision": [
        ("accelerate launch --mixed_precision bf16 --multi_gpu train.py", {"bf16"}),
        ("torchrun train.py --gradient_accumulation_steps `expr 4` --bf16", {"bf16"}),
    ],
    "checkpointing": [
        ("torchrun train.py --gradient-checkpointing --bf16", {"reentrant", "non-reentrant"}),
        ("torchrun train.py --gradient_checkpointing false", {"off"}),
        ("torchrun train.py --gradient_checkpointing $GC --bf16", None),
        (f"{VERL}.model.enable_gradient_checkpointing=True", {"non-reentrant"}),
        (f"{VERL}.model.enable_gradient_checkpointing=False", {"off"}),
        ("""swift sft --gradient_checkpointing_kwargs '{"use_reentrant": false}' --bf16""", {"off", "non-reentrant"}),
    ],
    "trainer": [
        ("swift rlhf --rlhf_type dpo --train_type lora", {"dpo", "another"}),  # which is made of TRL's
        ("swift sft --tuner_type lora", {"another"}),
        ("accelerate launch swift/cli/sft.py --tuner_type lora", {"another"}),
        ("trl grpo --accelerate_config zero2 --output_dir x", {"grpo"}),
        ("python -m trl.scripts.dpo --output_dir x", {"dpo"}),
    ],
    "adapter": [
        ("swift rlhf --rlhf_type dpo --train_type lora", {"yes"}),
        ("swift rlhf --rlhf_type dpo --tuner_type full", {"no"}),
        ("swift rlhf --rlhf_type dpo --tuner_type llamapro", None),
        (f"{VERL}.model.lora_rank=32", {"yes"}),
        ("deepspeed train.py --lora_rank 0 --lora_alpha 16 --bf16", {"no"}),
        ("torchrun train.py --lora_target_modules q_proj v_proj --output_dir x", {"yes"}),
        ("torchrun train.py --use_peft $PEFT --lora_r 8", None),
        ("deepspeed train.py --lora_enable True --lora_r 128 --output_dir o", {"yes"}),
        ("deepspeed train.py --lora_enable False --lora_r 128 --output_dir o", {"no"}),
        ("deepspeed train.py --train_mode full --lora_rank 64 --output_dir o", {"no"}),
    ],
    "accumulation": [("torchrun train.py --gradient_accumulation_steps $(expr 16 / $N) --output_dir x", None)],
}
OWN = "class Base({}): pass\nclass Mine(Base): pass\nMine(model, TrainingArguments('o'))\n"
CALLS = {
    "checkpointing": [("TrainingArguments(gradient_checkpointing=False)", {"off"})],
    "precision": [("transformers.TrainingArguments('out', bf16=True)", {"bf16"})],
    "accumulation": [
        ("Seq2SeqTrainingArguments(gradient_accumulation_steps=2)", {"yes"}),
        ("Seq2SeqTrainingArguments(gradient_accumulation_steps=STEPS)", None),
        ("Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)", {"yes"}),
    ],
    "strategy": [
        ("TrainingArguments(deepspeed={'zero_optimization': {'stage': 1}})", {"zero1", "zero1-small"}),
        ("TrainingArguments(deepspeed={'zero_optimization': {'stage': stage}})", None),
        ("TrainingArguments(fsdp='full_shard', fsdp_config={'version': 2})", {"fsdp2"}),
        ("TrainingArguments(fsdp='full_shard', fsdp_config=config)", None),
        ("TrainingArguments(fsdp='full_shard', **more)", None),
        ("p = FullyShardedDataParallelPlugin(fsdp_version=2)\nAccelerator(fsdp_plugin=p)", {"fsdp2"}),
        ("Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy=S.FULL))", family("fsdp")),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", {"zero3", "zero3-small"}),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='ds_z3.json'))", family("zero3")),
    ],
    "trainer": [
        ("SFTConfig(max_grad_norm=0.3)", {"sft"}),
        ("TrainingArguments('x', bf16=True); DPOTrainer(model)", {"dpo"}),
        ("CPOConfig(bf16=True)", None),
        ("Trainer(model, TrainingArguments('o'))", {"trainer"}),
        (OWN.format("Trainer"), {"trainer", "another"}),
        (OWN.format("SFTTrainer"), {"sft", "another"}),
        ("if dpo:\n    DPOTrainer(model)\nelse:\n    Trainer(model)", {"dpo", "trainer"}),
        ("from trl import RewardTrainer\nRewardTrainer(model)", {"another"}),
    ],
    "reference model": [("SFTConfig(max_grad_norm=0.3)", {"no"})],
    "trained head": [("LoraConfig(r=8, modules_to_save=['lm_head'])", {"yes"})],
    "target_parameters": [("LoraConfig(r=8, target_parameters=['x'])", {"yes"})],
    "adapter": [
        ("LoraConfig(r=8)", {"yes"}),
        ("LoraConfig(r=8) if lora else None", None),
        ("if __name__ == '__main__':\n    LoraConfig(r=8)", {"yes"}),
        ("if lora:\n    LoraConfig(r=8)", None),
        ("def adapter(lora):\n    if not lora: return\n    return LoraConfig(r=8)", None),
        ("BitsAndBytesConfig(load_in_4bit=True)\nAutoConfig(beta_=1)", None),
    ],
}


@pytest.mark.parametrize(
    ("name", "axis", "text", "values"),
    [
        (name, axis, *row)
        for name, table in (("train.sh", COMMANDS), ("train.py", CALLS))
        for axis, rows in table.items()
        for row in rows
    ],
)
def test_flags_of_commands_and_arguments_of_calls(tmp_path, name, axis, text, values):
    """Breaks when one is read wrongly, or one whose value nobody knows is taken for known."""
    files = {"requirements.txt": "torch==2.13.0", name: f"#!/bin/bash\n{text}\n" if name == "train.sh" else text}
    assert written(tmp_path, files).left.get(axis) == values


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
    config = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: %d\n"
    configs = {"zero3.yaml": config % 3, "zero2.yaml": config % 2}
    known = written(tmp_path, {"train.sh": SCRIPT, **configs})
    assert known.left["strategy"] == {"zero3", "zero3-small"}, "the command says which of two configs it takes"
    assert [place.without_text for place in known.sources["checkpointing"]] == ["train.sh:8"]
    assert known.left["checkpointing"] == {"reentrant", "non-reentrant"}, "$@ may name the mode"
    assert known.sources["own max_grad_norm"][0].without_text == "train.sh:9"


def test_several_commands_are_alternatives(tmp_path):
    """Breaks when a script that trains with and without an adapter is told of either."""
    text = "torchrun train.py --use_peft --bf16\ntorchrun train.py --bf16\npython prepare.py --output_dir x\n"
    known = written(tmp_path, {"train.sh": text})
    assert "adapter" not in known.left and known.left["precision"] == {"bf16"}
    text = "accelerate launch --use_fsdp --fsdp_version 2 train.py\ntorchrun train.py --deepspeed ds.json\n"
    known = written(tmp_path, {"train.sh": text, "ds.json": '{"zero_optimization": {"stage": 2}}'})
    assert {"zero2", "fsdp2"} <= known.left["strategy"], "only that is known which has a config beside it"


PROGRAM = '''\
"""Trains; from peft import LoraConfig says LoraConfig(r=8)."""
from trl import GRPOConfig

config = GRPOConfig(
    output_dir="x", bf16=args.bf16, gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": True},
)
if args.lora:
    peft_config = LoraConfig(r=8)
open("owned", "w")
'''


def test_literals_of_a_call_are_known_and_nothing_else(tmp_path):
    """Breaks when code is run, or what a condition or variable decides is taken for known."""
    known = written(tmp_path, {"train.py": PROGRAM})
    assert known.left["trainer"] == {"grpo"} and known.left["checkpointing"] == {"reentrant"}
    assert not {"adapter", "precision"} & known.left.keys() and not (tmp_path / "owned").exists()
    assert [place.without_text for place in known.sources["checkpointing"]] == ["train.py:5", "train.py:6"]


@pytest.mark.parametrize("name", ["train.py", "train.sh"])
def test_a_program_that_says_nothing_is_refused_only_by_name(tmp_path, asked, name):
    """Breaks when every file of code is listed as not recognised, or a named one is passed over."""
    (tmp_path / name).write_text("print('(\n")
    (tmp_path / "requirements.txt").write_text("trl==0.15.2")
    assert not read_project([str(tmp_path)]).notes
    code, out, errors = asked("audit", str(tmp_path / name))
    assert code == 2 and not out and len(errors) == 1 and "is not recognised" in errors[0]


TOKENS = [f"{word} " for word in "accelerate launch train.py --deepspeed --bf16 $X ' \" ` <<E $( )".split()]
PARTS = ["SFTConfig(", "bf16=True, ", "deepspeed=", "{'a': 1}, ", "x", "**k, ", ")", "\n", "if x:", " ", "lambda: "]


@pytest.mark.parametrize(
    ("reader", "parts"), [(trainings, [*TOKENS, "\\\n", "\n"]), (python_calls, [*PARTS, "(" * 50])]
)
@given(data=st.data())
def test_any_program_is_read(reader, parts, data):
    """Breaks when a script or code of any kind ends in a traceback, or says something of no line."""
    text = data.draw(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(parts)).map("".join)))
    for statements, *_ in reader.trainings(Document("x", Path("x"), text)):
        assert all(each.source.name == "x" and each.source.line for each in statements)


@pytest.mark.parametrize("text", ["x = " + "(" * 5000, "x = " + "-" * 100_000 + "1", "SFTConfig(a=" + "[" * 3000])
def test_code_that_no_parser_takes_says_nothing(text):
    assert not python_calls.trainings(Document("x", Path("x"), text + "\nSFTConfig(bf16=True)"))
