"""The settings of engines and trainers: each is drawn, or has a reason."""

import dataclasses
import inspect
from collections.abc import Iterator
from pkgutil import resolve_name

import pytest

from faultline.base.paths import ROOT
from faultline.programs import drawing
from faultline.programs.left_out import LEFT_OUT
from faultline.programs.settings import SETTINGS

KINDS = ("bool", "int", "float")


def arguments(name: str) -> Iterator[str]:
    """The arguments of a function that are switches or numbers, or None unless they are given."""
    for each in inspect.signature(resolve_name(name)).parameters.values():
        if isinstance(each.default, (bool, int, float)) or (each.default is None and each.name != "self"):
            yield each.name


def of_accelerate() -> Iterator[str]:
    for each in inspect.signature(resolve_name("accelerate:Accelerator")).parameters.values():
        if isinstance(each.default, (bool, int)):
            yield each.name
    yield from (each.name for each in dataclasses.fields(resolve_name("accelerate.utils:GradientAccumulationPlugin")))


def of_zero() -> Iterator[str]:
    """By their names in a config, which some have beside another one."""
    for name, each in resolve_name("deepspeed.runtime.zero.config:DeepSpeedZeroConfig").model_fields.items():
        yield each.alias or name


def of_trainer() -> Iterator[str]:
    for each in dataclasses.fields(resolve_name("transformers:TrainingArguments")):
        if any(kind in str(each.type) for kind in KINDS) and "dict" not in str(each.type):
            yield each.name


SIGNATURES = {
    "ddp": lambda: arguments("torch.nn.parallel:DistributedDataParallel"),
    "fsdp1": lambda: arguments("torch.distributed.fsdp:FullyShardedDataParallel"),
    "fsdp2": lambda: arguments("torch.distributed.fsdp:fully_shard"),
    "zero": of_zero,
    "accelerate": of_accelerate,
    "trainer": of_trainer,
}


@pytest.mark.parametrize("family", SIGNATURES)
def test_every_switch_and_number_is_drawn_or_left_out_for_a_reason(family):
    """Breaks when a release has a new setting, lacks one that is left out, or one is both drawn and left out."""
    there = {f"{family}.{name}" for name in SIGNATURES[family]()}
    assert there - SETTINGS.keys() == {key for key in LEFT_OUT if key.startswith(f"{family}.")}


def test_the_number_of_pairs_is_that_of_the_docs():
    """Breaks when settings or features are added, and docs/explore.md has the number of before."""
    assert f"{len(drawing.pairs()):,} pairs" in " ".join((ROOT / "docs" / "explore.md").read_text().split())
