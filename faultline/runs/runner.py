"""How one cell is run on a rank server, beside a reference that is made once."""

import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from faultline.base.errors import DIED, MACHINE, Impossible, NeverReady, ServerDied
from faultline.base.text import one_line
from faultline.base.traces import fault_of_machine, fault_of_own, innermost, last_words, machine_remedy, signal_name
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell, reference
from faultline.ranks.facts import Facts
from faultline.ranks.job import FIRST, SECOND, Job, Target
from faultline.ranks.report import ErrorReport, Report
from faultline.runs import nodes, oracle, results
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.supervisor import RankServer

TRIES = 3  # for a reference whose rank dies


@dataclass(frozen=True)
class Reference:
    """The file of a reference run and what was seen of a model in it, or the problem that kept it from being made."""

    file: Path
    facts: Facts = field(default_factory=Facts)
    problem: ErrorReport | None = None


class References:
    """Reference runs in one folder, each made once, whichever worker needs it first; `made` is called with its cell."""

    def __init__(self, folder: Path, made: Callable[[Cell], None] = lambda cell: None) -> None:
        self.folder = folder
        self._when_made = made
        self._made: dict[str, Reference] = {}
        self._locks: dict[str, threading.Lock] = {}

    def file(self, server: RankServer, cell: Cell, target: Target | None = None) -> Reference:
        """The reference for a cell, or why it could not be made.

        That of a `target` is one for each world size, and one for all rows together.
        """
        of = reference(cell)
        name = f"{of.id}/{target.world_size}{'/together' * target.together}" if target else of.id
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._made:
                job = Job(of, reference=str(self._file(name)), record=True, target=target)
                made = _made(server, job)
                if made.problem and made.problem.kind == DIED:
                    return made
                self._made[name] = made
                self._when_made(cell)
            return self._made[name]

    def names(self) -> set[str]:
        """Those that are there."""
        return {*self._made}

    def known(self, name: str) -> Reference:
        """A reference that is there."""
        return self._made[name]

    def add(self, name: str, content: bytes, facts: Facts, problem: ErrorReport | None) -> None:
        """Take a reference that was made elsewhere: the content of its file, and what is known of it."""
        file = self._file(name)
        if not problem:
            file.write_bytes(content)
        self._made[name] = Reference(file, facts, problem)

    def _file(self, name: str) -> Path:
        return self.folder / name.replace("/", "+")


def _made(server: RankServer, job: Job) -> Reference:
    """A reference, or its problem: an error is the scenario's and comes again; a rank that died may have been anybody's
    victim, unless somebody's own code ran in it."""
    problem, file = f"its rank died or hung {TRIES} times", Path(job.reference)
    for _ in range(1 if job.target else TRIES):
        ended = nodes.run(server, job)
        report = ended.ranks[0].report or Report()
        if file.exists():
            return Reference(file, report.facts or Facts())
        if report.error:
            return Reference(file, problem=report.error)
        if job.target:
            problem = f"the process that builds and trains it {_how(ended)}"
    return Reference(file, problem=ErrorReport("", problem, "", kind=DIED))


def _how(ended: Ended) -> str:
    """How the only rank of a run ended that left no report."""
    [end] = ended.ranks
    if ended.hang:
        return f"hangs: {ended.hang}" + (f"; {place}" if (place := innermost(end.stack)) else "")
    how = f"was killed by {signal_name(-(end.exit or 0))}" if (end.exit or 0) < 0 else f"left with exit code {end.exit}"
    return ": ".join(filter(None, (how, last_words(end.log))))


RunCell = Callable[[RankServer, References, Cell], results.Result]


def run_cell(server: RankServer, references: References, cell: Cell, inject: str = "") -> results.Result:
    """Run one cell and say what it did and whether that was expected.

    `inject` names a change to make to the run (see `run.injection`). Raises what `surviving` raises.
    """

    def go() -> tuple[Ended, Judgement]:
        ended, _, judged = trained(server, references, cell, inject)
        return ended, judged

    ended, judged = surviving(server, go)
    return results.result(cell, judged, ended, server.versions)


