"""What a proof runs, what came of it, and how it is shown."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline.base.markdown import headed, row
from faultline.base.text import count, one_line, percent
from faultline.cells.cell import Cell
from faultline.runs.results import Result
from faultline.runs.runner import RunCell
from lab.proofs import trust_judgement as judging

NAMED_RIGHTLY = 0.95
SHOWN = 20  # cells that were judged wrongly


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
        kinds = f"{self.healthy[judging.RIGHT]} train"
        if self.healthy[judging.REFUSED]:
            kinds += f", {self.healthy[judging.REFUSED]} are refused as known"
        known = self.called[judging.CALLED] + self.called[judging.NOT_CALLED]
        called = [
            ("known failures named", f"{self.called[judging.CALLED]} of {known}", ""),
            ("cells with the name of another failure", str(self.called[judging.WRONGLY_CALLED]), "0"),
        ]
        specs = [("specs", str(self.specs), "")] if self.specs else []
        return [
            *specs,
            (f"cells of healthy {'specs' if self.specs else 'variants'}", f"{self.healthy.total()}: {kinds}", ""),
            ("cells with a seeded fault", str(self.faulty.total()), ""),
            ("false alarms", str(alarms), "0"),
            ("faults missed", str(self.faulty[judging.MISSED]), "0"),
            ("faults named rightly", f"{self.faulty[judging.RIGHT]} of {self.caught}", f"{NAMED_RIGHTLY:.0%}"),
            *(called if self.called else []),
            ("faults of Faultline itself", str(ours), "0"),
        ]

    @property
    def holds(self) -> bool:
        """Whether every bar is held."""
        wrong = sum(self.healthy.values()) - self.healthy[judging.RIGHT] - self.healthy[judging.REFUSED]
        lost = self.faulty[judging.MISSED] + self.faulty[judging.FAULT_OF_OURS]
        return not (wrong or lost or self.called[judging.WRONGLY_CALLED]) and self.named >= NAMED_RIGHTLY


def figures_of(proof: Proof, entries: Sequence[Result], specs: int = 0) -> Figures:
    """The figures of a proof from its results."""
    healthy = Counter(proof.worth(entry) for entry in entries if not proof.faulty(entry.cell))
    faulty = Counter(proof.worth(entry) for entry in entries if proof.faulty(entry.cell))
    called = Counter(named for entry in entries if (named := proof.called(entry)))
    return Figures(healthy, faulty, specs, called)


def show(proof: Proof, entries: Sequence[Result], figures: Figures) -> None:
    """Print the cells that were judged wrongly, and the figures."""
    wrong = [
        (worth, entry) for entry in entries if (worth := proof.worth(entry)) not in (judging.RIGHT, judging.REFUSED)
    ]
    for worth, entry in wrong[:SHOWN]:
        print(f"{worth}: {entry.cell.id}: {' '.join(entry.did)}")
        print(*(f"  {line}" for line in proof.about(entry.cell)), sep="\n")
        print(f"  {one_line('; '.join([entry.detail, *entry.finding.words]))[:400]}")
    for entry in [entry for entry in entries if proof.called(entry) == judging.WRONGLY_CALLED][:SHOWN]:
        print(f"{judging.WRONGLY_CALLED}: {entry.cell.id}: {', '.join(sorted(judging.names_given(entry)))}")
        print(*(f"  {line}" for line in proof.about(entry.cell)), sep="\n")
        print(f"  {one_line(entry.detail)[:400]}")
    if len(wrong) > SHOWN:
        print(f"and {count(len(wrong) - SHOWN, 'cell')} more")
    print("\n".join(headed(("measured", "value", "bar"), [row(*each) for each in figures.rows])))
    if figures.caught:
        print(f"named rightly: {percent(figures.named)}")
