"""Tensor parallelism in transformers sums the accumulated gradient of `q_norm` and `k_norm` again at each backward."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps, trains, variants

SHARDED = ("tp", "tp-ep", "fsdp-tp")
SOME = ("single", "ddp", "native-fsdp", *SHARDED)

FAILURE = Failure(
    title="Gradient accumulation counts some norms again under tensor parallelism",
    first_seen="`faultline prove models`: Qwen3 and 17 other model types of transformers 5.24",
    since="transformers 5.16, whose plans have `replicated_with_grad_allreduce`",
    until="not fixed in 5.24.0",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in how micro-batches are added up
    variants=(
        *variants("broken", strategies=SOME),
        *variants("one_backward repaired", "", ("single", *SHARDED)),
        Variant("one_micro_batch", strategies=("single", *SHARDED), text="the same without accumulation"),
        Variant("broken", "sft", ("single", "tp"), text="in TRL's `SFTTrainer`, with `gradient_accumulation_steps=2`"),
    ),
    claims={
        TRIED_HERE: (
            fails("accumulation over two micro-batches under tensor parallelism", "*broken/tp"),
            trains("one micro-batch a step", "one_micro_batch"),
            helps("one backward pass of the mean of the losses", remedy="one_backward"),
            helps("a hook that sums what a backward pass brings, before it is added", remedy="repaired"),
        ),
    },
)


def repair():
    """Let the plan's hook sum the new gradient, not what the parameter has by then."""
    from torch import distributed
    from transformers.distributed.tensor_parallel import ReplicatedWithGradAllReduce

    def install_forward(self, module, mesh):
        forward, hooked = module.forward, set()

        def summed(gradient):
            gradient = gradient.clone()
            distributed.all_reduce(gradient, group=mesh.get_group())
            return gradient

        def tp_forward(*args, **kwargs):
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and parameter not in hooked:
                    parameter.register_hook(summed)
                    hooked.add(parameter)
            return forward(*args, **kwargs)

        module.forward = tp_forward
        return module

    ReplicatedWithGradAllReduce.install_forward = install_forward


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, text_batch
    from tiny_models.qwen3_moe import qwen3_moe

    if remedy == "repaired" and setup.strategy in SHARDED:
        repair()

    def loss(model, both):
        return sum(causal_lm_loss(model, batch) for batch in both) / len(both)

    def batch(number, rank, world_size):
        numbers = (2 * number, 2 * number + 1) if remedy == "one_backward" else (number,)
        return [text_batch(each, rank, world_size) for each in numbers]

    together = remedy in ("one_backward", "one_micro_batch")
    return Scenario(qwen3_moe(), loss, batch, micro_batches=1 if together else 2)


def trainer(variant, arguments, setup):
    from tiny_models.kit import sft_trainer
    from tiny_models.qwen3_moe import qwen3_moe

    return sft_trainer(qwen3_moe(), {**arguments, "gradient_accumulation_steps": 2})
