"""Whether a candidate stack is safe: which cells changed against the baseline, how, and what that says together."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED
from faultline.base.text import count, one_line
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell, default_world
from faultline.observations.wording import normalised, same_error
from faultline.runs.results import Result

# What an outcome costs whoever meets it: an error is seen at once, and so is what can't be had; a hang takes hours, and
# what is silent isn't seen.
HARM = {
    Outcome.TRAINS: 0,
    Outcome.IMPOSSIBLE: 1,
    Outcome.RAISES: 1,
    Outcome.CRASHES: 1,
    Outcome.HANGS: 2,
    Outcome.MISPLACED: 3,
    Outcome.DIVERGES: 4,
}
UNNAMED = (Signature.OTHER, Signature.NO_REFERENCE)  # errors that only their text distinguishes
SAMPLE = 3  # cells of one cause that are measured again
REPEATS = 3  # at most, of a cell that doesn't do the same twice


class ChangeKind(StrEnum):
    """How a cell changed, the gravest first; docs/releases.md has what each of them means."""

    DIVERGES = "diverges now"
    LOST = "lost its reference"
    REGRESSED = "regressed"
    IMPOSSIBLE = "became impossible"
    INFRA = "infra"
    OTHER = "other failure"
    WORDING = "new wording"
    POSSIBLE = "became possible"
    FIXED = "fixed"


WORSE = (ChangeKind.DIVERGES, ChangeKind.LOST, ChangeKind.REGRESSED)


class Safety(StrEnum):
    SAFE = "SAFE"
    NOT_SAFE = "NOT SAFE"
    UNKNOWN = "UNKNOWN"
    NOTHING = "NOTHING TO COMPARE"

    @property
    def exit_code(self) -> int:
        codes = {Safety.NOT_SAFE: EXIT_UNEXPECTED, Safety.UNKNOWN: EXIT_UNDECIDED}
        return codes.get(self, EXIT_AS_EXPECTED)  # also where nothing changes, and so nothing can break


@dataclass(frozen=True)
class CellChange:
    """A cell that changed; a side without a result that proves anything is None.

    `hides` says of an infra change that what the candidate does stays unknown,
    and `note` why; `first` is the kind that one run of each side shows.
    """

    cell: Cell
    kind: ChangeKind
    first: ChangeKind
    before: Result | None
    after: Result | None
    hides: bool = False
    note: str = ""

    @property
    def cause(self) -> tuple[str, ...]:
        """What cells have in common that changed for the same reason, whichever failure and variant they are of."""
        return (self.first, observed(self.before), observed(self.after), _text(self))

    @property
    def unsteady(self) -> bool:
        """Whether it has results on both stacks, which don't agree with one another."""
        return self.kind is ChangeKind.INFRA and bool(self.before and self.after)

    @property
    def error(self) -> str:
        """The error that explains it: the candidate's or, where it trains, the baseline's; why there is no proof."""
        if not (self.before and self.after):
            return self.note
        detail = next((side.detail for side in (self.after, self.before) if side and side.detail), "")
        return ": ".join(filter(None, (self.note, one_line(detail))))


@dataclass(frozen=True)
class ChangeGroup:
    """Changes of one kind and cause, with the plainest cell first."""

    kind: ChangeKind
    changes: tuple[CellChange, ...]

    @property
    def example(self) -> CellChange:
        return self.changes[0]

    @property
    def did(self) -> str:
        return observed(self.example.before)

    @property
    def does(self) -> str:
        return observed(self.example.after)


