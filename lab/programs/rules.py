"""The features of a spec that an engine is known to refuse, or to train otherwise, and in which words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from lab.programs.spec import Spec


@dataclass(frozen=True)
class Rule:
    """Features that together make an engine do something else than train, and the words by which that is known.

    `failure` is that of the catalogue, if it has one of the kind, and `also` another one that it may be called.
    """

    where: Mapping[str, Any]
    strategies: tuple[str, ...]
    outcome: Outcome
    words: str
    why: str
    failure: str = ""
    also: str = ""

    def holds(self, spec: Spec, strategy: str) -> bool:
        """Whether a spec has all of the features, under one of the strategies."""
        return matches(strategy, self.strategies) and has(self.where, lambda name: getattr(spec, name))


def has(where: Mapping[str, Any], value: Callable[[str], Any]) -> bool:
    """Whether the values of features are the wanted ones, or among them where there are several."""
    return all(
        value(name) in wanted if isinstance(wanted, tuple) else value(name) == wanted for name, wanted in where.items()
    )


def rule(strategies: str, words: str, why: str, outcome: Outcome = Outcome.RAISES, **where: Any) -> Rule:
    names = {name: where.pop(name, "") for name in ("failure", "also")}
    return Rule(where, tuple(strategies.split()), outcome, words, why, **names)


SHARD = (
    "mat2 must be a matrix|mixed torch.Tensor and DTensor|expected 1D|must match the size|size mismatch|[Ss]hape"
    "|dimension|setStorage"
)
"""How torch refuses what is still sharded when it is used."""
DTYPES = r"must have the same dtype|len\(set\(t\.dtype for t in tensors\)\) == 1|uniform|Cannot flatten integer dtype"
APART = "buffers differ between ranks"
BRANCHES = "data", "rank"
WITH = "nothing", "tower", "target"
"""What runs without a graph where all in front of the blocks has a gradient."""
NO_TARGET = "nothing", "tower", "part"
"""What runs without a graph where nothing runs between a step's backward passes."""
ONE_PASS = "one", "auxiliary", "weight penalty", "zero term"
"""What a loss is made of where no other forward pass follows, for which FSDP1 would gather once more."""
LOST = "a unit takes its recomputation for a part of its own backward pass, and reduces nothing of it"
ENGINE = "forward", "block"
"""What is called where the engine's own forward pass runs."""
VIEW = r"cannot be 0 to view Float as Byte|must be 1 to view Float as Byte|doesn't support scalar parameters"