def trained(
    server: RankServer, references: References, cell: Cell, inject: str = "", executed: bool = False
) -> tuple[Ended, Ended | None, Judgement]:
    """How a cell's ranks ended, how the process did that loads the checkpoint, if all finished and left one, and what
    the cell did. `executed` makes both report what they execute."""
    failure = failures()[cell.failure]
    reference = references.file(server, cell)
    if reference.problem:
        return Ended([]), None, without_reference(reference.problem)
    with tempfile.TemporaryDirectory(dir=server.folder, prefix="checkpoint-") as folder:
        job = Job(
            cell, cell.world_size, reference=str(reference.file), checkpoint=folder, inject=inject, executed=executed
        )
        if cell.life != "straight":
            ended, judged = in_two_halves(
                server, job, lambda of, ended, half: oracle.judge(of, failure, ended, half=half)
            )
            return ended, None, judged
        ended = nodes.run(server, job)
        saved = ended.finished and os.listdir(folder)
        loaded = nodes.run(server, Job(cell, checkpoint=folder, load=True, executed=executed)) if saved else None
    return ended, loaded, oracle.judge(cell, failure, ended, loaded)


def in_two_halves(
    server: RankServer, job: Job, judge: Callable[[Cell, Ended, int], Judgement]
) -> tuple[Ended, Judgement]:
    """Train half of a life and save; if that trains, have fresh ranks load and train on, in a resized life fewer."""
    cell = job.cell
    before = replace(cell, world_size=cell.saved_by)
    with tempfile.TemporaryDirectory(dir=server.folder, prefix="half-") as folder:
        job = replace(job, checkpoint="", state=folder)
        first = nodes.run(server, replace(job, cell=before, world_size=before.world_size, half=FIRST))
        judged = judge(before, first, FIRST)
        if judged.outcome is not Outcome.TRAINS:
            return first, judged
        second = nodes.run(server, replace(job, half=SECOND))
    return second, resumed(judge(cell, second, SECOND), first, second)


def resumed(after: Judgement, first: Ended, second: Ended) -> Judgement:
    """What a second half shows of the checkpoint that it began with, where the first half trained."""
    if after.outcome is Outcome.DIVERGES:
        return replace(after, signature=Signature.RESUMED_DIFFERS, detail=f"after resuming: {after.detail}")
    lost = [
        number
        for number, (one, other) in enumerate(zip(first.ranks, second.ranks, strict=False))
        if one.evidence.get("random_state") != other.evidence.get("random_state")
    ]
    if after.outcome is Outcome.TRAINS and lost:
        detail = f"after resuming: the random state of rank {' and '.join(map(str, lost))} is another one"
        return replace(after, outcome=Outcome.DIVERGES, signature=Signature.RESUMED_DIFFERS, detail=detail)
    return after


def surviving(server: RankServer, go: Callable[[], tuple[Ended, Judgement]]) -> tuple[Ended, Judgement]:
    """What a run gives, and how it is judged.

    A rank server that dies says nothing of the cell: it runs once more on a fresh one, unless the server was killed on
    purpose. Raises NeverReady where none can be had.
    """
    for again in (True, False):
        try:
            return go()
        except ServerDied as died:
            if server.killed or (isinstance(died, NeverReady) and not again):
                raise
            problem = str(died)
    if machine_remedy(Exception(problem)):
        return Ended([]), Judgement(Outcome.INVALID, Signature.MACHINE, fault_of_machine(problem))
    return Ended([]), Judgement(Outcome.INVALID, Signature.SERVER, problem)


def without_reference(problem: ErrorReport) -> Judgement:
    """What is known of a cell whose reference could not be made: what one process can't build, no strategy can."""
    if problem.kind == DIED:
        return Judgement(Outcome.INVALID, Signature.REFERENCE_DIED, f"no reference run: {problem.message}")
    if problem.kind == Impossible.kind:
        return Judgement(Outcome.IMPOSSIBLE, "", problem.message)
    error = one_line(f"{problem.type}: {problem.message}")
    if problem.kind == MACHINE:
        return Judgement(Outcome.INVALID, Signature.MACHINE, fault_of_machine(error))
    if problem.fault:
        return Judgement(Outcome.INVALID, Signature.OWN_FAULT, fault_of_own(problem.fault, error))
    return Judgement(Outcome.INVALID, Signature.NO_REFERENCE, f"{error} (in one process: there is no reference)")
