"""The gradient of an input, by `autograd.grad`: DeepSpeed's engine takes it for a backward pass of the training."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps, variants

FUNC = "https://github.com/deepspeedai/DeepSpeed/pull/8026"
TRADES = "https://github.com/yaodongyu/TRADES"
ZERO = ("zero0", "zero1", "zero2", "zero3")

FAILURE = Failure(
    title="`autograd.grad` for inputs makes ZeRO-3 add up steps, and ZeRO-0 to 2 raise",
    first_seen="adversarial training (TRADES), in a loss that makes its own adversarial examples",
    since="DeepSpeed's engine saw every backward pass through its outputs (2025-11)",
    until="not fixed: an engine takes each backward pass through its outputs for one of the training",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # reentrant checkpointing refuses `torch.autograd.grad` in one process too
    errors={
        "list-empty": r"IndexError: list index out of range",  # of buffers into which no gradient came
        "backward-unprepared": r"Direct calls to tensor\.backward\(\) are not supported in this configuration",
    },
    variants=(
        Variant("broken", strategies=("single", "ddp*", "zero*", "fsdp1*", "fsdp2*")),
        Variant("bare", strategies=("single", "ddp", "ddp-static-graph", *ZERO)),
        Variant("functional", strategies=("single", *ZERO)),
        *variants("evaluated inputs", strategies=ZERO),
        Variant("unsynchronised", strategies=("zero0", "zero1")),
    ),
    claims={
        FUNC: helps("`torch.func.grad` instead", "broken/zero*", remedy="functional"),
        TRADES: helps("`model.eval()` before it, and `model.train()` after it", "broken/zero*", remedy="evaluated"),
        TRIED_HERE: (
            helps("ask the module in the engine or wrapper for it", "broken/*", remedy="bare"),
            helps("`loss.backward(inputs=[x])` instead", "broken/zero*", remedy="inputs"),
            helps("`engine.no_sync()` around it", "broken/zero[01]", remedy="unsynchronised"),
            helps("ZeRO-3 instead", "broken/zero[0-2]", strategy="zero3"),
            helps("FSDP2 instead", "broken/zero*", strategy="fsdp2"),
            fails("DDP with `static_graph=True`", "broken/ddp-static-graph"),
        ),
    },
)


def noisy():
    from torch import nn

    from tiny_models import build
    from tiny_models.kit import qwen2

    class Noisy(nn.Module):
        """A text model that takes noise on its embedded tokens."""

        def __init__(self):
            super().__init__()
            self.text = qwen2(attn_implementation="eager")

        def forward(self, input_ids, noise):
            embedded = self.text.get_input_embeddings()(input_ids)
            return self.text(inputs_embeds=embedded + noise.to(embedded.dtype)).logits

    return build(Noisy, 0)


def scenario(remedy, setup):
    from contextlib import nullcontext

    import torch

    from tiny_models.kit import Scenario, next_token_loss, text_batch

    bare = noisy()

    def worst(model, batch):
        """The direction of noise in which the loss of each row grows most."""
        noise = torch.zeros(*batch["input_ids"].shape, 32, device=setup.device, requires_grad=True)

        def total(noise):
            asked = bare if remedy == "bare" else model
            return next_token_loss(asked(batch["input_ids"], noise), {**batch, "scale": 1.0})

        if remedy == "functional":
            slope = torch.func.grad(total)(noise.detach())
        elif remedy == "inputs":
            total(noise).backward(inputs=[noise])
            slope = noise.grad
        else:
            quiet = remedy == "unsynchronised" and hasattr(model, "no_sync")
            with model.no_sync() if quiet else nullcontext():
                (slope,) = torch.autograd.grad(total(noise), noise)
        return slope.detach() / slope.flatten(1).norm(dim=1)[:, None, None]

    def loss(model, batch):
        if remedy == "evaluated":
            model.eval()
        noise = worst(model, batch)
        model.train()
        return next_token_loss(model(batch["input_ids"], 0.1 * noise), batch)

    return Scenario(bare, loss, text_batch)
