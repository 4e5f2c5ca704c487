"""Programs in the ranks: every feature trains as in one process where it should, and planted faults are seen."""

import random
from itertools import cycle

import pytest

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from lab.explore import known
from lab.explore.case import Case
from lab.programs import drawing, refusals, sampling, training
from lab.programs import fault as faults
from lab.programs.program import Program
from lab.programs.settings import ACCELERATE, SETTINGS, TRAINERS
from tests.support.night import sampled

USUAL = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2", "ddp-find-unused")
REFUSED = {each.setting for each in refusals.DOCUMENTED if each.setting}
# By findings that are kept, or failures of the catalogue.
WRONG = {
    ("zero.round_robin_gradients", True),
    ("zero.stage3_module_granularity_threshold", 100),
    ("unfreeze", True),
    ("backward", "halves"),
    ("optimizer", "adafactor"),
    ("dpo.precompute_ref_log_probs", True),
}
WITH_A_REFERENCE = {"grpo.sync_ref_model", "grpo.use_bias_correction_kl", "gmpo.sync_ref_model"}


def under(name):
    """A strategy that takes a setting, or trains a feature."""
    setting = SETTINGS.get(name)
    if not setting or setting.family in (ACCELERATE, *TRAINERS):
        return {"backward": "ddp", "unfreeze": "ddp", "begins": "ddp", "around": "zero2"}.get(name, "fsdp2")
    of_family = (each for each in USUAL if strategies.family_name(each) == setting.family)
    return next(each for each in of_family if matches(each, (setting.strategies,)))


VALUES = training.VALUES | {name: setting.values for name, setting in SETTINGS.items()}
SPLIT = "trainer.split_batches"  # for which DeepSpeed's config has the rows of one rank, and a trainer those of all
FEATURES = [
    *((SPLIT, True, strategy) for strategy in ("zero2", "zero3", "ddp")),
    *((name, value, under(name)) for name, values in VALUES.items() for value in values[1:]),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "strategy"),
    sampled(FEATURES, 24, lambda name, value, strategy: name if name == SPLIT else strategy),
)
def test_every_feature_is_really_there(name, value, strategy, run):
    """Breaks when a feature is drawn that no loop has, or an engine has begun to do otherwise with one."""
    needed = drawing.needed(name)
    needed |= {"prepared": {"through": "accelerate"}, "generation": {"through": "sft"}}.get(value, {})
    needed |= {f"{name.partition('.')[0]}.beta": 0.1} if name in WITH_A_REFERENCE else {}
    case = Case(Program.of(3, {**needed, name: value}), strategy)
    result = run(case)
    if name in REFUSED:
        assert (refused := known.by_result(case, result)) and refused.kind == known.REFUSAL
    elif (name, value) in WRONG:
        assert result.outcome in (Outcome.DIVERGES, Outcome.RAISES)
    else:
        assert result.outcome == Outcome.TRAINS, f"{name} {value} under {case.strategy}: {result.detail}"


def test_what_a_release_does_not_take_is_impossible(monkeypatch):
    """Breaks when an exploration of an older stack counts our own TypeError as what an engine does."""
    import torch

    from lab.programs import loop

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda module: module)
    setup = strategies.Setup(0, 2, "off", "fp32", torch.device("cpu"), "", {}, strategy="ddp")
    with pytest.raises(Impossible, match="no argument batched_grad_copy for ddp"):
        loop.scenario(Program.of(3, {"ddp.batched_grad_copy": True}).to_json(), setup, 2)


ENGINES = ("ddp", "zero2", "fsdp2")


def planted(kind, engine, **features):
    """A case with a fault of a kind, under an engine, or the next one that can have it; None where none can."""
    wanted = {"tied": "head"} if kind == "untied" else {"buffer": "constant"} if kind == "buffer" else {}
    program = Program.of(5, {**wanted, **features, "accumulate": 2})
    fault = sampling.of_kind(kind, program, random.Random(kind))
    order = ENGINES[ENGINES.index(engine) :] + ENGINES
    possible = (name for name in order if refusals.injectable(program.spec, fault, name))
    return fault and Case(program, next(possible), fault=fault)


OF_LOOPS = [*zip(faults.KINDS, cycle(ENGINES), strict=False)]
OF_TRAINERS = [(kind, name) for kind in faults.KINDS if kind not in sampling.OF_A_LOOP for name in ("trainer", "sft")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where"),
    [*sampled(OF_LOOPS, 4, lambda kind, engine: engine), *sampled(OF_TRAINERS, 7, lambda kind, trainer: trainer)],
)
def test_a_planted_fault_is_seen(kind, where, run):
    """Breaks when a loop's features hide what is wrong; or when a trainer goes around what is injected: a third of what
    is planted would be none."""
    if where in ENGINES:
        case = planted(kind, where, between="evaluation", cleared="zeros")
    elif not (case := planted(kind, "fsdp2", through=where)):
        assert (kind, where) == ("buffer", "sft"), "its model has no buffers of ours"
        return
    result = run(case)
    assert result.outcome == Outcome.DIVERGES, result.detail


def test_a_planted_program_has_nothing_that_hides_its_fault():
    """Breaks when a step's sign, or a limit, makes two gradients one."""
    program = Program.of(1, {"optimizer": "adamw", "clip": "norm", "silent": True, "world_size": 1, "layers": 3})
    healthy, fault = sampling.planted(program, random.Random(1))
    assert healthy == program.with_only(["layers"])
    assert fault.kind in faults.KINDS
