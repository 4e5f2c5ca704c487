"""The result of a cell, as a line of cells.jsonl: read and written here, and nowhere else."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from faultline.base.axes import NAMES, OPTIONAL
from faultline.base.errors import UNREADABLE, UsageError
from faultline.base.packages import untagged
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import SILENT, Did, Outcome, outcome_text
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.cells.finding import Finding, Number
from faultline.ranks.facts import Facts
from faultline.ranks.report import KINDS, Deviation, RankError, Report, Sketch
from faultline.runs.nodes import STILL_RUNNING, Ended, RankEnd
from faultline.runs.oracle import Cause, Judgement
from faultline.strategies import Evidence

WORST = 10  # errors of gradients, and as many of weights, that are kept for each cell


@dataclass(frozen=True)
class Rounding:
    """The errors above the tolerance that rounding explains: how many, the largest, the most times the noise."""

    count: int = 0
    largest: Deviation | None = None
    times_noise: Number | None = None


@dataclass(frozen=True)
class RankResult:
    """What became of one rank: `exit` is its exit code, if it left without a report; `bad` counts bad comparisons."""

    rank: int
    exit: int | None = None
    error: RankError | None = None
    evidence: Evidence = field(default_factory=dict)
    losses: tuple[Number, ...] = ()
    steps: int = 0
    bad: int = 0
    digests: tuple[str, ...] = ()
    stack: str = ""
    log: str = ""


@dataclass(frozen=True)
class Beside:
    """What a cell did where `what` was otherwise, one of variations.BESIDE; without an outcome, `detail` says why it
    wasn't run."""

    what: str
    outcome: str
    signature: str
    detail: str


