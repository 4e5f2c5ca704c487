"""Programs in the ranks: every feature trains as in one process where it should, and planted faults are seen."""

import random

import pytest
import torch

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from faultline.explore import known
from faultline.explore.case import Case
from faultline.explore.running import Runner
from faultline.programs import drawing, faulty, training, truth
from faultline.programs import fault as faults
from faultline.programs.program import Program
from faultline.programs.sampling import seeded
from faultline.programs.settings import ACCELERATE, SETTINGS, TRAINERS
from tests.support.night import sampled

USUAL = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2", "ddp-find-unused")
REFUSED = ("zero.prescale_gradients", "zero.gradient_predivide_factor")
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


def run(case, server, references):
    runner = Runner()
    return runner(server, references, runner.add(case))


def under(name):
    """A strategy that takes a setting, or trains a feature."""
    setting = SETTINGS.get(name)
    if not setting or setting.family in (ACCELERATE, *TRAINERS):
        return {"backward": "ddp", "unfreeze": "ddp", "begins": "ddp", "around": "zero2"}.get(name, "fsdp2")
    return next(
        each
        for each in USUAL
        if strategies.family_name(each) == setting.family and matches(each, (setting.strategies,))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    sampled(
        (
            (name, value)
            for name, values in {**training.VALUES, **{key: each.values for key, each in SETTINGS.items()}}.items()
            for value in values[1:]
        ),
        5,
    ),
)
def test_every_feature_is_really_there(name, value, shared_server, references):
    """Breaks when a feature is drawn that no loop has, or an engine has begun to do otherwise with one."""
    needed = drawing.needed(name)
    needed |= {"prepared": {"through": "accelerate"}, "generation": {"through": "sft"}}.get(value, {})
    needed |= {f"{name.partition('.')[0]}.beta": 0.1} if name in WITH_A_REFERENCE else {}
    case = Case(Program.of(3, {**needed, name: value}), under(name))
    result = run(case, shared_server, references)
    if name in REFUSED:
        refused = known.after(case, result)
        assert refused and refused.kind == known.REFUSAL
    elif (name, value) in WRONG:
        assert result.outcome in (Outcome.DIVERGES, Outcome.RAISES)
    else:
        assert result.outcome == Outcome.TRAINS, f"{name} {value} under {case.strategy}: {result.detail}"


@pytest.mark.slow
def test_batches_are_split_under_every_engine(shared_server, references):
    """Breaks when DeepSpeed's config has the rows of one rank where a trainer is given those of all."""
    for strategy in ("ddp", "zero2", "zero3"):
        case = Case(Program.of(3, {"through": "trainer", "trainer.split_batches": True}), strategy)
        result = run(case, shared_server, references)
        assert result.outcome == Outcome.TRAINS, f"{strategy}: {result.detail}"


def test_what_a_release_does_not_take_is_impossible(monkeypatch):
    """Breaks when an exploration of an older stack counts our own TypeError as what an engine does."""
    from faultline.programs import loop

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda module: module)
    setup = strategies.Setup(0, 2, "off", "fp32", torch.device("cpu"), "", {}, strategy="ddp")
    with pytest.raises(Impossible, match="no argument batched_grad_copy for ddp"):
        loop.scenario(Program.of(3, {"ddp.batched_grad_copy": True}).to_json(), setup, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_planted_fault_is_seen(kind, shared_server, references):
    """Breaks when a loop's features hide what is wrong."""
    choose = random.Random(kind)
    wanted = {"tied": "head"} if kind == "untied" else {"buffer": "constant"} if kind == "buffer" else {}
    program = Program.of(5, {**wanted, "accumulate": 2, "between": "evaluation", "cleared": "zeros"})
    fault = seeded(kind, program.spec, choose)
    strategy = next(name for name in ("ddp", "zero2", "fsdp2") if truth.injectable(program.spec, fault, name))
    assert run(Case(program, strategy, fault=fault), shared_server, references).outcome == Outcome.DIVERGES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "kind"),
    sampled(((name, kind) for kind in faults.KINDS if kind not in faulty.OF_A_LOOP for name in ("trainer", "sft")), 3),
)
def test_a_fault_planted_in_a_trainer_is_seen(kind, trainer, shared_server, references):
    """Breaks when a trainer goes around what is injected: a third of what is planted would be none."""
    choose = random.Random(kind)
    wanted = {"tied": "head"} if kind == "untied" else {"buffer": "constant"} if kind == "buffer" else {}
    program = Program.of(5, {**wanted, "through": trainer, "accumulate": 2})
    fault = faulty.of_kind(kind, program, choose)
    if not fault:
        assert (kind, trainer) == ("buffer", "sft"), "its model has no buffers of ours"
        return
    strategy = next(name for name in ("fsdp2", "zero2", "ddp") if truth.injectable(program.spec, fault, name))
    result = run(Case(program, strategy, fault=fault), shared_server, references)
    assert result.outcome == Outcome.DIVERGES, result.detail


@pytest.mark.slow
@pytest.mark.parametrize("life", ["resumed", "resized"])
def test_a_fault_of_the_second_half_is_seen(life, shared_server, references):
    """Breaks when ranks that resume count their steps anew, so that what is planted in step 3 never comes."""
    for through in ({}, {"through": "trainer"} if life == "resumed" else {}):
        case = Case(Program.of(562, {"life": life, **through}), "ddp", fault=faults.Fault("momentum", step=3))
        assert run(case, shared_server, references).outcome == Outcome.DIVERGES


def test_a_planted_program_has_nothing_that_hides_its_fault():
    """Breaks when a step's sign, or a limit, makes two gradients one."""
    program = Program.of(1, {"optimizer": "adamw", "clip": "norm", "silent": True, "world_size": 1, "layers": 3})
    healthy, fault = faulty.planted(program, random.Random(1))
    assert healthy == program.with_only(["layers"])
    assert fault.kind in faults.KINDS
