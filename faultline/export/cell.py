"""What is known of a cell: what it does, with which error, on which versions."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.base.axes import COMPILE
from faultline.base.errors import NotExportable
from faultline.base.packages import STACK, pinned
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import one_line
from faultline.catalogue import Failure, Variant, loading
from faultline.cells import expected, rules
from faultline.cells.cell import Cell
from faultline.cells.finding import Finding
from faultline.observations import measured, store
from faultline.observations.store import RecordedError

COMPARED = ("diverges", "trains")  # outcomes that show only beside one process
LONGEST_ERROR = 180  # characters of an error in a file's docstring
WIDTH = 118  # of a line in a file's docstring
CHECKPOINTS = {
    "checkpoint-untied": "no error, but tied weights are saved as two tensors",
    "checkpoint-differs": "no error, and other weights in the checkpoint than were trained",
    "checkpoint-lacks": "no error, and a checkpoint that lacks weights",
}
SYMPTOMS = {
    "raises": "the error above",
    "diverges": "no error, and other weights than in one process",
    "trains": "no error, and other weights than in one process",
    "misplaced": "each rank holds the whole of a model that should be sharded",
    "hangs": "the ranks wait for ever",
}


@dataclass(frozen=True)
class ExportedCell:
    """A cell, what it does, and the versions on which it does so."""

    cell: Cell
    failure: Failure
    variant: Variant
    outcome: str
    signature: str
    pins: Mapping[str, str]
    saves: bool
    home: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of its failure: in `repros`, unless it has another home."""
        return self.home or REPROS / self.cell.failure

    @property
    def stack(self) -> dict[str, str]:
        """The versions of the packages under test."""
        return {name: self.pins[name] for name in STACK if name in self.pins}

    @property
    def kind(self) -> str:
        """What the file looks for: the outcome, or what it is about; for a cell that trains, what it would do else."""
        if self.signature.startswith("checkpoint-") or (self.outcome == "trains" and self.saves):
            return "checkpoint"
        if self.outcome != "trains":
            return self.outcome
        return "misplaced" if self.variant.second else "trains"

    @property
    def pattern(self) -> str:
        """The pattern of the cell's error: those of its alternatives that match a recorded error, if any does."""
        pattern, errors = self.failure.errors.get(self.signature, ""), recorded_errors(self)
        try:
            return "|".join(each for each in pattern.split("|") if any(re.search(each, e) for e in errors)) or pattern
        except re.error:  # not all of its bars are between alternatives
            return pattern

    @property
    def error(self) -> str:
        """The error to show: one that was recorded on the cell's stack, else on another; empty without any."""
        return next(iter([*recorded_errors(self), *(error.text for error in reversed(_entries(self)))]), "")

    @property
    def symptom(self) -> str:
        """What the file prints if it reproduces."""
        if self.kind == "crashes":
            return f"a rank was killed by {self.signature}"
        if self.cell.life == "resumed" and self.kind in COMPARED:
            return "no error, and after resuming another training than without interruption"
        if self.kind == "checkpoint":
            return CHECKPOINTS.get(self.signature, "no error, and a checkpoint without what was trained")
        return SYMPTOMS[self.kind]

    @property
    def raises_alone(self) -> bool:
        """Whether the same training raises in a single process too, so that no strategy is its cause."""
        alone = replace(self.cell, strategy="single", world_size=1)
        rule = expected.first_rule(expected.rules(self.failure), alone, measured.pinned())
        return rule is not None and rule.outcome == "raises"

    @property
    def happens(self) -> str:
        """The symptom, with what was measured to be wrong with the numbers in place of the most general words."""
        words = finding(self).words if self.kind == "diverges" else []
        text = "; ".join(words).replace("first differs: ", "what differs first from one process: ")
        return f"no error, but {text}" if words else self.symptom


def place(cell: Cell) -> ExportedCell:
    """What is known of a cell; raises NotExportable if it can't be exported."""
    if not rules.exportable(cell, ""):
        raise NotExportable(
            f"no file resizes a cell or loads a model in shards yet; `faultline run --cell {cell.id}` runs it", cell.id
        )
    failure = loading.failures()[cell.failure]
    rule = expected.first_rule(expected.rules(failure), cell, measured.pinned()) or expected.TRAINS
    if rule.outcome in ("impossible", "invalid"):
        why = f": {rule.reason}" if rule.reason else ""
        raise NotExportable(f"it is {rule.outcome} here{why}", cell.id)
    signature = rule.signature[0] if rule.signature else ""
    if not rules.exportable(cell, signature):
        raise NotExportable("only buffers are wrong there, and a file compares weights", cell.id)
    saves = hasattr(loading.load_module(REPROS / cell.failure), "save")
    variant = failure.variant(cell.variant)
    where = ExportedCell(cell, failure, variant, rule.outcome, signature, pinned(ROOT / "requirements.txt"), saves)
    if where.kind == "raises" and not where.pattern:
        raise NotExportable("its error has no signature to look for", cell.id)
    return where


