"""The teacher of TRL's distillation trainers is neither sharded nor moved to the accelerator under FSDP."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present, trains, variants

FIX = "https://github.com/huggingface/trl/pull/6573"
DPO = "https://github.com/huggingface/trl/pull/2539"
FOUR = {"max_completion_length": 4}
TOP_8 = {**FOUR, "distillation_topk": 8}
UNFILTERED = {**FOUR, "filter_all_incorrect": False}  # the filter pickles the whole trainer, at times too deep
# These three divide by the tokens of all ranks and are averaged over the ranks as well, which is another failure.
LOCAL = {"average_tokens_across_devices": False}
# Every trainer of TRL with a second model: its name, the attribute that holds that model, what else it is given, its
# data's columns, and its settings. KTO's own loss pairs rows by a rank's batch: one process can't be compared with it.
TRAINERS = {
    "dpo": ("DPO", "ref_model", "second", "prompt chosen rejected", {}),
    "kto": ("KTO", "ref_model", "second", "prompt completion label", {"loss_type": "apo_zero_unpaired"}),
    "rloo": ("RLOO", "ref_model", "reward", "prompt", {**FOUR, "num_generations": 2, "beta": 0.1}),
    "online_dpo": ("OnlineDPO", "ref_model", "second reward", "prompt", {"max_new_tokens": 4}),
    "a2po": ("A2PO", "ref_model", "reward", "prompt", {**UNFILTERED, "beta2": 0.1}),
    "distillation": ("Distillation", "teacher_model", "second", "prompt", FOUR),
    "gkd": ("GKD", "teacher_model", "second", "messages", {**LOCAL, "lmbda": 0.0}),
    "gkd_on_policy": ("GKD", "teacher_model", "second", "messages", {**LOCAL, "lmbda": 1.0, "max_new_tokens": 4}),
    "gold": ("GOLD", "teacher_model", "second", "messages", {**LOCAL, **FOUR, "lmbda": 0.0, "max_length": 64}),
    "iw_opd": ("IWOPD", "teacher_model", "second", "messages", {**LOCAL, **FOUR, "max_length": 64}),
    "sdft": ("SDFT", "teacher_model", "", "prompt privileged_context", {**TOP_8, "num_generations": 1}),
    "sdpo": ("SDPO", "teacher_model", "reward", "prompt", {**FOUR, "num_generations": 2}),
}
FSDP, ALL = ("fsdp1-full", "fsdp2"), ("fsdp1-full", "fsdp2", "zero3")
ON = {"a2po": ("ddp", *ALL)}
# Where the second model stays whole and a remedy can be seen to work: under FSDP1, three of them end in sampling.
WHOLE = dict.fromkeys(("a2po", "gkd_on_policy", "iw_opd"), ("fsdp2",))
WHOLE |= dict.fromkeys(("distillation", "gkd", "gold"), FSDP)

FAILURE = Failure(
    title="A teacher or other second model is neither sharded nor moved under FSDP",
    first_seen="TRL's GKD trainer, whose teacher stays on the CPU",
    since="January 2025, as reported",
    until="open with trl 1.16.0",
    upstream="huggingface/trl",
    errors={
        # The other device is the CPU's, on which the weights are: two accelerators are another mistake, and indices on
        # the CPU are as well.
        "two-devices": r"Expected all tensors to be on the same device"
        r"(?!, but got index is on cpu)"
        r"(?!, but (?:found at least two devices, |got \w+ is on )\w+:\d+(?: and |, different from[a-z ]+)\w+:\d)",
        "sharded-embedding": r"'weight' must be 2-D",
        # The chunked loss reads the teacher's head outside of its forward pass: FSDP1, and FSDP2 in backward.
        "sharded-head": r"mat2 must be a matrix|'Tensor' object has no attribute '_local_tensor'",
    },
    variants=(
        Variant("broken", checkpointing=("off",)),
        *variants("prepare_fsdp device_placement", strategies=("fsdp*",), checkpointing=("off",)),
        *(Variant("broken", name, ON.get(name, ALL), second=second) for name, (_, second, *_) in TRAINERS.items()),
        *(Variant("prepare_fsdp", name, where, second=TRAINERS[name][1]) for name, where in WHOLE.items()),
        Variant("device_placement", "gkd", FSDP, second="teacher_model"),
    ),
    claims={
        FIX: helps("TRL's `prepare_fsdp(model, accelerator)` on the second model", remedy="prepare_fsdp"),
        DPO: trains("DPO's reference model is fixed", "dpo-broken", key="dpo"),
        "https://github.com/huggingface/trl/issues/2580": (
            trains("only FSDP is affected", "*broken/zero3"),
            present(
                "`unwrap_model_for_generation`, against `'weight' must be 2-D` in on-policy generation",
                "gkd_on_policy-broken/fsdp1-full",
                key="unwrap_model_for_generation",
            ),
        ),
        TRIED_HERE: helps("`device_placement=True` of `prepare_model`", remedy="device_placement"),
    },
)


def scenario(remedy, setup):
    """What these trainers do, without them: a student that learns from a second model's predictions."""
    from tiny_models.kit import Scenario, qwen2, text_batch
    from tiny_models.second import near, second_model

    prepared, second = second_model(lambda accelerator: prepare(accelerator, qwen2(seed=1), remedy))

    return Scenario(qwen2(), near(prepared, of_its_own=False), text_batch, second=second)


def trainer(variant, arguments, setup):
    """The real trainer, with a second model of other weights where it takes one, else of the trained one's."""
    from faultline.trainers import from_trl
    from tiny_models.kit import Impossible, letter_score, qwen2, saved, tokenizer, turns

    name, second, given, columns, settings = TRAINERS[variant.trainer]
    package = variant.trainer.removesuffix("_on_policy")
    others = {"reward_funcs": letter_score} if "reward" in given else {}
    if "second" in given:
        others[second] = saved(qwen2(seed=1), setup, "second")
    model = saved(qwen2(), setup)
    args = from_trl(package, f"{name}Config")(**{**arguments, **settings})
    data = {"train_dataset": turns(columns), "processing_class": tokenizer()}
    try:
        built = from_trl(package, f"{name}Trainer")(model=model, args=args, **data, **others)
    except ValueError as error:
        if "not compatible" in str(error):
            raise Impossible(f"the trainer refuses: {error}") from error
        raise
    if name == "OnlineDPO":
        built.sample_blocks = 2  # it repeats its prompts as a whole, where others repeat each
    if variant.remedy != "broken":
        setattr(built, second, prepare(built.accelerator, getattr(built, second), variant.remedy))
    return built


def prepare(accelerator, model, remedy):
    """As the trainers prepare their second model, and what a user can do where they leave it whole."""
    from tiny_models.second import prepared_as_by_trl

    if remedy == "prepare_fsdp" or accelerator.distributed_type.value == "DEEPSPEED":
        return prepared_as_by_trl(accelerator, model)
    placed = {"device_placement": True} if remedy == "device_placement" else {}
    return accelerator.prepare_model(model, evaluation_mode=True, **placed)
