"""In a step that has images on some ranks only, the others skip the vision tower, for which the first ones wait."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
TOWER = ("vision_tower", "multi_modal_projector")

FAILURE = Failure(
    title="A module that only some ranks run in a step stops training",
    first_seen="Qwen2-VL on text beside images, under ZeRO-3",
    since="ZeRO-3 (2021) and FSDP1 (2022); DDP has always asked for a gradient of every parameter",
    until="not fixed: ranks must run the same modules in each step; models and templates add dummy images",
    checkpointing=("off",),  # which has no part in which modules a rank runs
    also_raises=("unfinished-reduction",),  # of DDP
    variants=(
        Variant("broken", strategies=SOME),
        *variants("times_zero in_embeddings image_in_every_row freeze by_step", "", SOME),
    ),
    claims={
        "https://github.com/modelscope/ms-swift/pull/9639": helps(
            "a dummy image through the tower where a batch has none, times 0 and added to the embeddings",
            remedy="times_zero",
        ),
        "https://github.com/QwenLM/Qwen3-VL/issues/126": helps(
            "a small image in rows that have none", remedy="image_in_every_row"
        ),
        "https://github.com/deepspeedai/DeepSpeed/issues/7170": helps("ZeRO-2", "broken/zero3", strategy="zero2"),
        "https://github.com/hiyouga/LlamaFactory/issues/5657": helps(
            "freeze the tower and its projector (`requires_grad=False`)", remedy="freeze"
        ),
        TRIED_HERE: (
            helps("the same dummy, added by a forward hook of the embeddings", remedy="in_embeddings"),
            helps(
                "ZeRO-2, with the tower frozen", "broken/zero3", variant="freeze", strategy="zero2", key="freeze+zero2"
            ),
            helps("steps with images on all ranks, and others with none", remedy="by_step"),
        ),
    },
)


def scenario(remedy, setup):
    import torch

    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import IMAGE_SIZE, gemma3
    from tiny_models.kit import Scenario, next_token_loss

    model, shown = gemma3(), []
    images = {"image_in_every_row": "dummy", "by_step": "by step"}.get(remedy, "first half")

    def batch(step, rank, world_size):
        return image_text_batch(step, rank, world_size, images)

    def loss(model, batch):
        shown[:] = ["pixel_values" in batch["inputs"]]
        return next_token_loss(model(**batch["inputs"]).logits, batch)

    def blank(embeddings):
        """Zero, of an image that goes through the tower where the batch has none."""
        if shown[0]:
            return 0
        pixels = torch.zeros(1, 3, IMAGE_SIZE, IMAGE_SIZE).to(embeddings)
        return 0 * model.model.get_image_features(pixels).pooler_output.mean()

    def before_decoder(module, args, inputs):
        embeddings = inputs["inputs_embeds"]
        return args, {**inputs, "inputs_embeds": embeddings + blank(embeddings)}

    if remedy == "times_zero":  # where images come in
        model.model.language_model.register_forward_pre_hook(before_decoder, with_kwargs=True)
    if remedy == "in_embeddings":
        model.get_input_embeddings().register_forward_hook(lambda module, args, output: output + blank(output))
    if remedy == "freeze":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(part in name for part in TOWER))
    return Scenario(model, loss, batch)