@dataclass(frozen=True)
class Comparison:
    """What two stacks did with the same cells.

    `cells` were asked for; `compared` of them ran on both stacks and proved what they are; `trained` others train on
    the candidate, so whatever the baseline does, they aren't worse; `recorded` others fail there as is recorded of the
    baseline; all are of these `strategies`. `unproven` proved nothing on either. `unusable` says why there is nothing
    to compare; `identical`, that there is no difference to look for.
    """

    cells: int = 0
    compared: int = 0
    trained: int = 0
    recorded: int = 0
    strategies: frozenset[str] = frozenset()
    unproven: int = 0
    changes: tuple[CellChange, ...] = ()
    unusable: str = ""
    identical: bool = False

    @property
    def judged(self) -> int:
        return self.compared + self.trained + self.recorded

    @property
    def groups(self) -> list[ChangeGroup]:
        """Every change in exactly one group; the gravest and then the largest groups first."""
        alike = group_by(self.changes, lambda change: (change.kind, *change.cause, normalised(change.note)))
        groups = [ChangeGroup(changes[0].kind, tuple(changes)) for changes in alike]
        return sorted(groups, key=lambda group: (list(ChangeKind).index(group.kind), -len(group.changes)))

    @property
    def reasons(self) -> list[tuple[Safety, str]]:
        """What rules out SAFE, each with the verdict that it leads to."""
        counts = Counter(change.kind for change in self.changes)
        lost = sum(c.kind is ChangeKind.IMPOSSIBLE and trained(c.before) for c in self.changes)
        hidden = sum(change.hides for change in self.changes)
        unproven = self.unproven if self.unproven > self.cells // 2 else 0
        counted = [
            (Safety.NOT_SAFE, counts[ChangeKind.DIVERGES], "went wrong without an error"),
            (Safety.NOT_SAFE, counts[ChangeKind.LOST], "can't be trained by a single process now"),
            (Safety.NOT_SAFE, counts[ChangeKind.REGRESSED], "regressed"),
            (Safety.UNKNOWN, lost, "trained and can't be run now"),
            (Safety.UNKNOWN, hidden, "can't be judged"),
            (Safety.UNKNOWN, unproven, "prove nothing on either stack"),
        ]
        reasons = [(word, f"{count(number, 'cell')} {text}") for word, number, text in counted if number]
        if self.unusable:
            reasons.append((Safety.UNKNOWN, self.unusable))
        elif not (self.judged or self.identical or reasons):
            reasons.append((Safety.UNKNOWN, "no cell ran on both stacks"))
        return reasons

    @property
    def verdict(self) -> Safety:
        """SAFE only where cells were judged, and nothing rules it out."""
        if self.identical:
            return Safety.NOTHING
        words = {word for word, _ in self.reasons}
        ruled_out = next((word for word in (Safety.NOT_SAFE, Safety.UNKNOWN) if word in words), None)
        return ruled_out or (Safety.SAFE if self.judged else Safety.UNKNOWN)


def change_of(cell: Cell, before: Sequence[Result], after: Sequence[Result]) -> CellChange | None:
    """How a cell changed, from all its results on both stacks; None where it didn't, or proves nothing on either."""
    old, new = (proven(side) for side in (before, after))
    if not old and not new and before and after:
        return None
    if not old or not new:
        side, runs = ("baseline", before) if not old else ("candidate", after)
        why = runs[0].detail if runs else "it was not measured"
        shown = old[0] if old else None, new[0] if new else None
        return CellChange(
            cell, ChangeKind.INFRA, ChangeKind.INFRA, *shown, True, f"no proof on the {side}: {one_line(why)}"
        )
    kind = classify(old[0], new[0])
    steady = all(agree(side[0], other) for side in (old, new) for other in side)
    if steady and kind is None:
        if len(old) == len(before) and len(new) == len(after):
            return None
        return CellChange(
            cell, ChangeKind.INFRA, ChangeKind.INFRA, old[0], new[0], note="no proof at first, unchanged when repeated"
        )
    if steady and kind:
        return CellChange(cell, kind, kind, old[0], new[0])
    first = kind or ChangeKind.INFRA
    if all(any(agree(one, other) for other in others) for runs, others in ((new, old), (old, new)) for one in runs):
        return CellChange(cell, ChangeKind.INFRA, first, old[0], new[0], note="the baseline does this at times as well")
    return CellChange(cell, ChangeKind.INFRA, first, old[0], new[0], True, "not the same when repeated")


