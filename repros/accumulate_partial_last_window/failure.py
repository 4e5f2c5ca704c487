"""The last accumulation window of an epoch has fewer micro-batches, and is divided by the number of a whole one."""

from contextlib import contextmanager, nullcontext

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

ACCELERATE = "https://github.com/huggingface/accelerate/issues/1847"
TRAINER = "https://github.com/huggingface/transformers/pull/39659"
MINIMIND = "https://github.com/jingyaogong/minimind/issues/749"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
OWN = ("single", "ddp", "fsdp2")  # where a loop of one's own has the gradients of all parameters
MICRO = 2  # micro-batches of a window
EPOCH = 5  # micro-batches of the epoch
AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}

FAILURE = Failure(
    title="The short last accumulation window of an epoch is divided by the full count",
    first_seen="transformers' `Trainer`, and loops with accelerate's `accumulate`",
    since="2022, when accelerate first had `accumulate`",
    until="not fixed in accelerate; transformers' `Trainer` divides by what the window has",
    upstream="huggingface/accelerate",
    checkpointing=("off",),  # which has no part in how a loss is scaled
    variants=(
        Variant("broken", strategies=SOME),
        Variant("by_hand_broken", "", OWN, text="in a loop of one's own, which steps once more at the end"),
        *variants("scaled across even", "", SOME),
        Variant("gradients_scaled", "", OWN),
        Variant("own_loss", "trainer", SOME, text="transformers' `Trainer`, whose loss is the mean of a micro-batch"),
    ),
    claims={
        TRAINER: (
            helps("divide by the micro-batches that the window has", remedy="scaled"),
            trains("transformers' `Trainer`", "trainer-own_loss"),
        ),
        MINIMIND: helps(
            "gradients times the full count over the real one", "by_hand_broken", remedy="gradients_scaled"
        ),
        ACCELERATE: helps("`sync_with_dataloader=False`: the window ends in the next epoch", remedy="across"),
        TRIED_HERE: helps("an epoch of whole windows, as with more or fewer rows", remedy="even"),
    },
)


def rows_of(number):
    """The rows of a micro-batch, all as long, so that means need no weights."""
    from tiny_models.kit import text_rows

    return [row[:20] for row in text_rows(number)]


def scenario(remedy, setup):
    """Two windows of two micro-batches, and one of one, which the reference weighs as it should."""
    import torch
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, token_batch

    whole = remedy in ("across", "even")
    by_hand = remedy in ("by_hand_broken", "gradients_scaled")
    epoch = EPOCH + 1 if remedy == "even" else EPOCH
    model, batches, seen = qwen2(), [], []

    def prepared():
        rows = [row for number in range(epoch) for row in rows_of(number)]
        loader = DataLoader(rows, len(rows_of(0)) // setup.data_world, collate_fn=torch.tensor)
        return prepare_data_loader(loader, setup.device, put_on_device=True)

    def batch(number, rank, world_size):
        if setup.reference or by_hand:
            return token_batch(rows_of(number % epoch), rank, world_size)
        if not batches or number == epoch:
            batches[:] = [iter(prepared())]
        return token_batch(next(batches[0]).tolist(), 0, 1)

    @contextmanager
    def rescaled():
        yield
        for parameter in model.parameters() if len(seen) == EPOCH else ():
            parameter.grad.mul_(MICRO)

    def loss(model, batch):
        seen.append(1)
        alone = not whole and len(seen) == EPOCH and (setup.reference or remedy == "scaled")
        return causal_lm_loss(model, batch) * (MICRO if alone else 1)

    return Scenario(
        model,
        loss,
        batch,
        accelerate=not by_hand and not setup.reference,
        micro_batches=MICRO,
        last_window=0 if whole else 1,
        by_hand=(lambda model, last: nullcontext()) if by_hand else None,
        around=rescaled if remedy == "gradients_scaled" and not setup.reference else None,
        keywords={"accelerate": {"sync_with_dataloader": False}} if remedy == "across" else {},
    )


def trainer(variant, arguments, setup):
    """The reference has the rows of a window in one batch."""
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from faultline.trainers import changed_config
    from tiny_models.kit import causal_lm_loss, qwen2, token_dataset, tokenizer

    class OwnLoss(Trainer):
        loss_is_scaled_for_ga = variant.remedy != "own_loss"

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            tokens = (inputs["labels"][:, 1:] != -100).sum()
            return causal_lm_loss(model, {**inputs, "scale": 1 / tokens})

    rows = [row for number in range(EPOCH) for row in rows_of(number)]
    if setup.reference:
        arguments["per_device_train_batch_size"] *= MICRO
    else:
        arguments = changed_config({**arguments, "gradient_accumulation_steps": MICRO}, AUTO, setup)
    collator, data = DataCollatorForSeq2Seq(tokenizer(padding_side="right")), token_dataset(rows, [0] * len(rows))
    return OwnLoss(qwen2(), TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
