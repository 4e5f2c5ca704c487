"""What a file must say of its cell, beside the failure's own code."""

from __future__ import annotations

import copy
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import catalogue, expectations, known, runner, strategies
from faultline.catalogue import Failure, Variant
from faultline.errors import UsageError
from faultline.matrix import ROWS, STEPS, TOLERANCE, Cell
from faultline.report import one_line
from faultline.results import stack_name
from faultline.server import STACK
from faultline.strategies import Setup, zero

TEMPLATES = Path(__file__).parent / "templates"
STRATEGIES = TEMPLATES / "strategies"
# A parameter that moves less than this part of the largest movement is held against that.
FLOOR = {"fp32": 1e-3, "bf16": 0.05}
LONGEST_ERROR = 180  # characters of one in a file's docstring
DEADLINE = 180  # seconds that a rank may take
OPTIMIZER = "torch.optim.SGD([p for p in MODEL.parameters() if p.requires_grad], lr=0.05, momentum=0.9)"
QUIET = 20  # seconds without work after which a rank waits for ever
EPSILON = {"fp32": "2**-23", "bf16": "2**-8"}  # of a checkpoint: a rounding
CHECKPOINTS = {
    "checkpoint-untied": "no error, and weights that are one in the model and two in the checkpoint",
    "checkpoint-differs": "no error, and other weights in the checkpoint than were trained",
    "checkpoint-lacks": "no error, and a checkpoint that lacks weights",
}
COMPARED = ("diverges", "trains")  # outcomes that show only beside one process


@dataclass(frozen=True)
class Place:
    """A cell with all that is known of it: what it does, and on which versions."""

    cell: Cell
    failure: Failure
    variant: Variant
    outcome: str
    signature: str
    pins: Mapping[str, str]
    saves: bool

    @property
    def kind(self) -> str:
        """What the file looks for: the outcome, or what it is about; for a cell that trains, what it would do else."""
        if self.signature.startswith("checkpoint-") or (self.outcome == "trains" and self.saves):
            return "checkpoint"
        if self.outcome != "trains":
            return self.outcome
        return "misplaced" if self.variant.second else "trains"


def place(cell: Cell) -> Place:
    """What is known of a cell; raises UsageError where there is nothing to export."""
    failure = catalogue.failures()[cell.failure]
    rule = expectations.first(runner.rules(failure), cell, known.pinned()) or expectations.Rule()
    if rule.outcome in ("impossible", "invalid"):
        why = f": {rule.reason}" if rule.reason else ""
        raise UsageError(f"{cell.id} can't be exported: it is {rule.outcome} here{why}")
    signature = rule.signatures[0] if rule.signatures else ""
    variant, saves = (
        failure.variant(cell.variant),
        hasattr(catalogue.load_module(catalogue.REPROS / cell.failure), "save"),
    )
    return Place(cell, failure, variant, rule.outcome, signature, known.everything_pinned(), saves)


def facts(where: Place) -> dict[str, Any]:
    """What the templates are given, as far as it doesn't come from the failure's code."""
    cell, failure = where.cell, where.failure
    family = strategies.family(cell.strategy).__name__.rpartition(".")[2]
    if not (STRATEGIES / f"{family}.py.j2").exists():
        raise UsageError(f"{cell.id} can't be exported: there is no template for strategies of {family}")
    bf16, cuda = cell.precision == "bf16", cell.device == "cuda"
    pattern = documented(where)
    if where.kind == "raises" and not pattern:
        raise UsageError(f"{cell.id} can't be exported: its error has no signature to look for")
    distributed = cell.strategy != "single"
    options = strategies.options(cell.strategy)
    o: dict[str, Any] = {
        "cell": cell,
        "kind": where.kind,
        "family": family,
        "options": options,
        "stage": options.get("zero", {}).get("stage"),
        "world": cell.world_size,
        "rows": ROWS,
        "steps": STEPS,
        "bf16": bf16,
        "cuda": cuda,
        "autocast": bf16 and not cell.strategy.startswith(("zero", "fsdp")),
        "checkpointing": cell.checkpointing,
        "distributed": distributed,
        "trainer": bool(where.variant.trainer),
        "second": where.variant.second,
        "strategy_name": cell.strategy,
        "pattern": _raw(pattern),
        "signal": f"-signal.{where.signature}" if where.signature.startswith("SIG") else "1",
        "tolerance": TOLERANCE[cell.precision],
        "floor": FLOOR[cell.precision],
        "deadline": DEADLINE,
        "optimizer": OPTIMIZER.replace,
        "micro_batches": 1,
        "saves": where.saves,
        "saved_after": STEPS - 1,
        "untied": where.signature == "checkpoint-untied",
        "epsilon": EPSILON[cell.precision],
        "quiet": QUIET,
        "backend": '"nccl" if torch.cuda.device_count() >= WORLD_SIZE else "gloo"' if cuda else '"gloo"',
        "packages": "__PINS__",
        "ds_config": None,
        "accelerated": False,
        "dropout": False,
        "read_weights": "weights(built.model_wrapped)",
        "requires_python": ">=3.11,<3.14",
        "title": failure.title,
        "to_device": (lambda text: f"to({text}, device)") if cuda else (lambda text: text),
    }
    o["variables"] = variables(family, options, where.pins) if where.variant.trainer else {}
    first = environment(family, cuda, bool(where.variant.trainer))
    o["environment"] = [", ".join(f'{name}="{value}"' for name, value in each.items()) for each in first]
    o["reproduced"] = told(where)
    o["intro"] = intro(where, o)
    return o


