"""One of several: the failures that an error may be where a log doesn't show which, and what helps against all."""

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from faultline.base.text import count, one_line
from faultline.catalogue import Claim, Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Signature
from faultline.catalogue.recognition import meets_any, patterns_met
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.cells.claims import NOT_RUN
from faultline.observations import answers, history, measured, store
from faultline.observations.matching import SHARED, Hints, Match, judge
from faultline.observations.measured import place
from faultline.observations.remedies import Fate
from faultline.observations.store import RecordedError

MOST = 3  # failures that are shown
SHORTEST = 30  # characters of a message that may be a part of a longer one
BEGINNING = 60  # characters of a message that are enough, where what decides comes later


def possible(text: str, excluded: Iterable[Match], hints: Hints) -> tuple[Match, ...]:
    """The failures that an error may be, the likeliest first, at most `MOST`; none if these aren't at least two.

    They are those of which only the error's words are in the log, and those whose cells ended with the error as
    another failure's, if their recognise.toml says what would show that it is they. A place in which no run ended so
    still excludes a failure, and so does a strategy that what would show it doesn't mention, unless one is left
    alone: words that several share don't show that it is that one, so the others come after it.
    """
    every = {match.failure.name: match for match in excluded}
    for error in store.errors().values():
        failure = failures().get(error.failure)
        if not failure or failure.name in every or not failure.recognition.of(error.signature).distinguished_by:
            continue
        if _worded_so(failure, error, text):
            every[failure.name] = judge(failure, error.signature, hints)
    every_may_be = [match for match in every.values() if _may_be(match, hints)]
    among = [match for match in every_may_be if match.sure or match.against == SHARED]
    if len(among) == 1:
        among = every_may_be
    return likeliest(among, hints) if len(among) > 1 else ()


def _worded_so(failure: Failure, error: RecordedError, text: str) -> bool:
    """Whether a text has the words of a recorded error, be it cut short; other numbers make no difference."""
    message = numberless(text.partition(": ")[2]).rstrip(" .…")
    cut_short = len(message) >= SHORTEST and message in numberless(error.text)
    if (alone := type_alone(error)) and re.search(alone, text.partition(": ")[2]):
        return True
    return cut_short or bool(re.search(failure.errors.get(error.signature, r"(?!)"), text, re.IGNORECASE))


def numberless(text: str) -> str:
    """A text on one line, in which all numbers but 0 are alike: an empty shape is another thing."""
    return re.sub(r"[1-9]\d*", "N", one_line(text))


def without_prose(text: str) -> str:
    """An error up to where the message of a recorded one ends, if a sentence of the report is glued to it."""
    plainly, ends = numberless(text), [len(text)]
    for error in store.errors().values():
        message = one_line(error.text.partition(": ")[2]).rstrip(" .")
        if len(message) >= BEGINNING and numberless(message) in plainly:
            pattern = re.sub(r"\d+", r"\\d+", re.escape(message))
            ends += [match.end() for match in re.finditer(rf"{pattern}(?=[A-Z][a-z ]|[.!] [A-Z])", text)]
    return text[: min(ends)]


def kind(error: RecordedError) -> str:
    """The type of a recorded error."""
    return error.text.partition(":")[0]


def type_alone(error: RecordedError) -> str:
    """The pattern of an error's type without a message, where that leaves few failures: it is a library's, while all
    kinds of mistakes raise Python's. Empty for others."""
    name = kind(error)
    few = name.isidentifier() and not hasattr(builtins, name) and error.signature != Signature.CHECK
    return rf"\b{name}\b(?!['\"]?[:(] *[^\s)])" if few else ""


def beginning(error: RecordedError) -> str:
    """How the message of a recorded error begins; empty if it isn't longer than that."""
    message = one_line(error.text.partition(": ")[2])
    return message[:BEGINNING] if len(message) > BEGINNING else ""


def _may_be(match: Match, hints: Hints) -> bool:
    """Whether a log has what a failure needs to be one of several, if the error's words say too little."""
    may_be = match.failure.recognition.of(match.signature).may_be
    return meets_any(may_be, f"{hints.context}\n{hints.asked}")


def likeliest(among: Iterable[Match], hints: Hints) -> tuple[Match, ...]:
    """The first `MOST` of several failures: those that more of the log fits, then those that more runs ended as.

    What fits are patterns of a failure's conditions, and the names of code in what would distinguish it.
    """

    def order(match: Match) -> tuple[bool, int, int, str]:
        error = match.failure.recognition.of(match.signature)
        fits = patterns_met(error.any_of, hints.context)
        fits += sum(bool(re.search(pattern, hints.context)) for pattern in error.terms)
        return elsewhere(match), -fits, -runs(match), match.failure.name

    return tuple(sorted(among, key=order)[:MOST])


