"""The loss that balances experts is a mean already, and is multiplied by the number of ranks with the tokens' loss."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

FIX = "https://github.com/huggingface/transformers/pull/48691"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
COEFFICIENT = 0.01  # of the report, and of OLMoE; Mixtral and Qwen3-MoE have 0.001

FAILURE = Failure(
    title="A mixture of experts' balancing loss grows with the number of ranks",
    first_seen="Qwen3-MoE in transformers' `Trainer`",
    since="transformers 4.54, whose `average_tokens_across_devices` is on by default",
    until="not fixed in transformers' `Trainer`; two pull requests are open",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in how a loss is scaled
    variants=(
        Variant("divided", strategies=(*SOME, "tp", "tp-ep", "ep-fsdp", "native-fsdp")),
        *variants("broken aux_apart divided local_counts", trainer="trainer", strategies=SOME),
        Variant(
            "accumulated",
            trainer="trainer",
            strategies=("single", "ddp", "fsdp2"),
            text="with gradient accumulation, the balancing loss counts once for each micro-batch as well",
        ),
        Variant("in_trl", trainer="sft", strategies=SOME, text="the same model and rows in TRL's `SFTTrainer`"),
    ),
    claims={
        FIX: helps("multiply the tokens' loss alone, as a `compute_loss` of one's own can", remedy="aux_apart"),
        "https://huggingface.co/docs/transformers/main_classes/trainer": helps(
            "`average_tokens_across_devices=False`, where token counts differ",
            "trainer-broken",
            remedy="local_counts",
        ),
        "https://github.com/huggingface/trl/pull/6085": trains("TRL's `SFTTrainer`", "sft-in_trl"),
        TRIED_HERE: helps("`router_aux_loss_coef` divided by the number of ranks", remedy="divided"),
    },
)


def mixture(remedy, setup):
    """A model that gives the loss that balances its experts."""
    from tiny_models.qwen3_moe import qwen3_moe

    model = qwen3_moe()
    model.config.output_router_logits = True
    model.router_aux_loss_coef = COEFFICIENT / (setup.data_world if remedy == "divided" else 1)
    model.config.router_aux_loss_coef = model.router_aux_loss_coef
    return model


def rows_of(step):
    """One text four times: so each rank's experts are as busy as those of all ranks."""
    from tiny_models.kit import text_rows

    return [text_rows(step)[0]] * 4


def hidden(row):
    """How many tokens of each of the four rows aren't trained on."""
    return [0, len(row) // 2, 2, len(row) // 2 + 2]


def scenario(remedy, setup):
    """The mechanism: a token loss over the count of all ranks, times their number, with the other loss in it."""
    import torch

    from tiny_models.kit import Scenario, my_rows, next_token_loss

    def batch(number, rank, world_size):
        rows = torch.tensor(rows_of(number))
        labels = rows.clone()
        for row, first in zip(labels, hidden(rows[0]), strict=True):
            row[:first] = -100
        scale = 1 / (labels[:, 1:] != -100).sum()
        ids = my_rows(rows, rank, world_size)
        return {"input_ids": ids, "labels": my_rows(labels, rank, world_size), "scale": scale}

    model = mixture(remedy, setup)
    coefficient = model.router_aux_loss_coef

    def loss(wrapped, batch):
        outputs = wrapped(input_ids=batch["input_ids"])
        tokens, balance = next_token_loss(outputs.logits, batch), coefficient * outputs.aux_loss
        if remedy == "aux_apart":
            return tokens * setup.data_world + balance
        return (tokens + balance) * setup.data_world

    return Scenario(model, loss, batch)


def trainer(variant, arguments, setup):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from faultline.trainers import from_trl
    from tiny_models.kit import token_dataset, tokenizer

    class AuxApart(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            loss = loss - (self.accelerator.num_processes - 1) * COEFFICIENT * outputs.aux_loss
            return (loss, outputs) if return_outputs else loss

    model = mixture(variant.remedy, setup)
    rows = [row for step in range(3) for row in rows_of(step)]
    data = token_dataset(rows, [first for step in range(3) for first in hidden(rows[4 * step])])
    words = tokenizer(padding_side="right")
    if variant.trainer == "sft":
        args = from_trl("sft", "SFTConfig")(**arguments)
        return from_trl("sft", "SFTTrainer")(model, args, train_dataset=data, processing_class=words)
    if variant.remedy == "accumulated" and not setup.reference:
        arguments["per_device_train_batch_size"] //= 2
        arguments["gradient_accumulation_steps"] = 2
    if variant.remedy == "local_counts":
        arguments["average_tokens_across_devices"] = False
    kind = AuxApart if variant.remedy == "aux_apart" else Trainer
    return kind(model, TrainingArguments(**arguments), train_dataset=data, data_collator=DataCollatorForSeq2Seq(words))
