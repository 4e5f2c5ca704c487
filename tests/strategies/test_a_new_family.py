"""A new family of strategies is one new file: every command knows it, and no other file changes."""

from __future__ import annotations

import ast

import pytest

from tests.support.clone import cloned
from tests.support.program import python

FAMILY = '''"""Data parallel training by hand: ranks average their gradients after each backward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from faultline.strategies import Evidence, Family, Setup, Wrapped
from faultline.strategies.shared import (
    load_whole,
    nbytes,
    plain_backward,
    plain_step,
    save_whole,
    whole_gradients,
    whole_parameters,
)


@dataclass(frozen=True)
class Options:
    mean: bool = True


STRATEGIES = {"handmade": Options(), "handmade-sum": Options(mean=False)}  # the sum is the fault


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    import torch.distributed as dist

    model.hand_made = options.mean

    @contextmanager
    def accumulate(last: bool) -> Iterator[None]:
        yield
        for parameter in model.parameters() if last else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= setup.world_size if options.mean else 1

    return Wrapped(model, plain_backward(setup.micro_batches), plain_step(optimizer(model)), accumulate=accumulate)


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    return {}


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    return {}


def evidence(model: Any) -> dict[str, object]:
    held = nbytes(model.parameters())
    wrapper = f"by hand, {model.hand_made=}" if hasattr(model, "hand_made") else type(model).__name__
    return {"wrapper": wrapper, "bytes_held": held, "bytes_whole": held}


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "HAND_MADE"}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    wanted = f"by hand, model.hand_made={options.mean}"
    return [] if evidence["wrapper"] == wanted else [f"the model is {evidence['wrapper']}, not {wanted}"]


FAMILY = Family(
    __name__,
    9,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=accelerate,
    parameters=whole_parameters,
    gradients=whole_gradients,
    save=save_whole,
    load=load_whole,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    engine_settings=((re.compile(r"distributed_type: HAND_MADE"), ("handmade*",)),),
    messages=((re.compile(r"hand-made reduction of \\d+ gradients"), ("handmade*",)),),
)
'''
FAILURE = "zero2_ga_wrong_gradient"  # the one with the fewest cells
FAULTY = f"{FAILURE}/broken/handmade-sum/off/fp32/w2/cpu"
LOG = "hand-made reduction of 12 gradients\nRuntimeError: got mixed torch.Tensor and DTensor, need to convert all\n"
CONFIG = "compute_environment: LOCAL_MACHINE\ndistributed_type: HAND_MADE\n"


@pytest.fixture
def faultline(tmp_path):
    """Call the program of a copy of this project, in which the family's file is the only change."""
    copy = cloned(tmp_path / "faultline")
    (copy / "faultline" / "strategies" / "handmade.py").write_text(FAMILY)
    (copy / "run.log").write_text(LOG)
    (copy / "accelerate.yaml").write_text(CONFIG)

    def call(*words, program=("-m", "faultline")):
        done = python(*program, *words, cwd=copy)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    call.copy = copy
    return call


@pytest.mark.nightly
@pytest.mark.slow
def test_a_new_family_of_strategies_is_one_new_file(faultline):
    """Breaks when a command has to be told of a strategy: when it knows strategies by a list of its own."""
    _, listed = faultline("list", "--strategy", "handmade*", "--failure", FAILURE)
    assert FAILURE in listed

    code, output = faultline("run", "--failure", FAILURE)
    assert code == 1 and "1 not as expected:" in output, output
    assert FAULTY in output and "expected trains, got diverges" in output, "the seeded fault is not caught"

    code, output = faultline("maintain", "bless")
    assert code == 0 and '+strategy = "handmade-sum"' in output
    assert faultline("run", "--cell", FAULTY)[0] == 0, "what was blessed is not expected"

    runs = sorted(path for path in (faultline.copy / "results").iterdir() if not path.is_symlink())
    assert faultline("maintain", "readmes", str(runs[0]))[0] == 0
    assert "| handmade-sum |" in (faultline.copy / "repros" / FAILURE / "README.md").read_text()
    assert "`handmade-sum`" in (faultline.copy / "docs" / "matrix.md").read_text()
    assert faultline("show", FAILURE)[0] == 0

    assert "no run ended so under handmade or handmade-sum" in faultline("diagnose", "run.log")[1]
    assert "handmade* (accelerate.yaml:2 distributed_type: HAND_MADE)" in faultline("audit", "accelerate.yaml")[1]

    code, exported = faultline("export", FAULTY)
    functions = {node.name for node in ast.walk(ast.parse(exported)) if isinstance(node, ast.FunctionDef)}
    assert code == 0 and {"wrap", "accumulate", "evidence"} <= functions, "its file has another wrapping"
    (faultline.copy / "repro.py").write_text(exported)
    code, output = faultline(program=["repro.py"])
    assert code == 0 and "REPRODUCED: no error, and other weights than in one process" in output