def elsewhere(match: Match) -> bool:
    """Whether runs ended with a failure's error in other places than the log's alone."""
    return not match.sure and match.against != SHARED


def runs(match: Match) -> int:
    """How many recorded runs ended with a failure's error, in the places that the log leaves if it leaves any."""
    by_cell = measured.recorded(match.failure.name, match.signature).items()
    return sum(len(rows) for cell, rows in by_cell if not match.where or place(cell) in match.where)


def distinctions(several: Sequence[Match], condition: str = "if") -> list[str]:
    """What would show which of several failures it is, a line for each; it may be so ``only if`` it shows."""
    return [
        f"It is {m.failure.name} {condition} the run has {m.distinguished_by}"
        if m.distinguished_by
        else f"It is {m.failure.name} {condition} this is so: {m.failure.title}"
        for m in several
    ]


def upgrades(match: Match) -> list[tuple[str, str, str]]:
    """Each first release with the fix of cells that ended with a failure's error: a verdict, the release and evidence.

    Cells that neither have a fix nor show the failure today say nothing. While some show it, those with the fix are
    named by their variants.
    """
    known = measured.outcomes(match.failure)
    every = [cell for cell in measured.recorded(match.failure.name, match.signature) if cell.broken and cell in known]
    every = [cell for cell in every if not match.where or place(cell) in match.where]
    fixes = {cell: answers.fixed(match.failure, cell) for cell in every}
    cells = [cell for cell in every if fixes[cell] or history.shows(match.failure, cell, known[cell])]
    rows = []
    for fix in dict.fromkeys(fix for fix in fixes.values() if fix):
        there = [cell for cell in cells if fixes[cell] == fix]
        variants = ", ".join(sorted({cell.variant for cell in there}))
        word, of = ("conditional", f", in {variants}") if len(there) < len(cells) else ("verified", "")
        evidence = f"first release with the fix; {len(there)} of {count(len(cells), 'cell')}{of}"
        rows.append((word, fix.or_newer, evidence))
    return rows


@dataclass(frozen=True)
class _Tally:
    """The cells in which a remedy was put to the test against one failure, and those in which it helped."""

    helped: int
    cells: int


def helps_all(several: Sequence[Match]) -> list[Fate]:
    """The remedies that help against each of several failures: what they change in the matrix is the same.

    They are verified where every cell of every failure that shows the error trains with them, else conditional where
    some cell of every failure does.
    """
    by_swap: dict[frozenset[tuple[str, str]], tuple[str, Claim]] = {}
    for match in several:
        for key, claim in match.failure.claims.items():
            if claim.kind == "helps" and "stack" not in claim.swap and "variant" not in claim.swap:
                by_swap.setdefault(frozenset(claim.swap.items()), (key, claim))
    fates = []
    for key, claim in by_swap.values():
        tallies = [*takewhile(lambda tally: tally.helped, (_tally(match, claim) for match in several))]
        if len(tallies) == len(several):
            helped, cells = sum(t.helped for t in tallies), sum(t.cells for t in tallies)
            stated = replace(claim, text=claim.general or claim.text)
            fates.append(Fate(key, stated, "verified" if helped == cells else "conditional", helped, cells, ()))
    return fates


def _tally(match: Match, claim: Claim) -> _Tally:
    """How a remedy fares in the cells that end with a failure's error, the broken ones if there are any: it helps in a
    cell if it does so on every stack. A swapped cell that ends with another error, which is no failure's, says
    nothing."""
    helps: dict[bool, dict[Cell, bool]] = {True: {}, False: {}}
    for cell, trains in _swapped(match.failure, match.signature, frozenset(claim.swap.items())):
        if not match.where or place(cell) in match.where:
            there = helps[cell.broken]
            there[cell] = there.get(cell, True) and trains
    chosen = helps[True] or helps[False]
    return _Tally(sum(chosen.values()), len(chosen))


@store.view
def _swapped(failure: Failure, signature: str, swap: frozenset[tuple[str, str]]) -> list[tuple[Cell, bool]]:
    """The cells of a failure that ended with a signature, and whether what a remedy changes made them train; for each
    stack again."""
    changes = dict(swap)
    return [
        (cell, other.outcome == "trains")
        for known in (measured.outcomes(failure), *measured.by_stack(failure.name).values())
        for cell, did in known.items()
        if did.signature == signature
        and (other := known.get(claims.swapped(failure, changes, cell)))
        and other.outcome not in NOT_RUN
        and other.signature != Signature.OTHER
    ]
