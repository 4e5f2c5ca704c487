"""Which known failure a cell of somebody's model shows, and which it may be as well."""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from itertools import chain

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome
from faultline.catalogue.recognition import SHARDED
from faultline.observations import matching, measured
from faultline.observations.matching import Hints, Match, in_place
from faultline.observations.measured import Place
from faultline.ranks.facts import Facts
from faultline.runs.results import Result
from faultline.strategies import Holds

# What a cell's comparison with one process shows, and what follows from it: more than what a model is like.
COMPARED = {
    "over_ranks": "every step is the right one divided by the number of ranks: an average is taken twice",
    "bypassed": "the loss calls the model itself, and never the wrapper that the strategy put around it",
}
ALIKE = 0.01  # of two errors: so much is an engine's rounding
APART = "buffers_apart"  # the fact of a cell in which ranks hold unlike buffers
KNOWN_FACTS = {APART, *COMPARED, *(each.name for each in fields(Facts))}
UNMOVED = Did("diverges", "unmoved")
ENDS = ("raises", "crashes")  # what an error or a signal ends
CUT_OFF = "no input of a reentrant checkpoint requires a gradient, so no weight inside it gets one"

Known = tuple[Match | None, tuple[Match, ...]]
"""The known failure that a cell shows, and those that it may be as well."""


def fine(result: Result) -> bool:
    return result.outcome in ("trains", "impossible")


def recognised(result: Result, others: Collection[Result] = ()) -> Known:
    """The known failure that a cell shows, and those with its mechanism, or that show the same, where no more is known.

    By its error, as `diagnose` does; without one, by what the model needs for it and what was measured in its place.
    What its comparison shows decides before what the model is like. The model's `others` say what can't be the reason.
    """
    if fine(result):
        return _shown_by_one_process(result), ()
    if result.outcome == "raises":
        return _by_error(result, others)
    if by_itself(result):
        return None, ()
    did = result.did
    if compared := _doing(did, place(result), compared_of(result)):
        return compared[0], compared[1:]
    if result.checked.collectives and any(differs_alike(result, other) for other in others):
        return None, ()  # what a model asks of other ranks is no engine's fault
    if result.outcome in (Outcome.CRASHES, Outcome.HANGS) and by_rank((result, *others)):
        return None, ()  # ranks wait for others that do something else
    names = possible_reasons(result, result.checked.facts, others) | ({APART} if result.finding.apart else set())
    alike = _doing(did, place(result), names) or _by_facts(result, {}, others)
    return (alike[0] if alike else _cut_off_here(result)), ()  # what a model is like shows no more than one


def differs_alike(result: Result, other: Result) -> bool:
    """Whether a cell of another engine first differs in the same place, by as much."""
    one, two = result.finding.first, other.finding.first
    if not one or not two or strategies.engine(result.cell.strategy) == strategies.engine(other.cell.strategy):
        return False
    same = (one.step, one.phase, one.parameter) == (two.step, two.phase, two.parameter)
    return same and math.isclose(float(one.error or 0), float(two.error or 0), rel_tol=ALIKE)


def by_itself(result: Result) -> bool:
    """Whether a silent cell differs by what the model changes by itself: weights that it moves, or a cache."""
    cached = differs_by_cache(result) and not result.finding.apart
    return result.outcome == Outcome.DIVERGES and (cached or moved_by_hand(result))


def differs_by_cache(result: Result) -> bool:
    """Whether a cell first differs in the forward pass of a model in which each rank's rows leave something else, or in
    the gradients where they do so in its loss."""
    first = result.finding.first
    unlike = result.checked.facts.left_unlike
    of_loss = any(name.startswith("loss.") for name in unlike)  # which shows in the gradients alone
    return bool(unlike and first and (first.phase == "forward" or (of_loss and first.phase == "backward")))


def moved_by_hand(result: Result) -> bool:
    """Whether what never moves in a cell is what the model moves by itself in one process."""
    unmoved = {*result.finding.unmoved}
    return bool(unmoved) and unmoved <= {*result.checked.facts.moved_by_hand}


def _by_error(result: Result, others: Collection[Result]) -> Known:
    facts, (strategy, mode) = result.checked.facts, place(result)
    traceback = result.error.traceback if result.error else ""
    hints = Hints(frozenset([strategy]), frozenset([mode]), {}, in_place(traceback, strategy, mode))
    worded = matching.fitting(result.detail, hints)
    fits = [match for match in worded if match.sure]
    # A parameter in a block that is cut off takes part in the loss: it is no other failure's.
    cut = cut_off(facts)
    unused = tuple(name for name in facts.no_gradient if name not in cut)
    names = possible_reasons(result, replace(facts, no_gradient=unused), others).union(result.checked.shows)
    if fitting := [match for match in fits if needed(match.failure, names)]:
        return fitting[0], matching.sharing(fitting[0], fitting) if cut else ()
    if likely := _by_facts(result, {match.failure.name: match.signature for match in worded}, others):
        return likely[0], likely[1:]
    for match in fits:
        # Their words, and nothing that the model could be asked for; not those that only a remedy leads to.
        if not match.failure.recognition.model.any_of and measured.shown_by_itself(match.failure, match.signature):
            return replace(match, sure=matching.LIKELY), matching.sharing(match, fits)
    # A mode in which it was never measured says nothing against its mechanism, as in a log that doesn't say the mode.
    anywhere = matching.fitting(result.detail, replace(hints, modes=frozenset()))
    shared = (each for each in anywhere if each.mechanism and needed(each.failure, names))
    return next(shared, None), ()


