"""A learning-rate schedule that accelerate prepared takes a step for each process: it ends N times as early."""

from faultline.catalogue import Failure, Variant, helps, trains, variants

SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
STEPS = 4  # in which the learning rate is to fall to zero

FAILURE = Failure(
    title="A prepared schedule takes a step for each process: the rate falls too fast",
    first_seen="transformers' `run_translation_no_trainer.py`, and diffusers' examples",
    since="2022, when accelerate first prepared a schedule",
    until="not fixed: it expects a schedule in batches of the loader as it was before it was prepared",
    upstream="huggingface/accelerate",
    checkpointing=("off",),  # which has no part in a learning rate
    variants=(
        Variant("broken", strategies=SOME),
        *variants("times_processes unprepared step_alone split_batches", "", SOME),
        Variant("linear", "trainer", SOME, text="transformers' `Trainer` with a linear schedule"),
    ),
    claims={
        "https://github.com/huggingface/transformers/issues/26827": helps(
            "the steps of the schedule times `accelerator.num_processes`", remedy="times_processes"
        ),
        "https://github.com/huggingface/accelerate/issues/2165": (
            helps("don't prepare the schedule, and step it once after the optimizer", remedy="unprepared"),
            helps("`Accelerator(step_scheduler_with_optimizer=False)`", remedy="step_alone"),
        ),
        "https://github.com/huggingface/accelerate/issues/2708": helps(
            "`split_batches=True`, with the batch size of all ranks", remedy="split_batches"
        ),
        "https://github.com/huggingface/transformers/pull/24088": trains("transformers' `Trainer`", "trainer-linear"),
    },
)


def scenario(remedy, setup):
    from dataclasses import replace

    from accelerate.utils import DataLoaderConfiguration
    from torch.optim.lr_scheduler import LambdaLR

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    steps = STEPS * (setup.data_world if remedy == "times_processes" else 1)

    def linear(optimizer):
        return LambdaLR(optimizer, lambda step: max(0, 1 - step / steps))

    def unprepared(wrapped):
        scheduler = linear(wrapped.optimizer)

        def step():
            wrapped.step()
            scheduler.step()

        return replace(wrapped, step=step)

    arguments = {
        "step_alone": {"accelerator": {"step_scheduler_with_optimizer": False}},
        "split_batches": {"accelerator": {"dataloader_config": DataLoaderConfiguration(split_batches=True)}},
    }
    return Scenario(
        qwen2(),
        causal_lm_loss,
        text_batch,
        accelerate=True,
        scheduler=None if remedy == "unprepared" else linear,
        loop=unprepared if remedy == "unprepared" else None,
        keywords=arguments.get(remedy, {}),
    )


def trainer(variant, arguments, setup):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from tiny_models.kit import qwen2, text_rows, token_dataset, tokenizer

    rows = [row for step in range(3) for row in text_rows(step)]
    arguments |= {"lr_scheduler_type": variant.remedy}
    collator, data = DataCollatorForSeq2Seq(tokenizer(padding_side="right")), token_dataset(rows, [0] * len(rows))
    return Trainer(qwen2(), TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
