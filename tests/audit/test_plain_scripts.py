"""Scripts as the tutorials have them: what nothing in them shows is never certain."""

import pytest

from faultline.audit import project
from faultline.audit.conditions import findings

SCRIPT = """
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", gradient_checkpointing=True, {deepspeed}
                 gradient_checkpointing_kwargs={{"use_reentrant": True}})
SFTTrainer(model="Qwen/Qwen2-0.5B", args=args, train_dataset=data, peft_config=LoraConfig(r=8)).train()
"""
DEEPSPEED = '{"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}'
DDP = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
PINS = "torch==2.13.0 transformers==5.23.0 trl==1.16.0 peft==0.21.2 accelerate==1.15.0 deepspeed==0.19.8"


@pytest.mark.parametrize("strategy", ["zero2", "ddp"])
def test_nothing_is_certain_of_reentrant_checkpointing_with_an_adapter(tmp_path, strategy):
    """Breaks when a failure that takes a loss or a model of one's own is certain where a script has neither."""
    (tmp_path / "requirements.txt").write_text(PINS.replace(" ", "\n"))
    (tmp_path / "train.py").write_text(SCRIPT.format(deepspeed='deepspeed="ds.json",' if strategy == "zero2" else ""))
    (tmp_path / "ds.json" if strategy == "zero2" else tmp_path / "accelerate.yaml").write_text(
        DEEPSPEED if strategy == "zero2" else DDP
    )
    read = project.read_project([str(tmp_path)])
    assert strategy in read.left["strategy"]
    assert not [finding.failure.name for finding in findings(read) if finding.certain]