def _by_facts(result: Result, signatures: Mapping[str, str], others: Collection[Result]) -> tuple[Match, ...]:
    """The failures that an end of a cell by an error is where they end so: one in their words, or of shards.

    `signatures` has the names of errors with its words, by failure. Where one of the model's `others` trains under the
    same strategy, in another checkpointing mode, what the model is like is no reason.
    """
    names = possible_reasons(result, result.checked.facts, others)
    likely: list[Match] = []
    trains = any(each.cell.strategy == result.cell.strategy and each.outcome == Outcome.TRAINS for each in others)
    sharded = result.outcome == Outcome.CRASHES or SHARDED.search(result.detail)
    for failure in failures().values() if result.outcome in ENDS and not trains else ():
        if not sharded and failure.name not in signatures:
            continue  # it is of a type, or of another kind
        by = next((fact for fact in failure.recognition.model.any_error if fact in names), "")
        if by and (where := _nearest(failure, place(result))):
            likely.append(_likely(failure, signatures.get(failure.name, result.signature), where, by))

    def place_of(each: Match) -> tuple[bool, int]:
        return each.failure.name not in signatures, len(each.failure.recognition.model.any_of)

    best = min(map(place_of, likely), default=None)
    return tuple(each for each in likely if place_of(each) == best)


def _nearest(failure: Failure, where: Place) -> frozenset[Place]:
    """Where cells of a failure end with an error: in this place, or else under the strategies that are most like it."""
    did = measured.outcomes(failure)
    ends = {measured.place(cell) for cell in did if cell.broken and did[cell][0] in ENDS}
    engine = strategies.engine(where[0])
    return frozenset(ends & {where} or {each for each in ends if strategies.engine(each[0]) == engine})


def _doing(did: Did, where: Place, names: Collection[str]) -> tuple[Match, ...]:
    """The failures that need one of these facts and have a cell with this outcome there."""
    fitting = [f for f in failures().values() if needed(f, names) and _is_measured(f, did, where)]
    fitting.sort(key=share_of_trainers)  # a model that is checked has none
    return tuple(_likely(f, did.signature, frozenset([where]), needed(f, names)) for f in fitting)


def _likely(failure: Failure, signature: str, where: frozenset[Place], by: str) -> Match:
    """A failure that is likely by a fact of the model."""
    mechanism = failure.recognition.model.mechanism.get(by, "")
    return Match(failure, signature, matching.LIKELY, where=where, mechanism=mechanism, by=by)


def as_silent(result: Result) -> list[Failure]:
    """The failures that are as silent in a cell's place, those that are no trainer's first."""
    there = [f for f in failures().values() if place(result) in measured.silent(f, {result.signature})]
    return sorted(there, key=share_of_trainers)


def _shown_by_one_process(result: Result) -> Match | None:
    """The known failure that one process shows already where a cell agrees with it: weights that never move, because
    the model's own checkpoints cut them off."""
    facts = result.checked.facts
    if result.outcome != "trains" or result.cell.checkpointing != "off" or not cut_off(facts):
        return None
    fitting = _doing(UNMOVED, ("single", facts.checkpointing), names_of_facts(Facts(frozen_input=facts.frozen_input)))
    return replace(fitting[0], mechanism=CUT_OFF) if fitting else None


def _cut_off_here(result: Result) -> Match | None:
    """As `_shown_by_one_process`, of reentrant checkpoints that a cell asks for: where all that never move is in blocks
    whose inputs require no gradient, it is the same mechanism, also under a strategy in which the failure was not
    measured."""
    blocks = tuple(f"{block}." for block in result.checked.facts.frozen_input)
    unmoved = result.finding.unmoved
    if result.did != UNMOVED or place(result)[1] != "reentrant" or not all(n.startswith(blocks) for n in unmoved):
        return None
    fitting = _doing(
        UNMOVED, ("single", "reentrant"), names_of_facts(Facts(frozen_input=result.checked.facts.frozen_input))
    )
    return replace(fitting[0], where=frozenset([place(result)]), mechanism=CUT_OFF) if fitting else None


def cut_off(facts: Facts) -> list[str]:
    """The parameters without a gradient in blocks that the model's own reentrant checkpoints cut off."""
    blocks = facts.frozen_input if facts.checkpointing == "reentrant" else ()
    return [name for name in facts.no_gradient if name.startswith(tuple(f"{block}." for block in blocks))]


