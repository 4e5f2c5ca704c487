"""Which failures an error may be, how sure that is, and where it was measured."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.text import one_line
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.recognition import Mechanism, meets_any
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.observations import history, measured, remedies
from faultline.observations.measured import Place
from faultline.observations.remedies import Fate
from faultline.strategies.naming import mentioned

# How sure an answer is. An error's text alone is never enough where other mistakes raise the same error.
CERTAIN = "certain"  # runs raised this error under the strategy and mode of the log, and the log points to the failure
LIKELY = "likely"  # the log points to the failure and nothing excludes it, but strategy or mode isn't known

SHARED = "other mistakes raise this error too, and nothing else in the log points to this failure"


@dataclass(frozen=True)
class Hints:
    """What is known of a run; an empty axis is not known.

    context  the lines of the log that may show more
    asked    such lines made of the options: they can make an answer likely, and never certain
    """

    strategies: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    versions: dict[str, str] = field(default_factory=dict)
    context: str = ""
    asked: str = ""


@dataclass(frozen=True)
class Match:
    """A failure that an error may be.

    sure       certain, likely, or empty where something excludes it
    against    what excludes it
    where      the places in which runs raised the error, as far as the log leaves them
    mechanism  what happens to any such model, where nothing in the log shows that it is the failure's own
    only_if    what else must be so, in words, where the log doesn't show it
    by         the fact of a model that it is found by where there was no error: see `recognition.Model`
    later      that the log is of a process that loads what a run left: `signature` is then what that run did
    """

    failure: Failure
    signature: str
    sure: str = ""
    against: str = ""
    where: frozenset[Place] = frozenset()
    mechanism: str = ""
    only_if: str = ""
    by: str = ""
    later: bool = False

    @property
    def distinguished_by(self) -> str:
        """What would show that it is this failure, in words; empty where nobody wrote that down."""
        return self.failure.recognition.distinguished_by(self.by or self.signature)


class Support(Enum):
    """What points to a failure whose error a log has, the strongest first."""

    ERROR = auto()  # no other mistake raises the error
    LOG = auto()  # something else in the log
    OPTIONS = auto()  # only what the options say of the run
    PARTLY = auto()  # something in the log, if what else it takes is so
    MECHANISM = auto()  # something in the log, but only to its mechanism
    NOTHING = auto()


def fitting(text: str, hints: Hints) -> tuple[Match, ...]:
    """Every failure that has an error with this text, judged by `judge`, and the best first by `_order`."""
    flat = one_line(text)
    matches = []
    for failure in failures().values():
        for name, pattern in failure.errors.items():
            if name not in failure.also_raises and any(re.search(pattern, t, re.IGNORECASE) for t in (text, flat)):
                matches.append(judge(failure, name, hints))
                break
    return tuple(sorted(matches, key=_order))


def _order(match: Match) -> tuple[bool, bool, bool, bool, str]:
    """Why a match comes after another one, the gravest reason first; without a reason the name decides."""
    excluded = not match.sure
    only_mechanism = bool(match.mechanism)
    only_after_a_remedy = not measured.shown_by_itself(match.failure, match.signature)
    only_likely = match.sure != CERTAIN
    return excluded, only_mechanism, only_after_a_remedy, only_likely, match.failure.name


def judge(failure: Failure, signature: str, hints: Hints) -> Match:
    """How sure it is that an error with one of a failure's signatures is that failure.

    1. It is excluded where no run raised the error under the log's strategy and checkpointing mode.
    2. It is excluded where other mistakes raise the error too and nothing else points to this failure, or where only
       its words do, and what would show it is of other strategies than the log's.
    3. It is likely, and only its mechanism is named, where no more than the mechanism shows; or on a condition,
       `only_if`, where the log points to the failure but for that.
    4. It is certain where the log itself points to it, strategy and mode are known, and the measured stack that is
       nearest to the log's versions raises the error.
    5. Otherwise it is likely.
    """
    if finding := failure.recognition.of(signature).raised_on_load:
        return _judge_loading(failure, signature, finding, hints)
    everywhere = measured.places(failure, signature)
    # A mode in which none of this was run says nothing about it.
    modes = hints.modes if hints.modes <= measured.modes(failure, signature) else frozenset()
    places = frozenset(place for place in everywhere if fits(place, hints.strategies, modes))
    if everywhere and not places:
        named = (_alternatives(hints.strategies, strategies.names()), _alternatives(modes, CHECKPOINTING))
        return Match(failure, signature, against=f"no run ended so under {' and '.join(filter(None, named))}")
    by = support(failure, signature, hints)
    if by in (Support.NOTHING, Support.ERROR) and (others := _elsewhere(failure, signature, hints)):
        there = frozenset(spot for spot in everywhere if spot[0] in others)
        return Match(
            failure, signature, against=f"measured elsewhere, under {words.group_strategies(others, ())}", where=there
        )
    match by:
        case Support.NOTHING:
            return Match(failure, signature, against=SHARED, where=places)
        case Support.MECHANISM:
            same = mechanism(failure, signature)
            return Match(failure, signature, LIKELY, where=places, mechanism=same.text if same else "")
        case Support.ERROR | Support.LOG if places and _place_known(hints, modes, everywhere):
            nearest_raises = not history.disappeared(failure, signature, places, hints.versions)
            return Match(failure, signature, CERTAIN if nearest_raises else LIKELY, where=places)
        case Support.PARTLY:
            return Match(failure, signature, LIKELY, where=places, only_if=_open(failure, signature, hints))
    return Match(failure, signature, LIKELY, where=places)


def _elsewhere(failure: Failure, signature: str, hints: Hints) -> frozenset[str]:
    """The strategies that what distinguishes a failure mentions, if the run's is none of them; else none."""
    named = mentioned(failure.recognition.of(signature).distinguished_by)
    return named if hints.strategies and named.isdisjoint(hints.strategies) else frozenset()


