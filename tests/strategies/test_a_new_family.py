"""A new family of strategies is one new file, a new axis a few lines in five: every command knows them."""

from __future__ import annotations

import ast

import pytest

from tests.support.clone import cloned
from tests.support.program import python

HAND_MADE = '''"""Data parallel training by hand: ranks average their gradients after each backward pass."""

from __future__ import annotations

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
    engine_settings={r"distributed_type: HAND_MADE": ("handmade*",)},
    messages={r"hand-made reduction of \\d+ gradients": ("handmade*",)},
)
'''
TENSOR_PARALLEL = '''"""Tensor parallelism: all ranks share one batch, and each MLP's weights are DTensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from faultline.strategies import Evidence, Family, Setup, Wrapped
from faultline.strategies.fsdp2 import whole_tensors
from faultline.strategies.shared import load_shards, nbytes, parameter_map, plain_backward, plain_step, save_shards


@dataclass(frozen=True)
class Options:
    mean: bool = True


STRATEGIES = {"tensor": Options(), "tensor-sum": Options(mean=False)}  # ranks with one batch have nothing to sum


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(setup.device.type, (setup.world_size,))
    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.mlp, mesh, plan)

    @contextmanager
    def accumulate(last: bool) -> Iterator[None]:
        yield
        for parameter in model.parameters() if last and not options.mean else ():
            parameter.grad *= setup.world_size

    return Wrapped(model, plain_backward(setup.micro_batches), plain_step(optimizer(model)), accumulate=accumulate)


def parameters(model: Any) -> dict[str, Any]:
    return whole_tensors({name: parameter.detach() for name, parameter in parameter_map(model).items()})


def gradients(model: Any) -> dict[str, Any]:
    return whole_tensors({name: p.grad for name, p in parameter_map(model).items() if p.grad is not None})


def evidence(model: Any) -> dict[str, object]:
    from torch.distributed.tensor import DTensor

    shards = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    sizes = {"bytes_held": nbytes(shards), "bytes_whole": nbytes(model.parameters())}
    return {"wrapper": type(model).__name__, **sizes}


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "TENSOR"}


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    return {}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    return [] if evidence["bytes_held"] < evidence["bytes_whole"] else ["every rank holds all parameters"]


FAMILY = Family(
    __name__,
    9,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=arguments,
    parameters=parameters,
    gradients=gradients,
    save=save_shards,
    load=load_shards,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    data_place=lambda options, rank, world_size: (0, 1),
    engine_settings={r"distributed_type: TENSOR": ("tensor*",)},
    messages={r"tensor-parallel group of \\d+ ranks": ("tensor*",)},
)
'''
FAILURE = "zero2_ga_wrong_gradient"  # the one with the fewest cells
MIXED = "RuntimeError: got mixed torch.Tensor and DTensor, need to convert all\n"
# A name, its file, a line that its engine prints, and its type in a config of accelerate.
FAMILIES = [
    ("handmade", HAND_MADE, "hand-made reduction of 12 gradients", "HAND_MADE"),
    ("tensor", TENSOR_PARALLEL, "tensor-parallel group of 2 ranks", "TENSOR"),
]