def place(result: Result) -> Place:
    """Where a cell was run: a model that checkpoints by itself does so where nothing was asked for."""
    mode = result.cell.checkpointing
    return result.cell.strategy, result.checked.facts.checkpointing if mode == "off" else mode


def share_of_trainers(failure: Failure) -> float:
    """How many of a failure's broken variants are in a trainer."""
    broken = [variant for variant in failure.variants if variant.broken]
    return sum(bool(variant.trainer) for variant in broken) / len(broken)


def _is_measured(failure: Failure, did: Did, where: Place) -> bool:
    """Whether a cell of a failure does this in a place, and it is the failure's own; a checkpointing mode in which none
    of its cells was run says nothing."""
    cells = measured.outcomes(failure)
    strategy, mode = where
    modes = {mode} & {cell.checkpointing for cell in cells} or {cell.checkpointing for cell in cells}
    there = (cells[cell] for cell in cells if cell.strategy == strategy and cell.checkpointing in modes)
    return did.signature not in failure.also_raises and did in there


def compared_of(result: Result) -> list[str]:
    """The facts of a cell's comparison; none for a loss with a backward pass of its own, which shows them anyway."""
    return [] if result.checked.facts.own_backward else [*result.checked.shows]


def possible_reasons(result: Result, facts: Facts, others: Collection[Result]) -> frozenset[str]:
    """The names of the facts of a model that can be the reason for what a cell does."""
    names = names_of_facts(facts) | ({"unequal"} if by_rank((result, *others)) else set())
    first = result.finding.first if result.outcome == Outcome.DIVERGES else None
    if first and first.parameter in facts.hooked:  # a flat parameter has no hook
        return frozenset()
    if first and any(within(first.module, name) for name in facts.unequal):  # ranks reduce it with something else
        return names & {"unequal"}
    if first and first.phase == "backward" and first.parameter:
        called = {first.parameter}.union(*(tied for tied in facts.tied if first.parameter in tied))
        if not called & {*facts.read_outside}:  # a shard that is read without an error spoils its own gradient
            names -= {"read_outside"}
    return names - _excluded(result, facts)


def _excluded(result: Result, facts: Facts) -> set[str]:
    """The facts that can't be the reason, by where an error was raised, how a cell ended, and its strategy."""
    excluded = set[str]()
    inside = result.checked.raised_in
    if inside is not None:  # what a second backward pass meets, it meets later
        excluded |= {"double_backward"}
    elif result.outcome == Outcome.RAISES and facts.double_backward:  # what these meet, they meet in a forward pass
        excluded |= {"without_root", "without_unit"}
    if inside and not any(name.startswith(f"{inside}.") for name in facts.order):  # a leaf has weights of its own
        excluded |= {"read_outside"}
    if strategies.holds(result.cell.strategy) == Holds.WHOLE:
        excluded |= {"read_outside", "without_unit"}
    if facts.unlike_buffers:  # without statistics of the batch, these stay apart
        excluded |= {"batch_statistics"}
    if result.outcome in (Outcome.CRASHES, Outcome.HANGS):  # all ranks have these alike
        excluded |= {"no_gradient", "zero_gradient"}
    if begins_forward(result):  # there was no backward pass yet
        excluded |= {"double_backward"}
    return excluded


def begins_forward(result: Result) -> bool:
    """Whether a silent cell differs in the first forward pass already."""
    first = result.finding.first
    return bool(result.outcome == Outcome.DIVERGES and first and (first.step, first.phase) == (1, "forward"))


def within(module: str, other: str) -> bool:
    """Whether a module is another one, or a part of it."""
    return f"{module}.".startswith(f"{other}.")


def by_rank(results: Collection[Result]) -> bool:
    """Whether ranks run different modules where one process shows no such thing, or may: it asks for its rank."""
    asks = (
        name.startswith(("get_rank", "RANK", "LOCAL_RANK")) for each in results for name in each.checked.collectives
    )
    return any(each.checked.by_rank for each in results) or any(asks)


def names_of_facts(facts: Facts) -> frozenset[str]:
    """The names of the facts that hold of a model."""
    return frozenset(each.name for each in fields(facts) if getattr(facts, each.name))


def needed(failure: Failure, names: Collection[str]) -> str:
    """The first fact that a failure needs, of those that hold of a model; empty if it has none."""
    return next((fact for fact in failure.recognition.model.any_of if fact in names), "")


def check_facts(catalogue: Collection[Failure]) -> None:
    """Refuse a failure that is recognised by a fact that there isn't: it would never be."""
    for failure in catalogue:
        model = failure.recognition.model
        names = {*model.any_of, *model.any_error, *model.mechanism, *chain(*model.excludes.values())}
        if unknown := names - KNOWN_FACTS:
            raise UsageError(f"repros/{failure.name}: no fact of a model is called {', '.join(sorted(unknown))}")
