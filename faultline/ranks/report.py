"""What ranks and their server report: they write JSON, and the supervisor reads that into the same classes."""

import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from faultline.base.errors import MACHINE, OTHER, FaultlineError
from faultline.base.traces import machine_remedy, message_of, own_fault
from faultline.cells.finding import Number
from faultline.ranks.facts import Facts

KINDS = ("gradients", "weights")
LONGEST = 40_000  # characters of an error's text
LIMITS = ("NOFILE", "FSIZE", "AS", "DATA", "STACK", "NPROC", "CPU")
CHAIN, FRAMES = 20, 200  # errors that follow from each other, and calls of each


@dataclass(frozen=True)
class Frame:
    """One call in a traceback, with its line of source."""

    file: str
    line: int
    name: str
    source: str = ""


@dataclass(frozen=True)
class Raised:
    """One exception of a chain: `text` is what Python prints behind its frames, of which the outermost comes first.

    `follows` says that it was raised from the one before it, and not only while that was handled.
    """

    kind: str
    message: str
    text: str
    frames: tuple[Frame, ...] = ()
    follows: bool = False


@dataclass(frozen=True)
class RankError:
    """The exception that ended a rank: `kind` is that of this suite's own exceptions (see base/errors.py), and `fault`
    the place in this suite's code that is at fault, if one is."""

    type: str
    message: str
    traceback: str
    fault: str = ""
    kind: str = OTHER


@dataclass(frozen=True)
class ErrorReport(RankError):
    """What only the judgement of a cell needs beside it: when it was, and its causes; the last of `chain` is itself."""

    at: float = 0.0
    chain: tuple[Raised, ...] = ()

    @property
    def line(self) -> str:
        """The line of source that raised."""
        frames = self.chain[-1].frames if self.chain else ()
        return frames[-1].source if frames else ""


