"""What a rank runs, and the places where a test may reach into it."""

import json
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tiny_models
from faultline import strategies
from faultline.base.axes import COMPILE
from faultline.catalogue import Variant
from faultline.cells.cell import Cell
from faultline.ranks import compare, observer, parameters
from faultline.ranks.checkpointing import Unwatched, Watch
from faultline.ranks.compare import EPSILON, Trace
from faultline.ranks.report import Report
from faultline.strategies import Setup

BROKEN = "broken"


@dataclass(frozen=True)
class Injection:
    """Changes what is run, to seed a fault or to measure noise; the default changes nothing.

    `model` alters a bare model in place, and `trainer` a trainer that has it; `scenario` and `wrapped` give back what
    to use instead of the Scenario and the Wrapped that they are handed. `save` is
    given what writes a rank's part of a checkpoint, and the folder that it writes to. `resumed` may spoil what a rank
    has just loaded.
    """

    model: Callable[[Any], None] = lambda model: None
    trainer: Callable[[Any, Setup], None] = lambda trainer, setup: None
    scenario: Callable[[Any, Setup], Any] = lambda built, setup: built
    wrapped: Callable[[Any, Setup], Any] = lambda wrapped, setup: wrapped
    save: Callable[[Callable[[], None], Path, Setup], None] = lambda write, folder, setup: write()
    resumed: Callable[[Any, Setup], None] = lambda wrapped, setup: None


def injection(name: str) -> Injection:
    """The Injection that ``path/to/file.py:NAME`` names, or that the file's `injection` makes of what is named."""
    if not name:
        return Injection()
    file, _, asked = name.partition(".py:")
    made = runpy.run_path(f"{file}.py")
    return made[asked] if asked in made else made["injection"](asked)


def perturb(model: torch.nn.Module, precision: str) -> None:
    """Move every weight by about one unit in the last place: what the run does then is its noise."""
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + EPSILON[precision] * sign.to(parameter.device))


class Remedy(str):
    """The name of a remedy, as a failure's code has it; `read` once that code has asked it anything whose answer isn't
    that of `broken`. What can't be compared, such as a look into a table or a part of the name, counts as read."""

    read = False

    @property
    def is_broken(self) -> bool:
        return str.__eq__(self, BROKEN) is True

    def _noted(self, answer: Any, of_broken: Any = None) -> Any:
        self.read |= answer is not of_broken
        return answer

    def __eq__(self, other: object) -> bool:
        return bool(self._noted(str.__eq__(self, other) is True, other == BROKEN))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self._noted(str.__hash__(self)))

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return bool(self._noted(str.__contains__(self, part), part in BROKEN))

    def __getattribute__(self, name: str) -> Any:
        member = super().__getattribute__(name)
        if name in ("startswith", "endswith"):
            return lambda *words: self._noted(member(*words), getattr(BROKEN, name)(*words))
        return member if name.startswith(("_", "is_broken", "read")) else self._noted(member)


@dataclass(frozen=True)
class Run:
    """A variant of a failure's module, or of what stands for it, as this rank runs it.

    What comes of it is in `trace` and `report`; `checkpoint` is the folder that it saves to, where it does. `half` and
    `state` are those of the job.
    """

    module: Any  # has `scenario` or `trainer`, as a failure's file
    variant: Variant
    cell: Cell
    setup: Setup
    report: Report = field(default_factory=Report)
    inject: Injection = field(default_factory=Injection)
    checkpoint: str = ""
    half: int = 0
    state: str = ""
    trace: Trace = field(default_factory=Trace)

    @property
    def compiled(self) -> bool:
        return self.cell.compile != COMPILE.default

    def watch(self, model: Any) -> Watch:
        """What sees how the model checkpoints while it trains."""
        return Unwatched(model) if self.compiled else Watch(model)


@contextmanager
def loading(run: Run) -> Iterator[None]:
    """While a failure builds what it trains: under some strategies, models are sharded as they are loaded."""
    load = strategies.family(run.cell.strategy).load_model
    if not load:
        yield
        return

    def load_model(model: Any) -> Any:
        run.report.evidence["wrapping"] = run.cell.strategy  # what fails from now on fails with a sharded model
        return load(model, strategies.options(run.cell.strategy), run.setup)

    with tiny_models.loaded_by(load_model):
        yield


def note_rows(run: Run, rows: Any) -> None:
    """Add a micro-batch to the digest of all rows that this rank has trained on."""
    every = enumerate(observer.tensors(rows))
    if parts := {str(place): parameters.dense(tensor).detach().cpu() for place, tensor in every}:
        run.report.evidence["rows"] = compare.digest(parts, run.report.evidence.get("rows", ""))


def note_use(run: Run, model: Any) -> None:
    """Add to the evidence what a step has used of the strategy, where its family counts that."""
    if used := strategies.family(run.cell.strategy).used:
        run.report.evidence.setdefault("used", []).append(used(model))


def note_compiled(run: Run) -> None:
    """How many functions torch.compile has been given in a cell that compiles, and of how many graphs were made."""
    if run.compiled:
        from torch._dynamo.utils import counters

        graphs = {"frames": counters["frames"]["total"], "graphs": counters["stats"]["unique_graphs"]}
        run.report.evidence["compiled"] = graphs


def show(run: Run) -> None:
    """Leave a rank's evidence where the supervisor finds it, should the rank not live to report."""
    file = Path(run.setup.folder) / f"rank{run.setup.rank}.evidence"
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(run.report.evidence))
    partial.replace(file)
