"""A parameter that every tensor-parallel rank has whole, applied to a shard of the features: its gradient is a part."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/issues/3857"
TP = ("tp", "fsdp-tp")
SUMMED = "replicated_with_grad_allreduce"

FAILURE = Failure(
    title="Each tensor-parallel rank trains a whole parameter on its part of the features",
    first_seen="Apertus, whose activation xIELU has two trained numbers, between `up_proj` and `down_proj`",
    since="Apertus' first tensor-parallel plan, which doesn't name the activation",
    until="not fixed (transformers 5.24.0)",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in which gradients are summed
    variants=(
        Variant("broken", strategies=("single", "ddp", "zero2", "zero3", "fsdp2", "native-fsdp", *TP)),
        *variants("planned", strategies=("single", *TP)),
        *variants("summed averaged", strategies=("single", "tp")),
        Variant("norms", strategies=("single", "tp"), text="GLM-4.5, with norms of query and key"),
        Variant("norms_planned", strategies=("single", "tp"), text="the same, with the norms in its plan"),
        Variant("plain_activation", strategies=TP, text="the same model with SiLU, which has no parameters"),
    ),
    claims={
        AUTOMODEL: (
            helps("sum the gradient over the ranks, before the step", "broken/tp", remedy="summed"),
            helps("average the gradient over the ranks, before the step", "broken/tp", remedy="averaged"),
        ),
        TRIED_HERE: (
            helps(
                '`"layers.*.mlp.act_fn": "replicated_with_grad_allreduce"` in the plan', "broken/tp*", remedy="planned"
            ),
            helps("the same for the norms of query and key", "norms/tp", variant="norms_planned", key="norms_planned"),
            helps("FSDP instead of tensor parallelism", "broken/tp", strategy="native-fsdp"),
            trains("an activation without parameters", "plain_activation"),
        ),
    },
)


def apertus(activation="xielu", planned=False):
    """About 20k parameters."""
    from transformers import ApertusConfig, ApertusForCausalLM

    from tiny_models import build
    from tiny_models.tokenizer import VOCAB_SIZE

    if planned:
        ApertusConfig.base_model_tp_plan = ApertusConfig.base_model_tp_plan | {"layers.*.mlp.act_fn": SUMMED}
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    config = ApertusConfig(**sizes, **layers, hidden_act=activation, use_cache=False, dtype="float32")
    return build(lambda: ApertusForCausalLM(config), 0)


def glm(planned=False):
    """GLM-4.5 in small, which has norms of each head's query and key."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    from tiny_models import build
    from tiny_models.tokenizer import VOCAB_SIZE

    if planned:
        norms = {f"layers.*.self_attn.{name}": SUMMED for name in ("q_norm", "k_norm")}
        Glm4MoeConfig.base_model_tp_plan = Glm4MoeConfig.base_model_tp_plan | norms
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    config = Glm4MoeConfig(**sizes, **heads, **experts, num_hidden_layers=2, use_qk_norm=True, use_cache=False)
    return build(lambda: Glm4MoeForCausalLM(config), 0)


def reduce_gradients(model, divided):
    """All ranks add up their gradients of the activation's parameters as soon as they have them."""
    from torch import distributed

    def reduce(parameter):
        distributed.all_reduce(parameter.grad)
        if divided:
            parameter.grad /= distributed.get_world_size()

    for name, parameter in model.named_parameters():
        if "act_fn" in name:
            parameter.register_post_accumulate_grad_hook(reduce)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, text_batch

    planned = remedy.endswith("planned")
    if remedy.startswith("norms"):
        model = glm(planned)
    else:
        model = apertus("silu" if remedy == "plain_activation" else "xielu", planned)
    if remedy in ("summed", "averaged") and setup.strategy == "tp":
        reduce_gradients(model, divided=remedy == "averaged")
    return Scenario(model, causal_lm_loss, text_batch)