def classify(before: Result, after: Result) -> ChangeKind | None:
    """The kind of change between two results that prove something, or None: nothing that got worse is excused."""
    if agree(before, after):
        return None
    old, new = Outcome(before.outcome), Outcome(after.outcome)
    if new == Outcome.DIVERGES and old != Outcome.DIVERGES:
        return ChangeKind.DIVERGES
    if new == Outcome.IMPOSSIBLE:
        return ChangeKind.IMPOSSIBLE
    if _lacks_reference(after) and not _lacks_reference(before):
        return ChangeKind.LOST
    if HARM[new] > HARM[old]:
        return ChangeKind.REGRESSED
    if old == Outcome.IMPOSSIBLE:
        return ChangeKind.POSSIBLE
    if new == Outcome.TRAINS:
        return ChangeKind.FIXED
    unnamed = before.signature in UNNAMED or after.signature in UNNAMED
    if old == new == Outcome.RAISES and unnamed and same_error(before.detail, after.detail):
        return ChangeKind.WORDING
    return ChangeKind.OTHER


def agree(one: Result, other: Result) -> bool:
    """Whether two results say the same; an error without a name is known by its text."""
    if one.did != other.did:
        return False
    unnamed = one.outcome == Outcome.RAISES and one.signature in UNNAMED
    return not unnamed or normalised(one.detail) == normalised(other.detail)


def group_by(changes: Iterable[CellChange], key: Callable[[CellChange], tuple[str, ...]]) -> Iterable[list[CellChange]]:
    """Changes with one key together, the plainest cell first."""
    groups: dict[tuple[str, ...], list[CellChange]] = {}
    for change in sorted(changes, key=_plainest):
        groups.setdefault(key(change), []).append(change)
    return groups.values()


def proven(side: Iterable[Result]) -> list[Result]:
    """The results that say something of a stack: also an error that came where the strategy was not in force.

    So does one in a single process, without which there is no reference. What a
    user asked for and had on the other stack ends in an error on this one.
    """
    proven = []
    for each in side:
        if each.outcome != Outcome.INVALID:
            proven.append(each)
        elif _raised(each):
            lost = each.signature == Signature.NO_REFERENCE
            proven.append(replace(each, outcome=Outcome.RAISES, signature=each.signature if lost else Signature.OTHER))
    return proven


def _lacks_reference(result: Result) -> bool:
    """Whether not even one process trains, so that no strategy could."""
    return result.signature == Signature.NO_REFERENCE


def _raised(entry: Result) -> bool:
    if entry.signature in (Signature.OWN_FAULT, Signature.MACHINE):
        return False
    return entry.signature == Signature.NO_REFERENCE or any(rank.error for rank in entry.ranks)


def trained(result: Result | None) -> bool:
    return bool(result and result.outcome == Outcome.TRAINS)


def observed(result: Result | None) -> str:
    """What a side of a change did, in words."""
    if result and _lacks_reference(result):
        return "raises in a single process"
    return str(result.did) if result else "no proof"


def _text(change: CellChange) -> str:
    """The text that distinguishes causes; a named signature does so by itself, and numbers differ from cell to cell."""
    if change.first is ChangeKind.INFRA:
        return normalised(change.note)
    side = change.before if trained(change.after) else change.after
    if not side or (side.outcome == Outcome.RAISES and side.signature not in UNNAMED):
        return ""
    described = side.outcome in (Outcome.RAISES, Outcome.CRASHES, Outcome.IMPOSSIBLE)
    return normalised(side.detail) if described else ""


def _plainest(change: CellChange) -> tuple[object, ...]:
    cell = change.cell
    return cell.world_size != default_world(cell), cell.precision != "fp32", cell.checkpointing != "off", cell.id
