"""Whether a cell of a proof was judged rightly, by what is known of its spec or fault; and what came of a proof."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline.base.markdown import headed, row
from faultline.base.text import count, one_line, percent
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.check.known import recognised
from faultline.runs.results import Result
from faultline.runs.runner import RunCell
from lab.programs import refusals
from lab.programs.fault import FAULTY, KINDS, OF_WEIGHT, Fault
from lab.programs.sampling import Case

RIGHT, REFUSED, FALSE_ALARM, OTHERWISE, MISSED, MISNAMED, FAULT_OF_OURS = (
    *("right", "refused", "false alarm", "not as known", "missed", "misnamed", "fault of ours"),
)
CALLED, NOT_CALLED, WRONGLY_CALLED = "named", "without a name", "another name"
NAMED_RIGHTLY = 0.95
SHOWN = 20  # cells that were judged wrongly
CLOSE = 0.02  # how far a factor may be from the one that was seeded


def judged(case: Case, entry: Result) -> str:
    """What the judgement of a cell is worth."""
    if entry.outcome == Outcome.INVALID or entry.out_of_time:
        return FAULT_OF_OURS
    if not case.fault:
        if refusals.agrees(case.spec, entry.cell.strategy, entry.outcome, text(entry)):
            return RIGHT if entry.outcome == Outcome.TRAINS else REFUSED
        return OTHERWISE if refusals.rules_for(case.spec, entry.cell.strategy) else FALSE_ALARM
    if entry.outcome == Outcome.TRAINS:
        return MISSED
    return RIGHT if names(case.fault, entry) else MISNAMED


def called(case: Case, entry: Result) -> str:
    """Whether `check` names the failure that a healthy spec is known to meet, or another one.

    It is empty where the spec trains, or what it meets is in no catalogue and has no name.
    """
    if case.fault or judged(case, entry) != REFUSED:
        return ""
    rules = refusals.matching_rules(case.spec, entry.cell.strategy, entry.outcome, text(entry))
    expected = {name for each in rules for name in (each.failure, each.also) if name}
    named = names_given(entry)
    if named & expected:
        return CALLED
    return WRONGLY_CALLED if named else NOT_CALLED if expected else ""


def names_given(entry: Result) -> set[str]:
    """The known failures that `check` says a cell has, or may have."""
    match, others = recognised(entry)
    return {each.failure.name for each in (match, *others) if each}


def text(entry: Result) -> str:
    """All that a cell says, its ranks' errors included."""
    return "\n".join([entry.detail, *entry.finding.words, *(each.error.message for each in entry.ranks if each.error)])


def names(fault: Fault, entry: Result) -> bool:
    """Whether a finding has the fault's kind, and its weight, step, rank or factor."""
    if entry.outcome != Outcome.DIVERGES or entry.signature != KINDS[fault.kind].signature:
        return False
    weight, finding = f"{fault.module}.weight", entry.finding
    if fault.kind in ("loss", "rate"):
        kind = "gradients" if fault.kind == "loss" else "weights"
        factor = finding.factor
        return bool(factor and factor.kind == kind and math.isclose(factor.times, fault.times, rel_tol=CLOSE))
    if fault.kind in ("zero", "frozen"):
        return weight in finding.unmoved
    if fault.kind == "untied":
        return any(weight in group for group in entry.checked.apart)
    if fault.kind == "buffer":
        return fault.module in finding.apart
    if fault.kind == "bit":
        return True
    if fault.kind == "nan":
        return bool(re.search(rf"\b{re.escape(weight)} at step {fault.step}\b", entry.detail))
    first = finding.first
    if not first or first.phase != KINDS[fault.kind].phase or (fault.kind == "rows" and first.rank != FAULTY):
        return False
    step = 0 if fault.kind == "start" else fault.step
    return first.step == step and (fault.kind not in OF_WEIGHT or first.parameter == weight)


@dataclass(frozen=True)
class Proof:
    """Cells of which the truth is known.

    `kind` is that of the results folder. `run` gives what runs one cell, of a folder for files; `worth` says what a
    judgement is worth, `called` whether it names the known failure that the cell has, `faulty` whether the cell has a
    fault, and `about` what is in it, in lines.
    """

    kind: str
    cells: Sequence[Cell]
    run: Callable[[Path], RunCell]
    worth: Callable[[Result], str]
    called: Callable[[Result], str]
    faulty: Callable[[Cell], bool]
    about: Callable[[Cell], Sequence[str]]


