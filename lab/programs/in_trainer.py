"""A program in transformers' Trainer: its model with its loss in one, and its rows as a dataset."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

from faultline.base.errors import Impossible
from faultline.cells.cell import HALF
from faultline.ranks.own_model import target
from faultline.strategies import ROWS, Setup, merged
from faultline.trainers import changed_config
from lab.programs import build, loop
from lab.programs.program import Program
from lab.programs.settings import TRAINER
from lab.programs.training import LIMIT

STEPS = 2 * HALF  # of the longest life
EVALUATED = 2  # of the batches


class WithLoss(nn.Module):
    """A model that gives its loss, as trainers want it."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, build.Batch], torch.Tensor]) -> None:
        super().__init__()
        self.inside, self._loss = model, loss

    def forward(self, x: torch.Tensor, tokens: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._loss(self.inside, {"x": x, "tokens": tokens, "y": y}), "logits": y}


class Rows(Dataset[build.Batch]):
    """The rows of all steps: of a micro-batch those of each rank in turn, as the ranks of a trainer take them."""

    def __init__(self, batches: list[build.Batch]) -> None:
        self._rows = [dict(zip(each, row, strict=True)) for each in batches for row in zip(*each.values(), strict=True)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> build.Batch:
        return self._rows[number]


def trainer(text: str, arguments: dict[str, object], setup: Setup, world_size: int) -> Any:
    """The Trainer of a program as JSON, for a rank, or for one process in place of `world_size` ranks."""
    from transformers import Trainer, TrainingArguments

    made = loop.program_for(text, setup)
    training = made.training
    model, loss, batch = loop.built(made)
    loop.recomputed(model, training.recompute)
    model = target.ready(WithLoss(model, loss), loop.ADAPTER if training.adapter == "lora" else {})
    numbers = range(STEPS * training.accumulate)
    rows = [batch(number, rank, world_size) for number in numbers for rank in range(world_size)]
    args = configured(TrainingArguments, made, {**arguments, "remove_unused_columns": False}, setup)
    result = Trainer(model=model, args=args, train_dataset=Rows(rows), eval_dataset=Rows(rows[:EVALUATED]))
    result._get_train_sampler = lambda dataset=None: SequentialSampler(result.train_dataset)
    return result


def configured(config: type, made: Program, arguments: dict[str, object], setup: Setup) -> Any:
    """A trainer's config with what a program asks for; raises Impossible where this release has no such argument."""
    training = made.training
    arguments |= {"gradient_accumulation_steps": training.accumulate}
    if training.clip == "norm":
        arguments["max_grad_norm"] = LIMIT["norm"]
    # As many batches on each rank: without `even_batches`, ranks run as many as there are for them.
    arguments["per_device_eval_batch_size"] = arguments["per_device_train_batch_size"]
    if training.between == "evaluation":
        arguments |= {"eval_strategy": "steps", "eval_steps": 1, "prediction_loss_only": True}
    if training.between == "saving" and not setup.reference:
        arguments |= {"save_strategy": "steps", "save_steps": 1}
    changes = {**made.deepspeed, "gradient_accumulation_steps": training.accumulate}
    if made.value("trainer.split_batches"):  # then it is of all ranks
        arguments["per_device_train_batch_size"] = changes["train_micro_batch_size_per_gpu"] = ROWS
    settings = made.nested(TRAINER) | made.nested(made.trainer)
    given = changed_config(merged(arguments, settings), changes, setup)
    try:
        return config(**given)
    except TypeError as error:
        raise Impossible(f"{config.__name__} of this release has no such argument: {error}") from error