def support(failure: Failure, signature: str, hints: Hints) -> Support:
    """What points to a failure whose error a log has."""
    conditions, same = failure.recognition.of(signature).any_of, mechanism(failure, signature)
    log_and_options = f"{hints.context}\n{hints.asked}"
    closed = [condition for condition in conditions if not condition.only_if]
    if any(condition.holds(hints.context) for condition in closed):
        return Support.LOG
    if any(condition.holds(log_and_options) for condition in closed):
        return Support.OPTIONS
    if _open(failure, signature, hints):
        return Support.PARTLY
    if same and meets_any(same.any_of, log_and_options):
        return Support.MECHANISM
    return Support.NOTHING if conditions or same else Support.ERROR


def _open(failure: Failure, signature: str, hints: Hints) -> str:
    """What else must be so of the first condition that a log meets so far; empty if it meets none of that kind."""
    conditions = failure.recognition.of(signature).any_of
    return next((each.only_if for each in conditions if each.only_if and each.holds(hints.context)), "")


def _judge_loading(failure: Failure, signature: str, finding: str, hints: Hints) -> Match:
    """How sure the error of a process is that loads what a run left: its strategy and mode say nothing of that run."""
    same, where = mechanism(failure, signature), measured.places(failure, finding)
    if meets_any(failure.recognition.of(signature).any_of, hints.context):
        return Match(failure, finding, LIKELY, where=where, later=True)
    if same and meets_any(same.any_of, hints.context):
        return Match(failure, finding, LIKELY, where=where, mechanism=same.text, later=True)
    return Match(failure, finding, against=SHARED, later=True)


def fits(place: Place, names: frozenset[str], modes: frozenset[str]) -> bool:
    """Whether a place may be that of a run of which the strategy and the mode are known, or not."""
    strategy, mode = place
    return (not names or strategy in names) and (not modes or mode in modes)


def _place_known(hints: Hints, modes: frozenset[str], places: Iterable[Place]) -> bool:
    """Whether the strategy is known, and the checkpointing mode as well where it has a part in the failure."""
    if not hints.strategies:
        return False
    if hints.modes:
        return bool(modes)
    return {mode for _, mode in places} != {"reentrant"}


