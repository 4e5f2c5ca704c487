"""A gradient penalty goes through the backward pass a second time, when the engine has put the weights away again."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps, trains, variants

DOUBLE = "https://github.com/pytorch/pytorch/issues/47562"
FSDP2 = "https://github.com/pytorch/pytorch/pull/172770"
APPROXIMATED = "https://arxiv.org/abs/2501.08316"

COMPILED = ("single/off/fp32/w1/aot_eager/*", "ddp/off/fp32/w2/aot_eager/*", "fsdp2/off/fp32/w2/aot_eager/*")

FAILURE = Failure(
    title="A gradient penalty needs weights that were put away after the first backward",
    first_seen="plain torch with `fully_shard` and `create_graph=True`",
    since="ZeRO-3 (2021), FSDP1 (2022) and fully_shard (2024)",
    until="not fixed: engines release weights and reduce gradients once in a backward pass, and count on only one",
    upstream="pytorch/pytorch",
    checkpointing=("off",),  # reentrant checkpointing refuses `torch.autograd.grad` in one process too
    errors={
        "backward-unprepared": r"Direct calls to tensor\.backward\(\) are not supported in this configuration",
        # In the second pass: as ZeRO-3 words it.
        "sharded-again": r"size of tensor a \([1-9]\d*\) must match the size of tensor b \(0\)",
        # In the second pass: as CUDA words it, where a CPU's process dies.
        "freed-weight": r"setStorage: sizes .* are out of bounds for storage of size 0",
        # What torch.compile makes of it, in one process too.
        "compiled-once": r"torch\.compile with aot_autograd does not currently support double backward",
        "inside-graph": r"differentiated Tensor at index \d+ appears to not have been used in the graph",
        "list-empty": r"IndexError: list index out of range",  # of the gradients that ZeRO-1 and ZeRO-2 have reduced
    },
    also_raises=("compiled-once", "inside-graph"),
    variants=(
        *variants(
            "broken",
            strategies=("single", "ddp*", "zero0", "zero1", "zero2", "zero3", "fsdp*"),
            also=COMPILED,
        ),
        Variant(
            "broken", "trainer", ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"), text="in `compute_loss`"
        ),
        *variants("kept", strategies=("fsdp2*",)),
        *variants(
            "approximated",
            strategies=("single", "ddp-static-graph", "zero0", "zero2", "zero3", "fsdp*"),
            also=COMPILED[2:],
        ),
    ),
    claims={
        FSDP2: helps("`model.set_reshard_after_backward(False)`", remedy="kept"),
        APPROXIMATED: helps("the difference of outputs under a little noise instead", remedy="approximated"),
        "https://github.com/pytorch/pytorch/issues/63812": trains(
            "with DDP, `torch.autograd.grad` and then one ordinary backward pass work", "broken/ddp*"
        ),
        DOUBLE: fails("DDP doesn't support double backward", "broken/ddp*"),
        TRIED_HERE: (
            helps("`reshard_after_forward=False`", "broken/fsdp2", strategy="fsdp2-no-reshard"),
            helps("ZeRO-2 instead of ZeRO-3", "broken/zero3*", strategy="zero2"),
        ),
    },
)


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, next_token_loss, qwen2, sgd, text_batch

    model, embedded = qwen2(attn_implementation="eager"), []  # other attention has no second derivative

    def remember(module, args, output):
        embedded.append(output)

    def disturb(module, args, output):
        noise = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(0))
        return output + 1e-2 * noise.to(output) if embedded else output

    def loss(wrapped, batch):
        embedded.clear()
        logits = wrapped(input_ids=batch["input_ids"]).logits
        main = next_token_loss(logits, batch)
        if remedy == "approximated":
            embedded.append(True)
            apart = wrapped(input_ids=batch["input_ids"]).logits - logits
            return main + (apart.pow(2) * batch["attention_mask"].unsqueeze(-1)).sum() * batch["scale"]
        total = next_token_loss(logits, {**batch, "scale": 1.0})
        (slope,) = torch.autograd.grad(total, embedded, create_graph=True)
        return main + 0.1 * slope.pow(2).sum() * batch["scale"]

    def keeping(wrapped):
        if hasattr(wrapped, "set_reshard_after_backward"):
            wrapped.set_reshard_after_backward(False)
        return sgd(wrapped)

    model.model.embed_tokens.register_forward_hook(disturb if remedy == "approximated" else remember)
    return Scenario(model, loss, text_batch, optimizer=keeping if remedy == "kept" else None)


def trainer(variant, arguments, setup):
    import torch
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from tiny_models.kit import qwen2, text_rows, token_dataset, tokenizer

    model, embedded = qwen2(attn_implementation="eager"), []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))

    class Penalised(Trainer):  # not TRL's: its losses are computed in chunks, without a second derivative
        def compute_loss(self, *args, **kwargs):
            embedded.clear()
            loss = super().compute_loss(*args, **kwargs)
            (slope,) = torch.autograd.grad(loss, embedded, create_graph=True)
            # Norms, not squares: a loss is divided by a number of tokens that depends on the world size.
            return loss + 0.1 * (slope.pow(2).sum(-1) + 1e-12).sqrt().sum()

    rows = [row for step in range(3) for row in text_rows(step)]
    collator, data = DataCollatorForSeq2Seq(tokenizer(padding_side="right")), token_dataset(rows, [0] * len(rows))
    return Penalised(model, TrainingArguments(**arguments), train_dataset=data, data_collator=collator)