@dataclass(frozen=True)
class Figures:
    """What came of a proof: cells by what their judgements are worth, healthy ones and those with a fault; those that
    have a known failure by whether it was named; and of how many specs they are, where they are of specs."""

    healthy: Counter[str]
    faulty: Counter[str]
    specs: int = 0
    called: Counter[str] = field(default_factory=Counter)

    @property
    def caught(self) -> int:
        return self.faulty[RIGHT] + self.faulty[MISNAMED]

    @property
    def named(self) -> float:
        """The share of the faults that were caught which were named rightly."""
        return self.faulty[RIGHT] / self.caught if self.caught else 1.0

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """What was measured, its value, and the bar."""
        alarms = self.healthy[FALSE_ALARM] + self.healthy[OTHERWISE]
        ours = self.healthy[FAULT_OF_OURS] + self.faulty[FAULT_OF_OURS]
        kinds = f"{self.healthy[RIGHT]} train"
        if self.healthy[REFUSED]:
            kinds += f", {self.healthy[REFUSED]} are refused as known"
        known = self.called[CALLED] + self.called[NOT_CALLED]
        called = [
            ("known failures named", f"{self.called[CALLED]} of {known}", ""),
            ("cells with the name of another failure", str(self.called[WRONGLY_CALLED]), "0"),
        ]
        specs = [("specs", str(self.specs), "")] if self.specs else []
        return [
            *specs,
            (f"cells of healthy {'specs' if self.specs else 'variants'}", f"{self.healthy.total()}: {kinds}", ""),
            ("cells with a seeded fault", str(self.faulty.total()), ""),
            ("false alarms", str(alarms), "0"),
            ("faults missed", str(self.faulty[MISSED]), "0"),
            ("faults named rightly", f"{self.faulty[RIGHT]} of {self.caught}", f"{NAMED_RIGHTLY:.0%}"),
            *(called if self.called else []),
            ("faults of Faultline itself", str(ours), "0"),
        ]

    @property
    def holds(self) -> bool:
        """Whether every bar is held."""
        wrong = sum(self.healthy.values()) - self.healthy[RIGHT] - self.healthy[REFUSED]
        lost = self.faulty[MISSED] + self.faulty[FAULT_OF_OURS]
        return not (wrong or lost or self.called[WRONGLY_CALLED]) and self.named >= NAMED_RIGHTLY


def figures_of(proof: Proof, entries: Sequence[Result], specs: int = 0) -> Figures:
    """The figures of a proof from its results."""
    healthy = Counter(proof.worth(entry) for entry in entries if not proof.faulty(entry.cell))
    faulty = Counter(proof.worth(entry) for entry in entries if proof.faulty(entry.cell))
    called = Counter(named for entry in entries if (named := proof.called(entry)))
    return Figures(healthy, faulty, specs, called)


def show(proof: Proof, entries: Sequence[Result], figures: Figures) -> None:
    """Print the cells that were judged wrongly, and the figures."""
    wrong = [(worth, entry) for entry in entries if (worth := proof.worth(entry)) not in (RIGHT, REFUSED)]
    for worth, entry in wrong[:SHOWN]:
        print(f"{worth}: {entry.cell.id}: {' '.join(entry.did)}")
        print(*(f"  {line}" for line in proof.about(entry.cell)), sep="\n")
        print(f"  {one_line('; '.join([entry.detail, *entry.finding.words]))[:400]}")
    for entry in [entry for entry in entries if proof.called(entry) == WRONGLY_CALLED][:SHOWN]:
        print(f"{WRONGLY_CALLED}: {entry.cell.id}: {', '.join(sorted(names_given(entry)))}")
        print(*(f"  {line}" for line in proof.about(entry.cell)), sep="\n")
        print(f"  {one_line(entry.detail)[:400]}")
    if len(wrong) > SHOWN:
        print(f"and {count(len(wrong) - SHOWN, 'cell')} more")
    print("\n".join(headed(("measured", "value", "bar"), [row(*each) for each in figures.rows])))
    if figures.caught:
        print(f"named rightly: {percent(figures.named)}")
