"""Each rank divides by its own tokens, and engines average over ranks: where counts differ, tokens weigh unlike."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

FIX = "https://github.com/PrimeIntellect-ai/prime-rl/pull/1960"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="A mean over each rank's own tokens weighs tokens unlike where counts differ",
    first_seen="transformers' `Trainer`; later the SFT loss of prime-rl",
    since="whenever losses were first averaged over ranks",
    until="transformers 4.54, on by default; not fixed in a loss of one's own, which no library can see",
    checkpointing=("off",),  # checkpointing has no part in what a loss is divided by
    variants=(
        Variant("broken", "", ("single", "ddp", "zero[0123]", "fsdp1-full", "fsdp2")),
        *variants("counted equal clipped", strategies=SOME),
        Variant("broken", "sft", SOME, text="`average_tokens_across_devices=False`"),
        Variant("across", "sft", SOME),
    ),
    claims={
        FIX: helps("the sum times the number of ranks, divided by the tokens of all ranks", "broken", remedy="counted"),
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/1961": helps(
            "as many tokens on each rank", "broken", remedy="equal"
        ),
        "https://github.com/huggingface/transformers/pull/39395": helps(
            "`average_tokens_across_devices=True`", "sft-broken", remedy="across"
        ),
        TRIED_HERE: helps("clip the gradient norm at 1.0", "broken", remedy="clipped"),
    },
)


def scenario(remedy, setup):
    from torch import distributed
    from torch.nn.utils import clip_grad_norm_

    from tiny_models.kit import Scenario, next_token_loss, qwen2, sgd, text_batch, text_rows, token_batch

    def loss(model, batch):
        total = next_token_loss(model(input_ids=batch["input_ids"]).logits, {**batch, "scale": 1.0})
        count = (batch["labels"][:, 1:] != -100).sum()
        if remedy == "counted" and distributed.is_initialized():
            distributed.all_reduce(count)
            total = total * distributed.get_world_size()
        return total / count

    def equal_rows(number, rank, world_size):
        return token_batch([row[:20] for row in text_rows(number)], rank, world_size)

    def clipping(model):
        made = sgd(model)
        held = made.param_groups[0]["params"]

        def clip(*_):  # ZeRO clips before it, and by itself
            clip_grad_norm_(held, 1.0)

        made.register_step_pre_hook(clip)
        return made

    if remedy == "clipped":
        return Scenario(qwen2(), loss, text_batch, optimizer=clipping, deepspeed={"gradient_clipping": 1.0})
    return Scenario(qwen2(), loss, equal_rows if remedy == "equal" else text_batch)


def trainer(variant, arguments, setup):
    from tiny_models.kit import qwen2, sft_trainer

    return sft_trainer(qwen2(), {**arguments, "average_tokens_across_devices": variant.remedy == "across"})