RULES: Sequence[Rule] = (
    rule(
        "ddp",
        "Expected to have finished reduction",
        "DDP waits for a gradient of every parameter",
        spare=True,
        failure="ddp_unused_vision_tower",
    ),
    rule("fsdp1*", SHARD, "FSDP1 wraps one of the places of a module", shared=True, bare_blocks=True),
    rule(
        "zero3",
        "invalid gradient at index",
        "outside of a forward pass, a weight is empty",
        loss="weight penalty",
        failure="penalty_outside_forward",
    ),
    rule(
        "fsdp*",
        SHARD,
        "a block's parameters are gathered by its forward pass",
        method="block",
        failure="fsdp2_method_or_child_outside_root_forward",
    ),
    rule("ddp", "has no attribute 'score'", "DDP has none of its model's methods", method="model"),
    rule(
        "fsdp*",
        SHARD,
        "the root's parameters are gathered by its forward pass",
        method="model",
        failure="fsdp2_method_or_child_outside_root_forward",
    ),
    rule(
        "fsdp*", r"head\.bias", "FSDP makes other parameters, without their hooks", Outcome.DIVERGES, hook="parameter"
    ),
    rule(
        "ddp",
        "Expected to have finished reduction",
        "DDP waits for all parameters",
        branch=BRANCHES,
        failure="ddp_unused_vision_tower",
    ),
    rule("zero3", "Detected a disagreement", "the ranks gather other parameters", branch=BRANCHES, method=ENGINE),
    rule("zero3", "left|right", "only a forward pass compares them", Outcome.DIVERGES, branch=BRANCHES, method="model"),
    rule("zero2 fsdp2", "left|right", "ranks reduce others together", Outcome.DIVERGES, branch=BRANCHES, no_grad=WITH),
    rule("fsdp*", "left|right", "the ranks gather other units", Outcome.DIVERGES, branch=BRANCHES, linear_units=True),
    rule(
        "fsdp2",
        SHARD,
        "outside of its forward pass, a unit is sharded",
        loss="weight penalty",
        linear_units=True,
        failure="penalty_outside_forward",
    ),
    rule(
        "ddp",
        "Expected to have finished reduction",
        "DDP waits for a gradient of all",
        no_grad="part",
        failure="ddp_unused_vision_tower",
    ),
    rule(
        "ddp",
        "mark a variable ready only once",
        "each recomputation reduces",
        checkpoint="reentrant",
        reused=True,
        failure="ddp_peft_reentrant_ready_twice",
        also="zero_double_reduction",
    ),
    rule(
        "zero2",
        "already been reduced",
        "each recomputation reduces",
        checkpoint="reentrant",
        reused=True,
        failure="zero_double_reduction",
    ),
    rule(
        "zero3",
        r"len\(set\(p\.ds_id",
        "each recomputation reduces",
        checkpoint="reentrant",
        reused=True,
        failure="zero_double_reduction",
    ),
    rule(
        "zero3",
        "different metadata than during the forward pass",
        "hooks look into no dataclass, so nothing gathers a frozen bias for the backward pass",
        output="dataclass",
        frozen="biases",
        method="model",
        checkpoint="non-reentrant",
        failure="zero3_nonreentrant_frozen_checkpointerror",
    ),
    rule(
        "zero* fsdp*",
        APART,
        "no buffer is broadcast",
        Outcome.DIVERGES,
        state=("average", "batchnorm"),
        failure="buffers_never_synchronised",
    ),
    rule(
        "ddp",
        APART,
        "none is broadcast before a forward pass that follows one without gradients",
        Outcome.DIVERGES,
        state=("average", "batchnorm"),
        no_grad="target",
        loss=ONE_PASS,
        failure="buffers_never_synchronised",
    ),
    rule(
        "zero2",
        "list index out of range",
        "the first backward pass counts as the step's",
        twice=True,
        method=ENGINE,
        failure="double_backward_through_shards",
    ),
    rule(
        "zero3",
        SHARD,
        "weights are partitioned before the second backward pass",
        twice=True,
        no_grad=NO_TARGET,
        failure="double_backward_through_shards",
    ),
    rule(
        "zero3",
        SHARD,
        "weights are partitioned before it",
        twice=True,
        no_grad="target",
        method="model",
        failure="double_backward_through_shards",
    ),
    rule(
        "zero3",
        "differs by",
        "a pass between gathers them",
        Outcome.DIVERGES,
        twice=True,
        no_grad="target",
        method=ENGINE,
        failure="double_backward_through_shards",
    ),
    rule(
        "fsdp1*",
        f"{SHARD}|_will_engine_execute_node",
        "sharded before the second",
        twice=True,
        loss=ONE_PASS,
        failure="double_backward_through_shards",
    ),
    rule(
        "fsdp2",
        f"{SHARD}|_will_engine_execute_node",
        "sharded before the second backward pass",
        twice=True,
        failure="double_backward_through_shards",
        also="penalty_outside_forward",
    ),
    rule(
        "fsdp2",
        "differs by",
        LOST,
        Outcome.DIVERGES,
        checkpoint="reentrant",
        unit_again=True,
        failure="zero_double_reduction",
    ),
    rule("fsdp1*", SHARD, "the root's are sharded by then", checkpoint="reentrant", root_again=True),
    rule("zero3", SHARD, "no module gathers what is in a list", shape="storage", method="model"),
    rule("zero2", "with arguments from the 'SparseCPU' backend", "no sparse gradients", sparse=True, no_grad=WITH),
    rule("zero3", "between dense and sparse Tensors", "no sparse gradients", sparse=True, no_grad=WITH),
    rule("fsdp1*", "reshape is not implemented for sparse", "no sparse gradients", sparse=True, no_grad=WITH),
    rule("fsdp2", "with arguments from the 'SparseCPU' backend", "no sparse gradients", sparse=True, no_grad=WITH),
    rule(
        "zero3",
        r"len\(set\(t\.dtype for t in tensors\)\) == 1",
        "one type in a bucket",
        dtype=("float64", "mixed", "complex"),
        failure="fsdp2_mixed_original_dtype",
    ),
    rule("zero*", "must have the same dtype", "weights are cast to one type", dtype=("float64", "mixed", "complex")),
    rule(
        "fsdp1*",
        DTYPES,
        "one type in a flat parameter",
        dtype=("complex", "integer"),
        failure="fsdp2_mixed_original_dtype",
    ),
    rule(
        "fsdp*",
        DTYPES,
        "one type in a group",
        dtype="float64",
        linear_units=False,
        failure="fsdp2_mixed_original_dtype",
    ),
    rule(
        "fsdp2",
        "uniform",
        "one type in a group",
        dtype="complex",
        alone_in_unit=False,
        failure="fsdp2_mixed_original_dtype",
    ),
    rule(
        "zero* fsdp*",
        VIEW,
        "a tensor without a dimension can't be sharded",
        shape="scalar",
        failure="zero_broadcast_of_scalar_weights",
    ),
    rule("zero3", "'NOT_AVAILABLE'|expected a non-empty list", "an empty parameter has no status", shape="empty"),
    rule("fsdp1*", "unsharded_start_idx", "nothing to share out", shape="empty", alone_in_unit=True),
    rule("fsdp2", "_chunk_cat expects non-empty tensor", "an empty gradient has no rows", shape="empty", no_grad=WITH),
    rule(
        "zero*",
        VIEW,
        "only contiguous parameters",
        shape="transposed",
        failure="fsdp1_no_shard_scrambles_gradients",
    ),
    rule(
        "fsdp2",
        "does not support non-contiguous parameters",
        "only contiguous parameters",
        shape="transposed",
        failure="fsdp1_no_shard_scrambles_gradients",
    ),
)
