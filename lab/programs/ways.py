"""The ways in which a program is trained: by a plain loop, by transformers' Trainer, or by one of TRL's."""

from functools import partial
from typing import Any

from faultline.ranks.own_model import target
from faultline.strategies import Setup
from lab.programs import in_trainer, in_trl, loop
from lab.programs.program import parse


def program(text: str) -> target.Built:
    """A program as JSON, as `check` takes it."""
    return target.Built(partial(loop.scenario, text), partial(_trainer, text))


def _trainer(text: str, arguments: dict[str, object], setup: Setup, world_size: int) -> Any:
    made = in_trl.trainer if parse(text).in_trl else in_trainer.trainer
    return made(text, arguments, setup, world_size)
