"""The proof of `check`: models whose truth is known by construction, healthy and with a seeded fault."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, TargetFailed
from faultline.base.markdown import headed, row
from faultline.base.packages import versions
from faultline.base.text import count, one_line, percent
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.check import cell as checking
from faultline.check.target import parse
from faultline.maintain import trust_judgement as judging
from faultline.programs import files, sampling, truth
from faultline.programs.sampling import Case
from faultline.runs import folders, results, storage
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import Ended, RankServer

KIND = "trust"
NAMED_RIGHTLY = 0.95
SHOWN = 20  # cells that were judged wrongly
WRONG = "judged wrongly"


@dataclass(frozen=True)
class Request:
    """How many healthy and faulty cases to run, from which seed and on how many workers; or to go on with."""

    healthy: int = 500
    faulty: int = 300
    seed: int = 0
    workers: int = 1
    resume: bool = False


@dataclass(frozen=True)
class Figures:
    """What came of a proof: cells by what their judgements are worth, of healthy specs and of faults."""

    specs: int
    healthy: Counter[str]
    faulty: Counter[str]

    @property
    def caught(self) -> int:
        return self.faulty[judging.RIGHT] + self.faulty[judging.MISNAMED]

    @property
    def named(self) -> float:
        """The share of the faults that were caught which were named rightly."""
        return self.faulty[judging.RIGHT] / self.caught if self.caught else 1.0

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """What was measured, its value, and the bar."""
        alarms = self.healthy[judging.FALSE_ALARM] + self.healthy[judging.OTHERWISE]
        ours = self.healthy[judging.FAULT_OF_OURS] + self.faulty[judging.FAULT_OF_OURS]
        kinds = f"{self.healthy[judging.RIGHT]} train, {self.healthy[judging.REFUSED]} are refused as known"
        return [
            ("specs", str(self.specs), ""),
            ("cells of healthy specs", f"{self.healthy.total()}: {kinds}", ""),
            ("cells with a seeded fault", str(self.faulty.total()), ""),
            ("false alarms", str(alarms), "0"),
            ("faults missed", str(self.faulty[judging.MISSED]), "0"),
            ("faults named rightly", f"{self.faulty[judging.RIGHT]} of {self.caught}", f"{NAMED_RIGHTLY:.0%}"),
            ("faults of Faultline itself", str(ours), "0"),
        ]

    @property
    def holds(self) -> bool:
        """Whether every bar is held."""
        wrong = sum(self.healthy.values()) - self.healthy[judging.RIGHT] - self.healthy[judging.REFUSED]
        lost = self.faulty[judging.MISSED] + self.faulty[judging.FAULT_OF_OURS]
        return not wrong and not lost and self.named >= NAMED_RIGHTLY


def run(request: Request) -> int:
    """Run the proof and print its figures: exit code 1 if a bar is not held.

    Going on with one, cells that it has are judged anew, by what is known today. A case that the sampler makes
    otherwise today has another name, and runs.
    """
    cases = chosen(request)
    cells = ordered(cases.values(), request.workers)
    if request.resume:
        folder = storage.latest_run(kind=KIND)
        folders.same_stack(folder, versions())
        had = [entry for entry in folders.entries(folder) if entry.cell in {*cells}]
        folder.describe(cells=tuple(cell.id for cell in cells))
    else:
        folder, had = storage.new_run(kind=KIND), []
        asked = {"healthy": request.healthy, "faulty": request.faulty, "seed": request.seed}
        folder.describe(request=asked, cells=tuple(cell.id for cell in cells))
    left = folders.without(cells, had)
    try:
        with tempfile.TemporaryDirectory(prefix="faultline-") as programs:
            go = runs(cases, Path(programs))
            folders.measure(left, request.workers, folder, had, run=go, wrong=WRONG)
        folder.describe(finished=True)
    finally:  # after an interruption, of what ran until then
        entries = [entry for entry in folder.results() if entry.cell in {*cells}]
        figures = measured(cases, entries)
        show(cases, entries, figures)
    print(f"results: {folder.shown}/cells.jsonl")
    return EXIT_AS_EXPECTED if figures.holds else EXIT_UNEXPECTED


def chosen(request: Request) -> dict[str, Case]:
    """The cases of a proof by name."""
    under = sampling.under()
    cases = [sampling.healthy(request.seed, number) for number in range(request.healthy)]
    cases += [sampling.faulty(request.seed, number, under) for number in range(request.faulty)]
    random.Random(request.seed).shuffle(cases)  # what an interruption leaves is of both kinds
    return {case.name: case for case in cases}


def ordered(cases: Iterable[Case], workers: int) -> list[Cell]:
    """The cells of all cases, so that no two workers wait for one reference."""
    cases, cells = [*cases], []
    for start in range(0, len(cases), workers):
        for strategy in sampling.under():
            cells += [
                Cell(case.name, "model", strategy)
                for case in cases[start : start + workers]
                if not case.fault or truth.injectable(case.spec, case.fault, strategy)
            ]
    return cells


def runs(cases: dict[str, Case], folder: Path) -> Callable[[RankServer, References, Cell], Result]:
    """What runs one cell; its verdict says whether it was judged rightly."""

    def go(server: RankServer, references: References, cell: Cell) -> Result:
        case = cases[cell.failure]
        home = folder / case.name
        home.mkdir(exist_ok=True)
        file = files.write(home, case.spec, case.fault)
        inject = f"{file}:FAULT" if case.fault else ""
        try:
            entry = checking.run(parse(f"{file}:build", ""), server, references, cell, inject)
        except TargetFailed as failed:
            problem = Judgement(Outcome.INVALID, Signature.NO_REFERENCE, one_line(f"{failed} {failed.traceback}"))
            expected = Expectation(Outcome.TRAINS)
            entry = results.result(cell, problem, Ended([]), server.versions, expected, "")
        right = judging.judged(case, entry) in (judging.RIGHT, judging.REFUSED)
        return replace(entry, verdict="expected" if right else "unexpected failure")

    return go


def measured(cases: dict[str, Case], entries: Sequence[Result]) -> Figures:
    """The figures of a proof from its results."""
    healthy: Counter[str] = Counter()
    faulty: Counter[str] = Counter()
    for entry in entries:
        case = cases[entry.cell.failure]
        (faulty if case.fault else healthy)[judging.judged(case, entry)] += 1
    return Figures(len({entry.cell.failure for entry in entries}), healthy, faulty)


def show(cases: dict[str, Case], entries: Sequence[Result], figures: Figures) -> None:
    """Print the cells that were judged wrongly, what each kind of fault was called, and the figures."""
    wrong = [
        (judgement, cases[entry.cell.failure], entry)
        for entry in entries
        if (judgement := judging.judged(cases[entry.cell.failure], entry)) not in (judging.RIGHT, judging.REFUSED)
    ]
    for judgement, case, entry in wrong[:SHOWN]:
        print(f"{judgement}: {entry.cell.failure} under {entry.cell.strategy}: {entry.did}")
        print(f"  spec: {case.spec.words}")
        print(f"  spec as JSON: {case.spec.to_json()}")
        if case.fault:
            print(f"  fault: {case.fault.words}")
        print(f"  {one_line('; '.join([entry.detail, *entry.finding.words]))[:400]}")
    if len(wrong) > SHOWN:
        print(f"and {count(len(wrong) - SHOWN, 'cell')} more")
    print("\n".join(headed(("measured", "value", "bar"), [row(*each) for each in figures.rows])))
    if figures.caught:
        print(f"named rightly: {percent(figures.named)}")