def mechanism(failure: Failure, signature: str) -> Mechanism | None:
    """What happens to any model with this error, where that is known: the failure's own, or another's."""
    same_as = failure.recognition.of(signature).same_as or f"{failure.name}/{signature}"
    owner, _, name = same_as.partition("/")
    return failures()[owner].recognition.mechanism.get(name)


def settling(match: Match, hints: Hints) -> list[str]:
    """The options, of axes that aren't known, of which some value makes a likely answer certain or excludes it, if
    perhaps only beside another; a checkpointing mode that has no part in a failure does neither."""
    unknown = frozenset[str]()
    names = [hints.strategies] if hints.strategies else [unknown, *(frozenset([n]) for n in strategies.names())]
    modes = [hints.modes] if hints.modes else [unknown, *(frozenset([mode]) for mode in CHECKPOINTING)]

    def likely(strategies: frozenset[str], modes: frozenset[str]) -> bool:
        return judge(match.failure, match.signature, replace(hints, strategies=strategies, modes=modes)).sure == LIKELY

    by_name = [[likely(name, mode) for mode in modes] for name in names]
    by_mode = zip(*by_name, strict=True)
    axes = {"--strategy": by_mode, "--checkpointing": by_name}
    return [option for option, rows in axes.items() if any(first and not all(others) for first, *others in rows)]


def sharing(best: Match, among: Iterable[Match]) -> tuple[Match, ...]:
    """The matches of other failures that have the mechanism of the best, where no more than that is known of it."""
    same = {match.failure.name: match for match in among if match.mechanism == best.mechanism != ""}
    return tuple(match for match in same.values() if match.failure != best.failure)


def equals(best: Match, among: Iterable[Match]) -> tuple[Match, ...]:
    """The matches of other failures of which nothing but the name says that they come after the best."""
    *reasons, _ = _order(best)
    same = {match.failure.name: match for match in among if [*_order(match)[:-1]] == reasons}
    return tuple(match for match in same.values() if match.failure != best.failure)


def name_of(best: Match, either: Sequence[Match]) -> str:
    return " or ".join(match.failure.name for match in (best, *either))


def worded(fates: Iterable[Fate], mechanism: str) -> list[Fate]:
    """The remedies to show: where only the mechanism is known, those that any model has, in words for any."""
    if not mechanism:
        return list(fates)
    return [replace(fate, claim=replace(fate.claim, text=general)) for fate in fates if (general := fate.claim.general)]


def happens(match: Match) -> list[str]:
    """Where the failure ends with this error on today's stack; with which other, if not where the log is from."""
    did = measured.outcomes(match.failure)
    broken = [cell for cell in did if cell.broken]
    same = [cell for cell in broken if did[cell][1] == match.signature]
    as_one = [replace(cell, variant="broken") for cell in broken]  # which of several variants shows it is in `show`
    places = words.in_few_words([replace(cell, variant="broken") for cell in same], as_one)
    if match.where.isdisjoint((cell.strategy, cell.checkpointing) for cell in same):
        shown = measured.outcomes(match.failure, measured.shown_on(match.failure))
        others: dict[str, list[Cell]] = {}
        for cell in remedies.in_other_words(match.failure, match.signature, match.where, shown):
            if cell.broken:
                others.setdefault(str(did[cell]), []).append(replace(cell, variant="broken"))
        for outcome, cells in others.items():
            places += [f"as {outcome} under {place}" for place in words.in_few_words(cells, as_one)]
    return places


def commands(match: Match) -> list[str]:
    """The commands that reproduce the failure: in the place that is known of the run, and as it was reported."""
    cell, date = measured.cell_for(match.failure, match.signature, match.where)
    in_matrix = [words.command(cell.id, date)] if cell else []
    return in_matrix + ([f"faultline reproduce {match.failure.name}"] if match.failure.reported else [])


def _alternatives(names: Iterable[str], order: Sequence[str]) -> str:
    return " or ".join(sorted(names, key=order.index))


SET = {"reentrant": "use_reentrant=True", "non-reentrant": "use_reentrant=False"}
"""How settings word a checkpointing mode."""


def in_place(text: str, strategy: str, mode: str) -> str:
    """What a cell printed, with its strategy and mode as a log would have them."""
    return f"{text}\n{strategy}\n{SET.get(mode, '')}"
