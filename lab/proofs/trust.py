"""The proofs of `check` and of the matrix's oracle: models and cells whose truth is known, with and without a fault."""

import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, TargetFailed
from faultline.base.packages import versions
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check.target import parse
from faultline.runs import measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from lab.programs import refusals, sampling
from lab.programs.sampling import Case
from lab.programs.target import write
from lab.proofs import trust_matrix
from lab.proofs.trust_judgement import REFUSED, RIGHT, Proof, called, figures_of, judged, show

KIND = "trust"
HEALTHY, FAULTY = 500, 300
WRONG = "judged wrongly"


@dataclass(frozen=True)
class Request:
    """How many healthy cases and how many with a fault, from which seed and on how many workers; or to go on with.

    With `matrix` they are cells of the matrix, else models of random specs. Without a number, they are as many as a
    whole proof has.
    """

    healthy: int | None = None
    faulty: int | None = None
    seed: int = 0
    workers: int = 1
    resume: bool = False
    matrix: bool = False


def run(request: Request) -> int:
    """Run a proof and print its figures: exit code 1 if a bar is not held.

    Going on with one, cells that it has are judged anew, by what is known today. A case that the sampler makes
    otherwise today has another name, and runs.
    """
    proof = trust_matrix.proof(request.healthy, request.faulty, request.seed) if request.matrix else of_specs(request)
    if request.resume:
        folder = storage.latest_run(kind=proof.kind)
        storage.same_stack(folder, versions())
        had = [entry for entry in storage.entries(folder) if entry.cell in {*proof.cells}]
        folder.describe(cells=tuple(cell.id for cell in proof.cells))
    else:
        folder, had = storage.new_run(kind=proof.kind), []
        asked = {"healthy": request.healthy, "faulty": request.faulty, "seed": request.seed}
        folder.describe(request=asked, cells=tuple(cell.id for cell in proof.cells))
    left = measurement.without(proof.cells, had)
    try:
        with tempfile.TemporaryDirectory(prefix="faultline-") as programs:
            go = proof.run(Path(programs))
            measurement.measure([Batch(left, folder=folder, known=had, run=go)], request.workers, wrong=WRONG)
        folder.describe(finished=True)
    finally:  # after an interruption, of what ran until then
        entries = [entry for entry in folder.results() if entry.cell in {*proof.cells}]
        figures = figures_of(proof, entries, 0 if request.matrix else len({entry.cell.failure for entry in entries}))
        show(proof, entries, figures)
    print(f"results: {folder.shown}/cells.jsonl")
    return EXIT_AS_EXPECTED if figures.holds else EXIT_UNEXPECTED


def of_specs(request: Request) -> Proof:
    """The proof of `check`."""
    cases = cases_of(request)

    def about(cell: Cell) -> list[str]:
        case = cases[cell.failure]
        words = [f"spec: {case.spec.words}", f"spec as JSON: {case.spec.to_json()}"]
        return [*words, f"fault: {case.fault.words}"] if case.fault else words

    return Proof(
        KIND,
        cells_of(cases.values(), request.workers),
        lambda folder: runs(cases, folder),
        lambda entry: judged(cases[entry.cell.failure], entry),
        lambda entry: called(cases[entry.cell.failure], entry),
        lambda cell: cases[cell.failure].fault is not None,
        about,
    )


def cases_of(request: Request) -> dict[str, Case]:
    """The cases of a proof by name."""
    under = sampling.under()
    healthy = HEALTHY if request.healthy is None else request.healthy
    faulty = FAULTY if request.faulty is None else request.faulty
    cases = [sampling.healthy(request.seed, number) for number in range(healthy)]
    cases += [sampling.faulty(request.seed, number, under) for number in range(faulty)]
    random.Random(request.seed).shuffle(cases)  # what an interruption leaves is of both kinds
    return {case.name: case for case in cases}


def cells_of(cases: Iterable[Case], workers: int) -> list[Cell]:
    """The cells of all cases, so that no two workers wait for one reference."""
    cases, cells = [*cases], []
    for start in range(0, len(cases), workers):
        for strategy in sampling.under():
            cells += [
                Cell(case.name, "model", strategy)
                for case in cases[start : start + workers]
                if not case.fault or refusals.injectable(case.spec, case.fault, strategy)
            ]
    return cells


def runs(cases: dict[str, Case], folder: Path) -> Callable[[RankServer, References, Cell], Result]:
    """What runs one cell; its verdict says whether it was judged rightly."""

    def go(server: RankServer, references: References, cell: Cell) -> Result:
        case = cases[cell.failure]
        home = folder / case.name
        home.mkdir(exist_ok=True)
        file = write(home, case.spec)
        inject = case.fault.injection if case.fault else ""
        try:
            entry = checking.run(parse(f"{file}:build", ""), server, references, cell, inject)
        except TargetFailed as failed:
            entry = checking.without_reference(cell, failed, Outcome.INVALID, server)
        right = judged(case, entry) in (RIGHT, REFUSED)
        return replace(entry, verdict="expected" if right else "unexpected failure")

    return go
