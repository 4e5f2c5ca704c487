"""A `compute_loss` of one's own that ignores `num_items_in_batch` trains on gradients times the accumulation steps."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

TRL = "https://github.com/huggingface/trl/pull/3938"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
EQUAL, TRAINER = "trainer-equal_lengths", "trainer-broken"
AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
MICRO = 2  # micro-batches of a step; every second one has only short rows


def in_equal_lengths(what, remedy):
    text = f"{what}, where all micro-batches have as many tokens"
    return helps(text, EQUAL, variant=f"trainer-{remedy}_equal_lengths")


FAILURE = Failure(
    title="A loss that ignores `num_items_in_batch` grows with the accumulation steps",
    first_seen="TRL's DPO trainer, and custom `compute_loss` methods of transformers' `Trainer`",
    since="transformers 4.46",
    until="not fixed: it is the contract of `compute_loss`, and nothing warns of a loss that doesn't keep it",
    checkpointing=("off",),  # checkpointing has no part in how a loss is scaled
    also_raises=("static-graph-no-sync",),  # DDP's static graph and `no_sync`, whatever the model
    variants=(
        Variant("broken", trainer="trainer", strategies=("single", "ddp", "zero*", "fsdp1-full", "fsdp2")),
        *variants("default_loss num_items flag scaled_flag clip lower_lr", "trainer", SOME),
        Variant("equal_lengths", "trainer", SOME, text="the failure, where all micro-batches have as many tokens"),
        *variants("flag_equal_lengths scaled_flag_equal_lengths lower_lr_equal_lengths", "trainer", SOME),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/6478": helps(
            "divide by `num_items_in_batch`, and multiply by the number of ranks, for it counts the tokens of all",
            remedy="num_items",
        ),
        "https://github.com/huggingface/trl/pull/5710": (
            helps("`trainer.model_accepts_loss_kwargs = False`, where token counts differ", TRAINER, remedy="flag"),
            in_equal_lengths("`trainer.model_accepts_loss_kwargs = False`", "flag"),
        ),
        "https://huggingface.co/docs/transformers/main_classes/trainer": (
            helps("`trainer.loss_is_scaled_for_ga = False`, where token counts differ", TRAINER, remedy="scaled_flag"),
            in_equal_lengths("`trainer.loss_is_scaled_for_ga = False`", "scaled_flag"),
        ),
        TRL: helps("divide the mean by the micro-batches in the loss, where token counts differ", remedy="divide"),
        TRIED_HERE: (
            helps("the `compute_loss` of the trainer itself is right", TRAINER, remedy="default_loss"),
            helps("`max_grad_norm`", TRAINER, remedy="clip"),
            helps(
                "a learning rate divided by the accumulation steps, where token counts differ",
                TRAINER,
                remedy="lower_lr",
            ),
            helps(
                "a learning rate divided by the accumulation steps, with SGD and as many tokens in all micro-batches",
                EQUAL,
                variant="trainer-lower_lr_equal_lengths",
            ),
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism: micro-batches of unequal token counts, and a loop that leaves the division to the loss."""
    from tiny_models.kit import Scenario, next_token_loss, qwen2, text_rows, token_batch

    def rows_of(number):
        return [row[:6] for row in text_rows(number)] if number % MICRO else text_rows(number)

    def batch(number, rank, world_size):
        of_all = sum(len(row) - 1 for each in range(MICRO) for row in rows_of(number - number % MICRO + each))
        return {**token_batch(rows_of(number), rank, world_size), "num_items": of_all}

    def loss(model, batch):
        summed = next_token_loss(model(input_ids=batch["input_ids"]).logits, batch) / batch["scale"]
        if remedy == "num_items" or setup.reference:
            return summed * setup.data_world / batch["num_items"] * MICRO  # the loop divides by them
        mean = summed / (batch["labels"][:, 1:] != -100).sum()
        return mean if remedy == "divide" else mean * MICRO

    return Scenario(qwen2(), loss, batch, micro_batches=MICRO)


def trainer(variant, arguments, setup):
    """Transformers' own trainer, with the loss that a user writes; the reference has one micro-batch and is right."""
    from torch.nn.functional import cross_entropy
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from faultline.trainers import changed_config
    from tiny_models.kit import Impossible, qwen2, text_rows, token_dataset, tokenizer

    class Custom(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")[:, 1:].flatten()
            logits = model(**inputs).logits[:, :-1].flatten(0, 1).float()
            if variant.remedy != "num_items":
                return cross_entropy(logits, labels)
            summed = cross_entropy(logits, labels, reduction="sum")
            return summed / num_items_in_batch * self.accelerator.num_processes

    equal = "equal" in variant.remedy
    rows = [row[:20] if equal else row for step in range(3) for row in text_rows(step)]
    # Every second row is trained on in its last three tokens only, unless all have as many.
    data = token_dataset(rows, [len(row) - 3 if number % 2 and not equal else 0 for number, row in enumerate(rows)])
    if not setup.reference:
        size = arguments["per_device_train_batch_size"] // MICRO
        if not size:
            raise Impossible("a rank has one row of the global batch: there is nothing to accumulate")
        arguments |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": MICRO}
        if variant.remedy.startswith("lower_lr"):
            arguments["learning_rate"] /= MICRO
    norm = 0.5 if variant.remedy == "clip" else 0.0
    arguments = changed_config({**arguments, "max_grad_norm": norm}, {**AUTO, "gradient_clipping": norm}, setup)
    collator = DataCollatorForSeq2Seq(tokenizer(padding_side="right"))
    kind = Trainer if variant.remedy == "default_loss" else Custom
    built = kind(qwen2(), TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
    if variant.remedy.startswith("flag"):
        built.model_accepts_loss_kwargs = False
    if variant.remedy.startswith("scaled_flag"):
        built.loss_is_scaled_for_ga = False
    return built
