"""A run that resumes with a data loader on the main process alone trains again on what came before the checkpoint."""

from faultline.catalogue import TRIED_HERE, Failure, helps, variants

LOADERS = "https://huggingface.co/docs/accelerate/concept_guides/internal_mechanism"
STREAMED = "https://huggingface.co/docs/datasets/about_mapstyle_vs_iterable"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="With `dispatch_batches`, a resumed run trains again on rows that it had",
    first_seen="`faultline explore`'s findings; no report was found",
    since="accelerate 1.4.0 (the oldest that was tried)",
    until="not fixed: it skips a batch for each step, of which the main process reads one for each rank",
    upstream="huggingface/accelerate",
    checkpointing=("off",),  # which has no part in the order of data
    resumed=True,
    variants=(
        *variants("broken skip_for_each_rank split", "", SOME),
        *variants(
            "broken split streamed shard", "trainer", SOME, text="transformers' `Trainer`, which skips by itself"
        ),
    ),
    claims={
        LOADERS: (
            helps("`split_batches=True`, with the batch size of all ranks", "broken", remedy="split"),
            helps("`split_batches=True`, with the batch size of all ranks", "trainer-broken", variant="trainer-split"),
            helps("`dispatch_batches=False`, the default for this", "trainer-broken", variant="trainer-shard"),
        ),
        STREAMED: helps("`to_iterable_dataset()`", "trainer-broken", variant="trainer-streamed"),
        TRIED_HERE: helps(
            "`skip_first_batches` with as many batches as all ranks trained on", "broken", remedy="skip_for_each_rank"
        ),
    },
)


def scenario(remedy, setup):
    """An epoch of five steps, of which two were trained on; all rows are as long, so that means need no weights."""
    import torch
    from accelerate import PartialState, skip_first_batches
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_rows, token_batch

    rows = [row[:20] for step in range(5) for row in text_rows(step)]
    split, skipped = remedy == "split", setup.data_world if remedy == "skip_for_each_rank" else 1
    loader = DataLoader(rows, len(text_rows(0)) // (1 if split else setup.data_world), collate_fn=torch.tensor)
    batches = []

    def dispatched(number):
        PartialState(cpu=setup.device.type == "cpu")  # by which the data loader knows its ranks
        ready = prepare_data_loader(
            loader, setup.device, split_batches=split, put_on_device=True, dispatch_batches=True
        )
        return skip_first_batches(ready, number * skipped)

    def batch(number, rank, world_size):
        if not batches:  # the loop begins, with step 0 or with the one that is resumed
            batches.append(iter(loader if setup.reference else dispatched(number)))
        return token_batch(next(batches[0]).tolist(), 0, 1)

    return Scenario(qwen2(), causal_lm_loss, batch)


def trainer(variant, arguments, setup):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from faultline.trainers import changed_config
    from tiny_models.kit import qwen2, text_rows, token_dataset, tokenizer

    rows = [row[:20] for step in range(5) for row in text_rows(step)]  # what is dispatched is as long
    data = token_dataset(rows, [0] * len(rows))
    if variant.remedy == "split":
        whole = arguments["per_device_train_batch_size"] * setup.data_world
        arguments = changed_config(arguments, {"train_micro_batch_size_per_gpu": whole}, setup)
        arguments["per_device_train_batch_size"] = whole
    if variant.remedy == "streamed":
        data = data.to_iterable_dataset()
    loading = {"dispatch_batches": variant.remedy != "shard", "split_batches": variant.remedy == "split"}
    arguments |= {"accelerator_config": loading}
    collator = DataCollatorForSeq2Seq(tokenizer(padding_side="right"))
    return Trainer(qwen2(), TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
