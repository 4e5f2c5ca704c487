"""A `compute_loss` of one's own that ignores `num_items_in_batch` trains on gradients times the accumulation steps."""

from faultline.catalogue import Claim, Failure, Variant

FLAG = "https://github.com/huggingface/trl/pull/5710"
DOCS = "https://huggingface.co/docs/transformers/main_classes/trainer"

MICRO = 2  # micro-batches of a step; every second one has only short rows
OFF = ("off",)  # checkpointing has no part in how a loss is scaled
ACCUMULATED = ("accumulation",)
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="A custom `compute_loss` that ignores `num_items_in_batch` multiplies gradients by the accumulation steps",
    records=(
        "https://github.com/huggingface/transformers/issues/37766",
        "https://github.com/huggingface/transformers/issues/35856",
        "https://github.com/huggingface/trl/pull/2615",
        FLAG,
        "https://github.com/MakazhanAlpamys/Soup/issues/720",
        "https://github.com/huggingface/trl/pull/6478",
        "https://github.com/modelscope/ms-swift/issues/10117",
        "https://github.com/modelscope/ms-swift/pull/10116",
        "https://github.com/huggingface/trl/issues/5619",
    ),
    since="transformers 4.46",
    until="not fixed: it is the contract of `compute_loss`, and nothing warns of a loss that doesn't keep it",
    report="trainer-broken/*",
    signatures={},
    # DDP's static graph and `no_sync`, whatever the model.
    elsewhere=("static-graph-no-sync",),
    variants=(
        Variant("broken", checkpointing=OFF, package="transformers", needs=ACCUMULATED, look="a loss of one's own"),
        Variant("num_items", checkpointing=OFF),
        Variant("divide", checkpointing=OFF),
        Variant(
            "broken",
            "trainer",
            strategies=("single", "ddp", "zero*", "fsdp1-full", "fsdp2"),
            checkpointing=OFF,
            package="transformers",
            needs=ACCUMULATED,
            look="a `compute_loss` of one's own",
        ),
        *(
            Variant(remedy, "trainer", SOME, checkpointing=OFF)
            for remedy in ("default_loss", "num_items", "flag", "scaled_flag")
        ),
        *(Variant(remedy, "trainer", SOME, checkpointing=OFF) for remedy in ("clip", "lower_lr")),
        *(Variant(remedy, "trainer", SOME, checkpointing=OFF) for remedy in ("equal_lengths", "flag_equal_lengths")),
        *(
            Variant(remedy, "trainer", SOME, checkpointing=OFF)
            for remedy in ("scaled_flag_equal_lengths", "lower_lr_equal_lengths")
        ),
    ),
    claims={
        "a": Claim(
            "divide by `num_items_in_batch`, and multiply by the number of ranks, for it counts the tokens of all",
            swap={"remedy": "num_items"},
        ),
        "b": Claim(
            "`trainer.model_accepts_loss_kwargs = False`, where token counts differ",
            swap={"remedy": "flag"},
            where={"variant": "trainer-broken"},
            source=FLAG,
        ),
        "c": Claim(
            "`trainer.model_accepts_loss_kwargs = False`, where all micro-batches have as many tokens",
            swap={"variant": "trainer-flag_equal_lengths"},
            where={"variant": "trainer-equal_lengths"},
            source=FLAG,
        ),
        "d": Claim(
            "`trainer.loss_is_scaled_for_ga = False`, where token counts differ",
            swap={"remedy": "scaled_flag"},
            where={"variant": "trainer-broken"},
            source=DOCS,
        ),
        "d2": Claim(
            "`trainer.loss_is_scaled_for_ga = False`, where all micro-batches have as many tokens",
            swap={"variant": "trainer-scaled_flag_equal_lengths"},
            where={"variant": "trainer-equal_lengths"},
            source=DOCS,
        ),
        "e": Claim(
            "divide the mean by the micro-batches in the loss, where token counts differ", swap={"remedy": "divide"}
        ),
        "f": Claim(
            "the `compute_loss` of the trainer itself is right",
            swap={"remedy": "default_loss"},
            where={"variant": "trainer-broken"},
        ),
        "g": Claim("`max_grad_norm`", swap={"remedy": "clip"}, where={"variant": "trainer-broken"}),
        "h": Claim(
            "a learning rate divided by the accumulation steps, where token counts differ",
            swap={"remedy": "lower_lr"},
            where={"variant": "trainer-broken"},
        ),
        "h2": Claim(
            "a learning rate divided by the accumulation steps, with SGD and as many tokens in all micro-batches",
            swap={"variant": "trainer-lower_lr_equal_lengths"},
            where={"variant": "trainer-equal_lengths"},
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism: micro-batches of unequal token counts, and a loop that leaves the division to the loss."""
    from faultline.scenario import Scenario, next_token_loss, token_batch
    from tiny_models.qwen2 import qwen2

    def batch(number, rank, world_size):
        first = number - number % MICRO
        of_all = sum(len(row) - 1 for each in range(first, first + MICRO) for row in rows_of(each))
        return {**token_batch(rows_of(number), rank, world_size), "num_items": of_all}

    def loss(model, batch):
        summed = next_token_loss(model(input_ids=batch["input_ids"]).logits, batch) / batch["scale"]
        if remedy == "num_items" or setup.reference:
            return summed * setup.world_size / batch["num_items"] * MICRO  # the loop divides by them
        mean = summed / (batch["labels"][:, 1:] != -100).sum()
        return mean if remedy == "divide" else mean * MICRO

    return Scenario(qwen2(), loss, batch, micro_batches=MICRO)


def rows_of(number):
    from tiny_models.data import text_rows

    return [row[:6] for row in text_rows(number)] if number % MICRO else text_rows(number)


def trainer(variant, arguments, setup):
    """Transformers' own trainer, with the loss that a user writes; the reference has one micro-batch and is right."""
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from faultline.scenario import Impossible
    from faultline.trainer import changed_config
    from tiny_models.data import text_rows
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    class Custom(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")[:, 1:]
            logits = model(**inputs).logits[:, :-1]
            if variant.remedy == "num_items":
                summed = cross_entropy(logits, labels, "sum")
                return summed / num_items_in_batch * self.accelerator.num_processes
            return cross_entropy(logits, labels, "mean")

    rows = [row for step in range(3) for row in text_rows(step)]
    # Every second row is trained on in its last three tokens only.
    shown = [0 if "equal" in variant.remedy else len(row) - 3 if n % 2 else 0 for n, row in enumerate(rows)]
    rows = [row[:20] for row in rows] if "equal" in variant.remedy else rows
    data = [{"input_ids": r, "labels": [-100] * n + r[n:]} for r, n in zip(rows, shown, strict=True)]
    norm = 0.5 if variant.remedy == "clip" else 0.0
    arguments = {**arguments, "max_grad_norm": norm}
    changes = {
        "gradient_clipping": norm,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    if not setup.reference:
        size = arguments["per_device_train_batch_size"] // MICRO
        if not size:
            raise Impossible("a rank has one row of the global batch: there is nothing to accumulate")
        arguments |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": MICRO}
        if variant.remedy.startswith("lower_lr"):
            arguments["learning_rate"] /= MICRO
    kind = Trainer if variant.remedy == "default_loss" else Custom
    built = kind(
        qwen2(),
        TrainingArguments(**changed_config(arguments, changes, setup)),
        train_dataset=Dataset.from_list(data),
        data_collator=DataCollatorForSeq2Seq(tokenizer(padding_side="right")),
    )
    if variant.remedy.startswith("flag"):
        built.model_accepts_loss_kwargs = False
    if variant.remedy.startswith("scaled_flag"):
        built.loss_is_scaled_for_ga = False
    return built


def cross_entropy(logits, labels, reduction):
    import torch

    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction=reduction)