def documented(where: Place) -> str:
    """The pattern of the cell's error: those of its alternatives that it was seen to match, if it was."""
    pattern, errors = where.failure.signatures.get(where.signature, ""), seen(where)
    try:
        return "|".join(each for each in pattern.split("|") if any(re.search(each, e) for e in errors)) or pattern
    except re.error:  # not all of its bars are between alternatives
        return pattern


def seen(where: Place) -> list[str]:
    """The errors that the cell ended with on its stack, in its failure's words; those of any cell where it isn't
    recorded itself."""
    stack = stack_name({name: where.pins[name] for name in STACK if name in where.pins})
    there = [entry for entry in _recorded(where) if stack in entry["stacks"]]
    own = [entry for entry in there if where.cell.id in entry["stacks"][stack]]
    return [entry["error"] for entry in own or there]


def shown(where: Place) -> str:
    """The error to show of a cell: of its own stack if one was recorded there, else of another; empty if of none."""
    return next(iter([*seen(where), *(entry["error"] for entry in reversed(_recorded(where)))]), "")


def _recorded(where: Place) -> list[dict[str, Any]]:
    """What is recorded of the cell's failure under its signature, on any stack."""
    wanted = where.cell.failure, where.signature
    return [entry for entry in known.recorded() if (entry["failure"], entry["signature"]) == wanted]


def beginning(error: str) -> str:
    """The first sentences of an error, as many as fit on two lines."""
    if len(error) <= LONGEST_ERROR:
        return error
    sentences = re.match(r".*[.!?](?= )", error[:LONGEST_ERROR])
    return f"{sentences[0] if sentences else error[:LONGEST_ERROR].rpartition(' ')[0]} ..."


def _raw(pattern: str) -> str:
    """A pattern as source, with lines broken in front of bars where it is long."""
    lines = [""]
    for piece in re.split(r"(?<!\\)(?=\|)", pattern):
        lines[-1:] = [lines[-1] + piece] if len(lines[-1] + piece) < 105 else [lines[-1], piece]
    return "(" + "\n".join(f'r"{each}"' if '"' not in each else repr(each) for each in lines if each) + ")"


def told(where: Place) -> str:
    """What the file says when it sees what it looks for."""
    return {
        "raises": "the error above",
        "diverges": "no error, and other weights than in one process",
        "trains": "no error, and other weights than in one process",
        "misplaced": "each rank holds the whole of a model that should be sharded",
        "crashes": f"a rank was killed by {where.signature}",
        "hangs": "the ranks wait for ever",
        "checkpoint": CHECKPOINTS.get(where.signature, "no error, and a checkpoint without what was trained"),
    }[where.kind]


def expected(where: Place) -> str:
    return "it trains, and what was trained is saved" if where.saves else "it trains as in one process"


