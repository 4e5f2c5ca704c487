"""Plans of parallelism, read by one process: what is wrong in one is named, and nothing of one that is right."""

import json

import pytest

from lab.proofs import plan_lint
from lab.proofs.plan_lint import candidates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cls", "entry", "style", "found"),
    [
        ("qwen3", "Qwen3ForCausalLM", "", "", []),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "", "", []),
        (
            "qwen3",
            "Qwen3ForCausalLM",
            "model.layers.*.self_attn.k_norm",
            "replicate",
            ["partial gradient: model.layers.*.self_attn.k_norm.weight"],
        ),
        (
            "qwen3",
            "Qwen3ForCausalLM",
            "model.layers.*.self_attn.o_norm",
            "replicate",
            ["no module: model.layers.*.self_attn.o_norm (replicate)"],
        ),
        (
            "llama",
            "LlamaForCausalLM",
            "model.layers.*.input_layernorm.weight",
            "replicated_with_grad_allreduce",
            ["summed, but whole: model.layers.*.input_layernorm.weight"],
        ),
        (
            "phi3",
            "Phi3ForCausalLM",
            "model.layers.*.mlp.gate_up_proj",
            "colwise",
            ["along a part: model.layers.*.mlp.gate_up_proj is cut in parts"],
        ),
    ],
)
def test_a_seeded_fault_of_a_plan_is_named(kind, cls, entry, style, found, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, "architectures": [cls]}))
    model = plan_lint.ready(plan_lint.tiny(file), {})
    model._tp_plan |= {entry: style} if entry else {}
    assert [*candidates(model)] == found
