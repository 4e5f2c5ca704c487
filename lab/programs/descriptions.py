"""The features of programs in words that need no glossary."""

from collections.abc import Mapping
from typing import Any

DESCRIPTIONS: Mapping[str, str | Mapping[Any, str]] = {
    "layers": "{} blocks",
    "width": "width {}",
    "block": {
        "norm": "blocks with a LayerNorm",
        "attention": "blocks with attention",
        "convolution": "blocks with a convolution",
        "experts": "blocks with experts",
    },
    "container": {
        "sequence": "blocks in an nn.Sequential",
        "dict": "blocks in an nn.ModuleDict",
        "nested": "blocks in lists within a list",
        "attributes": "blocks that are attributes",
    },
    "output": "blocks that return a {}",
    "shared": "the last block is the first one",
    "tied": {"head": "a head tied to the embedding", "blocks": "two blocks with one weight"},
    "calls": "the first block runs {} times",
    "spare": "a layer that nothing uses",
    "frozen": {"first": "the first layer frozen", "biases": "frozen biases", "block": "the last block frozen"},
    "no_grad": {
        "tower": "a frozen tower under no_grad",
        "target": "a target network under no_grad",
        "part": "a part under no_grad that should train",
    },
    "buffer": {"constant": "a buffer", "unsaved": "a buffer that isn't saved"},
    "state": {
        "count": "a buffer that counts forward passes",
        "average": "a buffer with a moving average",
        "batchnorm": "a BatchNorm",
    },
    "dtype": {
        "float64": "a layer in float64",
        "bfloat16": "a layer in bfloat16",
        "complex": "a complex weight",
        "integer": "a parameter of integers",
        "mixed": "layers of two types",
    },
    "shape": {
        "scalar": "a weight without dimensions",
        "one": "a weight of one number",
        "empty": "an empty weight",
        "transposed": "a transposed weight",
        "storage": "two weights in one storage",
    },
    "sparse": "an embedding with sparse gradients",
    "branch": {"data": "a branch by a rank's rows", "rank": "a branch by a rank's number"},
    "rows": "ranks with unequal shares",
    "method": {"block": "a block's own method is called", "model": "the loss calls a method in place of forward"},
    "hook": {
        "forward": "a forward hook",
        "activation": "a hook on an activation",
        "parameter": "a hook on a parameter",
    },
    "function": "an autograd function of its own",
    "inplace": "an operation in place",
    "twice": "double backward",
    "loss": {
        "auxiliary": "an auxiliary loss",
        "two passes": "two forward passes in a loss",
        "weight penalty": "a penalty on a weight in the loss",
        "zero term": "a term of the loss that is zero",
    },
    "checkpoint": "the model's own {} checkpointing",
    "joined": "{} micro-batches joined into one",
    "swapped": "ranks with each other's rows",
    "scaled": "twice the loss",
    "accumulate": "{} micro-batches a step",
    "accumulating": "accumulation by hand",
    "clip": {"norm": "clipping by norm", "value": "clipping by value"},
    "optimizer": {
        "adamw": "AdamW",
        "groups": "two parameter groups",
        "no momentum": "SGD without momentum",
        "adafactor": "Adafactor",
        "two": "two optimizers",
    },
    "schedule": "a learning rate that halves",
    "cleared": "gradients cleared to zeros",
    "backward": "two backward passes through one forward pass",
    "between": {
        "evaluation": "an evaluation between steps",
        "inference": "a forward pass in inference mode between steps",
        "saving": "a checkpoint saved between steps",
        "reloading": "a checkpoint saved and loaded between steps",
        "generation": "a generation between steps",
    },
    "recompute": "{} recomputed",
    "spare_runs": {
        "at first": "a layer that runs in the first step only",
        "later": "a layer that runs from the second step on",
    },
    "spare_frozen": "a frozen layer that some steps use",
    "tying": "a head that takes the embedding's weight in forward",
    "unfreeze": "frozen weights that train from the second step on",
    "silent": "a rank whose loss is zero in the first step",
    "teacher": {"copy": "a frozen teacher", "prepared": "a frozen teacher that accelerate prepared"},
    "adapter": "LoRA",
    "around": "the loss calls the model inside of the wrapper",
    "begins": {"by rank": "ranks that build different weights", "loaded": "weights loaded into the wrapped model"},
    "through": "through {}",
    "tokens": "rows of different lengths",
    "checkpointing": "{} checkpointing",
    "precision": "{}",
    "world_size": {4: "4 ranks", 1: "one rank"},
    "life": {"resumed": "resumed", "resized": "resumed on fewer ranks"},
}
"""What a feature is called, for all of its values or for each. Settings of engines and trainers are called as there."""


def describe(name: str, value: Any) -> str:
    """A feature with its value: ``a head tied to the embedding``, ``zero.overlap_comm=False``."""
    words = DESCRIPTIONS.get(name)
    if words is None:
        return f"{name}={value}"
    return words.format(value) if isinstance(words, str) else words[value]