def intro(where: Place, o: Mapping[str, Any]) -> str:
    cell = where.cell
    device = "GPU" if o["cuda"] else "CPU"
    ranks = "in one process" if cell.strategy == "single" else f"on {cell.world_size} rank{'s' * (cell.world_size > 1)}"
    checkpointing = "no" if cell.checkpointing == "off" else cell.checkpointing
    happens = f"Expected: {expected(where)}. Instead: {told(where)}."
    if where.kind == "raises":
        error = shown(where) or "an error with the words of SIGNATURE."
        error = " ".join(one_line(error).split()).replace("\\", "/").replace('"', "'")  # in a docstring
        happens = f"Expected: {expected(where)}. Instead: {beginning(error)}"
    if where.outcome == "trains":
        happens = "This is known to train: NOT REPRODUCED, and exit code 1, is what is expected of it."
    if where.kind == "crashes":
        happens += f" Under torchrun, the launcher may add what it sees of {where.signature}."
    torchrun = f"torchrun --nproc_per_node {cell.world_size} repro.py"
    again = f"`python repro.py`, or `{torchrun}`: REPRODUCED and exit code 0, or NOT REPRODUCED and 1."
    lines = [
        f"Run under {cell.strategy} {ranks} ({device}, {cell.precision}), {checkpointing} gradient checkpointing"
        + (f", variant {cell.variant}." if where.variant.remedy != "broken" else "."),
        *textwrap.wrap(happens, 118, break_long_words=False, break_on_hyphens=False),
        records(where.failure),
        again,
    ]
    return "\n".join(lines)


def records(failure: Failure) -> str:
    """The first records of a failure, as many as fit on a line, and how many more there are."""
    first, *others = failure.records
    told = f"Records: {first}"
    while others and len(f"{told}, {others[0]} and 99 more") <= 118:
        told += f", {others.pop(0)}"
    return told + (f" and {len(others)} more" if others else "")


def environment(family: str, cuda: bool, trainer: bool) -> list[dict[str, str]]:
    """Variables that have to be set before anything is imported, line by line."""
    engine = {"DS_ACCELERATOR": "cpu"} if family == "zero" else {}
    hidden = {} if cuda else {"CUDA_VISIBLE_DEVICES": "", **engine, "GLOO_SOCKET_IFNAME": "lo"}
    first = {**hidden, "OMP_NUM_THREADS": "1"}
    return [first, {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}] if trainer else [first]


def variables(family: str, options: Mapping[str, Any], pins: Mapping[str, str]) -> dict[str, str]:
    """Variables of accelerate's launcher without which a trainer's own arguments have no effect."""
    if family == "fsdp1":
        return {"FSDP_SHARDING_STRATEGY": options["sharding"]}
    if family == "fsdp2" and pins["transformers"].startswith("4."):
        return {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": str(options["reshard_after_forward"]).lower()}
    return {}


def shim(o: Mapping[str, Any]) -> str:
    """The function that lets accelerate do on CPUs what it was asked for."""
    names = {"zero": "deepspeed_on_cpu", "fsdp1": "fsdp_on_cpu", "fsdp2": "fsdp_on_cpu"}
    return "" if o["cuda"] else names.get(o["family"], "")


def config(options: Mapping[str, Any], cell: Cell, changes: Mapping[str, Any], micro_batches: int) -> dict[str, Any]:
    """The DeepSpeed config of a cell, without what DeepSpeed does anyway."""
    setup = Setup(0, cell.world_size, cell.checkpointing, cell.precision, None, "", {}, micro_batches)
    found = zero.merged(copy.deepcopy(zero.config(dict(options), setup)), dict(changes))
    usual = {"gradient_accumulation_steps": 1}
    usual |= {} if "offload_optimizer" in found["zero_optimization"] else {"zero_force_ds_cpu_optimizer": False}
    return {key: value for key, value in found.items() if key not in usual or usual[key] != value}


def filled(name: str, content: Mapping[str, Any]) -> list[str]:
    """Statements that make a dictionary of that name, each with as many keys as fit on a line."""
    statements: list[str] = []
    items: dict[str, Any] = {}
    for key, value in content.items():
        if items and len(f"{name} |= { {**items, key: value} }") > 120:
            statements.append(f"{name} {'|' if statements else ''}= {items}")
            items = {}
        items[key] = value
    return [*statements, f"{name} {'|' if statements else ''}= {items}"]