@pytest.fixture
def faultline(tmp_path):
    """Call the program of a copy of this project."""
    copy = cloned(tmp_path / "faultline")

    def call(*words, program=("-m", "faultline")):
        done = python(*program, *words, cwd=copy)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    call.copy = copy
    return call


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "message", "kind"), FAMILIES, ids=[name for name, *_ in FAMILIES])
def test_a_new_family_of_strategies_is_one_new_file(faultline, name, file, message, kind):
    """Breaks when a command has to be told of a strategy: when it knows strategies by a list of its own, or takes for
    granted that each rank has rows of its own and whole weights."""
    (faultline.copy / "faultline" / "strategies" / f"{name}.py").write_text(file)
    (faultline.copy / "run.log").write_text(f"{message}\n{MIXED}")
    (faultline.copy / "accelerate.yaml").write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\n")
    faulty = f"{FAILURE}/broken/{name}-sum/off/fp32/w2/cpu"
    _, listed = faultline("list", "--strategy", f"{name}*", "--failure", FAILURE)
    assert FAILURE in listed

    code, output = faultline("run", "--failure", FAILURE)
    assert code == 1 and "1 not as expected:" in output, output
    assert faulty in output and "expected trains, got diverges" in output, "the seeded fault is not caught"

    code, output = faultline("maintain", "bless")
    assert code == 0 and f'+strategy = "{name}-sum"' in output
    assert faultline("run", "--cell", faulty)[0] == 0, "what was blessed is not expected"

    runs = sorted(path for path in (faultline.copy / "results").iterdir() if not path.is_symlink())
    assert faultline("maintain", "readmes", str(runs[0]))[0] == 0
    assert f"| {name}-sum |" in (faultline.copy / "repros" / FAILURE / "README.md").read_text()
    assert f"`{name}-sum`" in (faultline.copy / "docs" / "matrix.md").read_text()
    assert faultline("show", FAILURE)[0] == 0

    assert f"no run ended so under {name} or {name}-sum" in faultline("diagnose", "run.log")[1]
    assert f"{name}* (accelerate.yaml:2 distributed_type: {kind})" in faultline("audit", "accelerate.yaml")[1]

    code, exported = faultline("export", faulty)
    functions = {node.name for node in ast.walk(ast.parse(exported)) if isinstance(node, ast.FunctionDef)}
    assert code == 0 and {"wrap", "accumulate", "evidence"} <= functions, "its file has another wrapping"
    (faultline.copy / "repro.py").write_text(exported)
    code, output = faultline(program=["repro.py"])
    assert code == 0 and "REPRODUCED: no error, and other weights than in one process" in output


# Of a new axis `loss`, whose value `doubled` is a fault: what is added to a file, before what.
AXIS = {
    "faultline/base/axes.py": {
        "DEVICE = ": 'LOSS = Axis("loss", "", ("plain", "doubled"), "plain", "plain", True, "only if asked for")\n',
        "DEVICE)": "LOSS, ",
    },
    "faultline/cells/cell.py": {
        "    compile: tuple[str, ...]": "    loss: tuple[str, ...] = ()\n",
        "    compile: str =": '    loss: str = "plain"\n',
    },
    "faultline/ranks/plain_loop.py": {
        "        wrapped.backward(": """\
        loss = loss * (2 if run.cell.loss == "doubled" else 1)
        report.evidence["loss"] = run.cell.loss
"""
    },
    "faultline/runs/rank_reports.py": {
        "        if len(report.steps) != steps:": '        doubts += [who + "loss"] * (shown["loss"] != cell.loss)\n'
    },
    "faultline/export/templates/scenario.py.j2": {
        'print(f"{rank=}': """\
{% if file.cell.loss == "doubled" %}
if not in_one_process:
    value = 2 * value
{% endif %}
"""
    },
}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_new_axis_is_a_few_lines_in_five_files(faultline):
    """Breaks when a command has a list of axes of its own, or takes for granted that an id has no further one."""
    for name, added in AXIS.items():
        text = (faultline.copy / name).read_text()
        for place, new in added.items():
            assert text.count(place) == 1, (name, place)
            text = text.replace(place, new + place)
        (faultline.copy / name).write_text(text)
    doubled, narrow = f"{FAILURE}/broken/ddp/off/fp32/w2/doubled/cpu", ("--failure", FAILURE, "--strategy", "ddp")
    assert doubled not in faultline("list", "--ids", *narrow)[1], "an axis that nobody named widens the matrix"
    assert f"{doubled}  only if asked for" in faultline("list", "--left-out", *narrow)[1]
    assert doubled in faultline("list", "--ids", *narrow, "--loss", "doubled")[1]

    code, output = faultline("run", *narrow, "--loss", "doubled", "--variant", "broken", "--precision", "fp32")
    assert code == 1 and f"{doubled}  unexpected failure" in output and "got diverges" in output, output
    code, output = faultline("maintain", "bless")
    assert code == 0 and '+loss = "doubled"' in output, output
    assert faultline("run", "--cell", doubled)[0] == 0, "what was blessed is not expected"
    assert "broken doubled" in faultline("report")[1]

    (faultline.copy / "repro.py").write_text(faultline("export", doubled)[1])
    code, output = faultline(program=["repro.py"])
    assert code == 0 and "REPRODUCED: no error, and other weights than in one process" in output
