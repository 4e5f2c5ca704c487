"""The two ways in which a program is trained: by a plain loop, or by transformers' Trainer."""

from functools import partial

from faultline.programs import in_trainer, loop
from faultline.ranks.own_model import target


def program(text: str) -> target.Built:
    """A program as JSON, as `check` takes it."""
    return target.Built(partial(loop.scenario, text), partial(in_trainer.trainer, text))
