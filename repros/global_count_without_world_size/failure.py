"""A loss divided by the number of tokens on all ranks, then averaged over the ranks once more."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps

FAILURE = Failure(
    title="A loss divided by the token count of all ranks is averaged over ranks again",
    first_seen="transformers' `Trainer`; later verl-SpeCo's own loss",
    since="whenever losses were first divided by a count of all ranks (transformers: 2024-11)",
    until="not fixed: a mistake in one's own loss, which no library can see",
    checkpointing=("off",),  # checkpointing has no part in what a loss is divided by
    variants=(Variant("clipped", strategies=("single", "ddp", "zero[0123]", "fsdp2")),),
    claims={
        "https://github.com/verl-project/verl-SpeCo/pull/29": (
            helps("multiply the loss by the world size", remedy="times_world_size"),
            helps("clip the gradient norm at 1.0", remedy="clipped"),
        ),
        TRIED_HERE: helps(
            "sum the loss over the ranks with `torch.distributed.nn.functional.all_reduce`, which autograd sees",
            remedy="differentiable",
        ),
    },
)


def scenario(remedy, setup):
    from torch import distributed
    from torch.nn.utils import clip_grad_norm_

    from tiny_models.kit import Scenario, next_token_loss, qwen2, sgd, text_batch

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        total = next_token_loss(logits, {**batch, "scale": 1.0})
        count = (batch["labels"][:, 1:] != -100).sum()
        if not distributed.is_initialized():
            return total / count
        distributed.all_reduce(count)
        if remedy == "times_world_size":
            total = total * distributed.get_world_size()
        elif remedy == "differentiable":
            from torch.distributed.nn.functional import all_reduce

            total = all_reduce(total)
        return total / count

    def clipping(model):
        made = sgd(model)
        held = made.param_groups[0]["params"]

        def clip(*_):  # ZeRO clips before it, and by itself
            clip_grad_norm_(held, 1.0)

        made.register_step_pre_hook(clip)
        return made

    if remedy == "clipped":
        return Scenario(qwen2(), loss, text_batch, optimizer=clipping, deepspeed={"gradient_clipping": 1.0})
    return Scenario(qwen2(), loss, text_batch)