@dataclass
class Step:
    """Relative errors of a step by parameter, or None where nothing was read, and what they say (see `compare`).

    Names in `bad`, `nan` and `rounding` have the kind before them, as ``gradients:embed.weight``; `rounding` has how
    many times the noise an error is that rounding explains, `factors` by kind how many times the reference's all of the
    step is, `partial` the same of those alone that are bad, `outputs` the errors of modules where those were observed,
    and `buffers` those of buffers that are bad.
    """

    gradients: Mapping[str, float] | None = None
    weights: Mapping[str, float] | None = None
    bad: list[str] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    nan: list[str] = field(default_factory=list)
    rounding: dict[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    partial: dict[str, float] = field(default_factory=dict)
    outputs: Mapping[str, float] = field(default_factory=dict)
    buffers: Mapping[str, float] = field(default_factory=dict)

    def errors(self, kind: str) -> Mapping[str, float]:
        return (self.gradients if kind == "gradients" else self.weights) or {}


@dataclass(frozen=True)
class Checkpoint:
    """What of `names` live weights a checkpoint lacks, by name.

    They are `missing`, `empty` or of another shape (`misshapen`), unequal by more than their precision can tell apart
    (`differs`), or in groups that aren't tied any more (`untied`). `error` is that of loading it.
    """

    names: int
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    differs: Mapping[str, float] = field(default_factory=dict)
    untied: tuple[tuple[str, ...], ...] = ()
    error: str = ""


class Deviation(NamedTuple):
    """A relative error and its place: a list in JSON."""

    parameter: str
    kind: str
    step: int
    rank: int
    error: Number


Measure = tuple[float, float]
"""The norm of a tensor, and its product with signs that are drawn by its name."""


@dataclass(frozen=True)
class Sketch:
    """What a run did, in a few numbers that can be held against another run's, by parameter.

    Of the gradients of the first step, and of how far the weights came; `norms` are those of all gradients of each step
    together, and `logged` what the engine says that they are, where it says so.
    """

    gradients: Mapping[str, Measure] = field(default_factory=dict)
    weights: Mapping[str, Measure] = field(default_factory=dict)
    norms: tuple[float, ...] = ()
    logged: tuple[float, ...] = ()


@dataclass
class Report:
    """One rank's report, filled while it runs; `evidence` has whatever shows that its cell was what its name says.

    `started` has the relative errors of the weights that training began with, of those that are not the reference's,
    and `drawn` those of buffers.
    `entered` has a digest of each buffer as each step's first forward pass began; `executed` the names of functions
    that ran by their files, where a job asks for them.
    `before` are the steps that earlier ranks had trained, of which `steps` has none.
    """

    rank: int = 0
    started: Mapping[str, float] = field(default_factory=dict)
    drawn: Mapping[str, float] = field(default_factory=dict)
    before: int = 0
    steps: list[Step] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    error: ErrorReport | None = None
    facts: Facts | None = None
    compared: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    entered: tuple[Mapping[str, str], ...] = ()
    checkpoint: Checkpoint | None = None
    sketch: Sketch | None = None
    executed: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def begun(self) -> Mapping[str, float]:
        """The relative errors of all that training began with, of what is not the reference's."""
        return {**self.started, **self.drawn}

    def numbered(self) -> Iterator[tuple[int, Step]]:
        """Each step with its number in the whole life, from 1."""
        return iter(enumerate(self.steps, self.before + 1))

    def deviations(self) -> Iterator[tuple[Deviation, float | None]]:
        """Each error, with how many times the noise it is, if that excuses it."""
        for number, step in self.numbered():
            for kind in KINDS:
                for name, error in step.errors(kind).items():
                    yield Deviation(name, kind, number, self.rank, error), step.rounding.get(f"{kind}:{name}")


@dataclass(frozen=True)
class Message:
    """What a rank server says: that it is `ready`, with the versions of its stack; the `pids` of a cell's ranks and the
    `port` at which they meet; of one rank its report, or its exit code (negative: a signal) and when that was seen;
    `done`, once all ranks are reaped."""

    ready: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    port: int = 0
    rank: int = 0
    report: Report | None = None
    exit: int | None = None
    at: float = 0.0
    done: bool = False


def error_report(error: BaseException) -> ErrorReport:
    """What is known of an exception, while it is handled."""
    chain = tuple(_chain(error, set())[-CHAIN:])
    text, kind = bounded("".join(traceback.format_exception(error))), chain[-1].kind
    if kind == OTHER and machine_remedy(error):
        kind = MACHINE
    return ErrorReport(type(error).__name__, chain[-1].message, text, own_fault(error), kind, time.monotonic(), chain)


def bounded(text: str) -> str:
    """A text, or its beginning and its end where it is very long: it goes through a pipe, to a file and onto a page."""
    cut = len(text) - LONGEST
    return text if cut <= 0 else f"{text[: LONGEST // 2]}\n[{cut} characters]\n{text[-LONGEST // 2 :]}"


def _chain(error: BaseException, seen: set[int]) -> list[Raised]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = tuple(
        Frame(each.filename, each.lineno or 0, each.name, each.line or "")
        for each in traceback.extract_tb(error.__traceback__)
    )
    text = bounded("".join(traceback.format_exception_only(error)))
    kind = error.kind if isinstance(error, FaultlineError) else OTHER
    raised = Raised(kind, bounded(message_of(error)), text, frames[-FRAMES:], error.__cause__ is not None)
    return [*(_chain(before, seen) if before and id(before) not in seen else ()), raised]


def process_settings() -> Mapping[str, object]:
    """The user, torch's defaults, and the limits of this process, by name, which somebody's code may change."""
    torch = sys.modules["torch"]
    limits = {f"the limit {name}": resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS}
    defaults = {"torch's default device": torch.get_default_device(), "torch's default type": torch.get_default_dtype()}
    return {"the user": os.getuid(), **defaults, **limits}


def blame_settings(error: ErrorReport, before: Mapping[str, object], of_user: bool) -> ErrorReport:
    """An error of this suite's code, as the model's where that has changed such settings since; with somebody's own
    model, each error says so."""
    now = process_settings()
    changed = [f"{name} from {before[name]} to {now[name]}" for name in now if now[name] != before[name]]
    if not changed or not (error.fault or of_user):
        return error
    note = f" (the model's code set {', '.join(changed)})"
    last = replace(
        error.chain[-1], message=f"{error.chain[-1].message}{note}", text=f"{error.chain[-1].text.rstrip()}{note}\n"
    )
    return replace(error, fault="", message=last.message, chain=(*error.chain[:-1], last))
