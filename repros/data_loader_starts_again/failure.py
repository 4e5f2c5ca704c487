"""A loop that loads its checkpoint and iterates its data loader trains again on what came before the checkpoint."""

from faultline.catalogue import Failure, helps, variants

ACCELERATE = "https://github.com/huggingface/accelerate/issues/1130"
TRAINER = "https://github.com/huggingface/transformers/pull/8878"
TORCH = "https://docs.pytorch.org/docs/stable/data.html"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="After resuming in the middle of an epoch, the data loader starts again",
    first_seen="loops with accelerate's `load_state`, and EasyR1's `_save_checkpoint`",
    since="whenever a loop was first resumed in the middle of an epoch",
    until="not fixed: a loop of one's own has to skip; nobody warns of it",
    checkpointing=("off",),  # which has no part in the order of data
    resumed=True,
    variants=(
        *variants("broken skip set_epoch", "", SOME),
        *variants("broken skip", "trainer", SOME, text="transformers' `Trainer`, resumed by `resume_from_checkpoint`"),
    ),
    claims={
        ACCELERATE: helps("`accelerate.skip_first_batches` with the steps of this epoch", "broken", remedy="skip"),
        TORCH: helps("`sampler.set_epoch` with the epoch that is resumed", "broken", remedy="set_epoch"),
        TRAINER: helps("`ignore_data_skip=False`, the default", "trainer-broken", variant="trainer-skip"),
    },
)


def scenario(remedy, setup):
    """An epoch of five steps, of which two were trained on; all rows are as long, so that means need no weights."""
    from accelerate import skip_first_batches
    from torch.utils.data import DataLoader, DistributedSampler

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_rows, token_batch

    rows = [row[:20] for step in range(5) for row in text_rows(step)]
    sampler = DistributedSampler(rows, setup.data_world, setup.data_rank, seed=3)
    share = len(text_rows(0)) // setup.data_world
    loader = DataLoader(rows, share, sampler=sampler, collate_fn=lambda part: token_batch(part, 0, 1))
    batches = []

    def batch(number, rank, world_size):
        if not batches:  # the loop begins, with step 0 or with the one that is resumed
            if remedy == "set_epoch":
                sampler.set_epoch(0)
            batches.append(iter(skip_first_batches(loader, number) if remedy == "skip" else loader))
        return next(batches[0])

    return Scenario(qwen2(), causal_lm_loss, batch)


def trainer(variant, arguments, setup):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from tiny_models.kit import qwen2, text_rows, token_dataset, tokenizer

    rows = [row for step in range(5) for row in text_rows(step)]
    arguments |= {"ignore_data_skip": variant.remedy == "broken"}
    collator, data = DataCollatorForSeq2Seq(tokenizer(padding_side="right")), token_dataset(rows, [0] * len(rows))
    return Trainer(qwen2(), TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