@dataclass(frozen=True)
class Checked:
    """What only the check of a model adds to a result.

    `raised_in` is the module whose forward pass ended in the cell's error, `at` the lines of the model's files that
    the error came through, or in which each rank of a hang waits, `apart` weights that were tied, `by_rank` modules
    that ran on some ranks only, `collectives` those that the model calls by itself, `shows` names of `known.COMPARED`,
    `causes` the ways in which its numbers are wrong if there are several, `beside` other runs of it, and `facts` what
    was seen in one process, on the rows of as many ranks. `sketch` is rank 0's, where one was asked for.
    """

    raised_in: str | None = None
    at: tuple[str, ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    by_rank: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    beside: tuple[Beside, ...] = ()
    facts: Facts = field(default_factory=Facts)
    sketch: Sketch | None = None

    def as_json(self) -> Mapping[str, object]:
        values = {**dataclasses.asdict(self), "facts": self.facts.as_json()}
        return values if self.sketch else {name: value for name, value in values.items() if name != "sketch"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of cells.jsonl; docs/formats.md has the table of its keys."""

    cell: Cell
    stack: Mapping[str, str]
    outcome: str
    signature: str
    detail: str
    rank: int | None = None
    worst_parameter: str
    relative_error: Number | None
    expected: Expectation
    verdict: str
    seconds: float
    evidence: Evidence
    compared: tuple[str, ...]
    errors: tuple[Deviation, ...]
    rounding: Rounding
    ranks: tuple[RankResult, ...]
    finding: Finding = field(default_factory=Finding)
    checked: Checked = field(default_factory=Checked)

    @property
    def did(self) -> Did:
        return Did(self.outcome, self.signature)

    @property
    def out_of_time(self) -> bool:
        """Whether a deadline ended its ranks: they may have been slow, or hang."""
        return self.outcome == Outcome.HANGS and STILL_RUNNING in self.detail

    @property
    def raised(self) -> RankResult | None:
        """The rank whose error it is; or another one with an error, where that one reported none."""
        return min((rank for rank in self.ranks if rank.error), key=lambda rank: rank.rank != self.rank, default=None)

    @property
    def error(self) -> RankError | None:
        """The error of the rank that `raised`."""
        return self.raised.error if self.raised else None

    def as_json(self) -> Mapping[str, object]:
        """The line of cells.jsonl: `cell` is its id and axes, and the keys of `checked` are only there for a check."""
        values = dataclasses.asdict(self)
        axes, _ = values.pop("cell"), values.pop("checked")
        more = self.checked.as_json() if self.checked != Checked() else {}
        return {"id": self.cell.id, **axes, **finite({**values, **more})}


def read(line: str) -> Result | None:
    """The result that a line of cells.jsonl holds; None for any other text, an id that contradicts its axes, or an
    outcome that there isn't."""
    try:
        # Lines of before lack the axes that came later.
        entry = {**{axis.name: axis.default for axis in OPTIONAL}, **json.loads(line)}
        cell = Cell.parse(entry["id"])
        if {name: entry[name] for name in NAMES} != vars(cell) or entry["outcome"] not in [*Outcome]:
            return None
        more = {each.name: entry[each.name] for each in dataclasses.fields(Checked) if each.name in entry}
        if facts := more.get("facts"):
            more["facts"] = {**facts, "model": facts["class"]}
        return msgspec.convert({**entry, "cell": vars(cell), "checked": more}, Result)
    except (*UNREADABLE, UsageError):  # msgspec.ValidationError is a ValueError
        return None


def result(
    cell: Cell,
    judged: Judgement,
    ended: Ended,
    versions: Mapping[str, str],
    expected: Expectation | None = None,
    verdict: str = "expected",
) -> Result:
    """What a cell did, as judged and by its ranks' reports; what was `expected` is the catalogue's, unless given."""
    reports = [end.report for end in ended.ranks if end.report]
    entry = Result(
        cell=cell,
        stack=untagged(versions),
        outcome=str(judged.outcome),
        signature=str(judged.signature),
        detail=judged.detail,
        rank=judged.rank,
        worst_parameter=judged.worst_parameter,
        relative_error=judged.relative_error,
        expected=expected or Expectation(),
        verdict=verdict,
        seconds=round(ended.seconds, 3),
        evidence=ended.ranks[0].evidence if ended.ranks else {},
        compared=next((report.compared for report in reports if report.compared), ()),
        errors=tuple(worst_errors(reports)),
        rounding=excused(reports),
        ranks=tuple(_rank(rank, end, judged) for rank, end in enumerate(ended.ranks)),
        finding=judged.finding,
    )
    return entry if expected else with_verdict(entry)


def with_verdict(entry: Result) -> Result:
    """A result, held against what is expected of its cell with its versions, if the catalogue has it."""
    failure = failures().get(entry.cell.failure)
    should = expected.expect(expected.rules(failure), entry.cell, entry.stack) if failure else Expectation()
    return dataclasses.replace(entry, expected=should, verdict=expected.verdict(should, *entry.did))


def _rank(rank: int, end: RankEnd, judged: Judgement) -> RankResult:
    report = end.report or Report()
    error = report.error
    return RankResult(
        rank,
        end.exit,
        RankError(error.type, error.message, error.traceback, error.fault, error.kind) if error else None,
        end.evidence,
        tuple(report.losses),
        len(report.steps),
        sum(len(step.bad) for step in report.steps),
        report.digests,
        end.stack,
        end.log[-4000:] if judged.outcome not in (Outcome.TRAINS, Outcome.RAISES) else "",
    )


def worst_errors(reports: Iterable[Report]) -> list[Deviation]:
    """The largest errors of each kind, without those of rounding."""
    rows = [row for report in reports for row, noise in report.deviations() if row.error and noise is None]
    rows.sort(key=_size)
    worst = [[row for row in rows if row.kind == kind][:WORST] for kind in KINDS]
    return sorted(chain(*worst), key=_size)


def excused(reports: Iterable[Report]) -> Rounding:
    rows = [(row, noise) for report in reports for row, noise in report.deviations() if noise is not None]
    largest = min((row for row, _ in rows), key=_size, default=None)
    return Rounding(len(rows), largest, max((noise for _, noise in rows), default=None))


def _size(row: Deviation) -> float:
    return -float(row.error)


def finite(value: Any) -> Any:
    """A value as JSON can hold it: what is not a finite number becomes the text ``nan``, ``inf`` or ``-inf``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def shows(failure: Failure, entry: Result) -> bool:
    """Whether a result is the failure: an error of one of its own signatures, or no error and wrong all the same."""
    if entry.outcome == Outcome.RAISES:
        return entry.signature in failure.errors and entry.signature not in failure.also_raises
    return entry.outcome in SILENT


def as_expected(result: Result) -> bool:
    """Whether a cell did what was expected of it; one without evidence never did, unless a proof took that from it."""
    unproven = result.outcome == Outcome.INVALID and result.expected.outcome != Outcome.INVALID
    return result.verdict == "expected" and not unproven


def expectation(result: Result) -> str:
    """The expected and the observed outcome in a few words."""
    return f"expected {outcome_text(result.expected.outcome, *result.expected.signatures)}, got {result.did}"


def outcomes(results: Iterable[Result]) -> dict[Cell, Did]:
    """Outcome and signature of each cell, as claims are held against them."""
    return {result.cell: result.did for result in results}