def recorded_errors(where: ExportedCell) -> list[str]:
    """The texts of the errors that are recorded on the cell's stack."""
    return [error.text for error in recorded(where)]


def recorded(where: ExportedCell) -> list[RecordedError]:
    """The errors recorded on the cell's stack: those of the cell itself, or else of any cell with its signature."""
    runs = {
        error.id: [cell for cell, row in measured.runs(error) if store.stacks()[row.stack].versions == where.stack]
        for error in _entries(where)
    }
    there = [error for error in _entries(where) if runs[error.id]]
    return [error for error in there if where.cell in runs[error.id]] or there


def finding(where: ExportedCell) -> Finding:
    """What is wrong with the cell's numbers, as it was measured on its stack; an empty one where it wasn't."""
    divergence = store.divergences().get(where.cell.id)
    on_stack = divergence and store.stacks()[divergence.stack].versions == where.stack
    return divergence.finding if divergence and on_stack else Finding()


def _entries(where: ExportedCell) -> list[RecordedError]:
    """What is recorded of the cell's failure under its signature, on any stack."""
    wanted = where.cell.failure, where.signature
    return [error for error in store.errors().values() if (error.failure, error.signature) == wanted]


def beginning(error: str) -> str:
    """The first sentences of an error, as many as fit on two lines."""
    if len(error) <= LONGEST_ERROR:
        return error
    sentences = re.match(r".*[.!?](?= )", error[:LONGEST_ERROR])
    return f"{sentences[0] if sentences else error[:LONGEST_ERROR].rpartition(' ')[0]} ..."


def introduction(where: ExportedCell) -> str:
    """The docstring of the file, below its title."""
    cell = where.cell
    device = "GPU" if cell.device == "cuda" else "CPU"
    ranks = "on 1 rank" if cell.world_size == 1 else f"on {cell.world_size} ranks"
    ranks = "in one process" if cell.strategy == "single" else ranks
    checkpointing = "no" if cell.checkpointing == "off" else cell.checkpointing
    described = where.failure.described(where.variant).replace("\\", "/").replace('"', "'")
    variant = "" if described in ("", "the failure") else f" ({one_line(described)})"
    under = f"Run under {cell.strategy} {ranks} ({device}, {cell.precision})"
    halves = ", saved after two steps and resumed for two more" if cell.life == "resumed" else ""
    compiled = "" if cell.compile == COMPILE.default else f", compiled by torch.compile ({cell.compile})"
    run = f"{under}, {checkpointing} gradient checkpointing{compiled}{variant}{halves}. {_events(where)}"
    lines = [
        *textwrap.wrap(run, WIDTH, break_long_words=False, break_on_hyphens=False),
        _records(where.failure),
    ]
    return "\n".join(lines)


def _events(where: ExportedCell) -> str:
    """What is expected of the cell, and what happens."""
    if where.outcome == "trains":
        return "This is known to train: NOT REPRODUCED, and exit code 1, is what is expected of it."
    expectation = "it trains, and what was trained is saved" if where.saves else "it trains as in one process"
    if where.cell.life == "resumed":
        expectation += ", where nothing is interrupted"
    if where.raises_alone:
        expectation = "it trains without an error" + _single_process_note(where)
    happens = f"{where.happens}."
    if where.kind == "raises":
        error = where.error or "an error with the words of SIGNATURE."
        happens = beginning(" ".join(one_line(error).split()).replace("\\", "/").replace('"', "'"))  # in a docstring
    if where.kind == "crashes":
        happens += f" Under torchrun, the launcher may add what it sees of {where.signature}."
    return f"Expected: {expectation}. Instead: {happens}"


def _single_process_note(where: ExportedCell) -> str:
    """What the docstring adds where a single process raises too; empty where that is the cell itself."""
    return "" if where.cell.strategy == "single" else " (a single process raises one too)"


def _records(failure: Failure) -> str:
    """The first records of a failure, as many as fit on a line, and the number of the others."""
    if not failure.records:
        return "No report was found."
    first, *others = failure.records
    line = f"Records: {first}"
    while others and len(f"{line}, {others[0]} and 99 more") <= WIDTH:
        line += f", {others.pop(0)}"
    return line + (f" and {len(others)} more" if others else "")
