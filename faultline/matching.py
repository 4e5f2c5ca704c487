"""Which failures an error's words are those of, how sure that is, and where it was measured."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from faultline import known, nearby, report, strategies
from faultline.catalogue import Failure, Mechanism, failures
from faultline.hints import Hints
from faultline.known import Fate, Place
from faultline.matrix import CHECKPOINTING, Cell
from faultline.report import one_line

# How sure an answer is. The words of an error alone are never enough where other mistakes share them.
# Runs ended with these words under the strategy and mode that the log or the options name; where other mistakes share
# the words, the log itself shows what bears them out.
CERTAIN = "certain"
LIKELY = "likely"  # the words are the failure's own, and nothing speaks against it; strategy or mode isn't known

SHARED = "other mistakes have these words too, and nothing else in the log fits"


@dataclass(frozen=True)
class Match:
    """A failure whose words an error has; `against` says what keeps it from being the answer."""

    failure: Failure
    signature: str
    sure: str = ""
    against: str = ""
    where: frozenset[Place] = frozenset()
    mechanism: str = ""
    """What happens to any such model, where nothing in the log says that it is the failure's own."""
    by: str = ""
    """The fact that it is found by, where no words were: see `Failure.found_by`."""
    later: bool = False
    """Whether the log is of a process that loads what a run left: `signature` is what that run was found to be."""

    @property
    def told_by(self) -> str:
        """What would show that it is this failure, in words; empty where nobody wrote that down."""
        return self.failure.told_by.get(self.by or self.signature, "")


def sharing(best: Match, among: Iterable[Match]) -> tuple[Match, ...]:
    """The matches of other failures that have the mechanism of the best, where no more than that is known of it."""
    same = {match.failure.name: match for match in among if match.mechanism == best.mechanism != ""}
    return tuple(match for match in same.values() if match.failure != best.failure)


def name_of(best: Match, either: Sequence[Match]) -> str:
    return " or ".join(match.failure.name for match in (best, *either))


def apart(best: Match, either: Sequence[Match]) -> list[str]:
    """What would tell failures apart that have one mechanism or show the same, a line for each; nothing for one."""
    every = (best, *either) if either else ()
    return [f"{match.failure.name} if there is {match.told_by or match.failure.title}" for match in every]


def worded(fates: Iterable[Fate], mechanism: str) -> list[Fate]:
    """Remedies as they are told: where only the mechanism is known, those that any model has, in words for any."""
    if not mechanism:
        return list(fates)
    return [replace(fate, claim=replace(fate.claim, text=general)) for fate in fates if (general := fate.claim.general)]


def fitting(text: str, hints: Hints) -> tuple[Match, ...]:
    """Every failure whose words an error has, the best first."""
    flat = one_line(text)
    candidates = []
    for failure in failures().values():
        for name, pattern in failure.signatures.items():
            if name not in failure.elsewhere and (re.search(pattern, text) or re.search(pattern, flat)):
                candidates.append(_weigh(failure, name, hints))
                break
    # What a failure shows by itself comes before what only one of its remedies leads to.
    order = (CERTAIN, LIKELY, "")
    return tuple(
        sorted(
            candidates,
            key=lambda m: (
                not m.sure,
                bool(m.mechanism),
                not known.shown_by_itself(m.failure, m.signature),
                order.index(m.sure),
                m.failure.name,
            ),
        )
    )


def _weigh(failure: Failure, signature: str, hints: Hints) -> Match:
    """How sure a failure is whose words were found: where runs ended so, against what is known of this one."""
    if finding := failure.later.get(signature):
        return _later(failure, signature, finding, hints)
    everywhere = known.places(failure, signature)
    # A mode in which none of this was run says nothing about it.
    asked = hints.modes if hints.modes <= _modes(failure, signature) else frozenset()
    there = frozenset(
        (strategy, mode)
        for strategy, mode in everywhere
        if (not hints.strategies or strategy in hints.strategies) and (not asked or mode in asked)
    )
    if everywhere and not there:
        run = " and ".join(
            filter(None, (_several(hints.strategies, strategies.names()), _several(asked, CHECKPOINTING)))
        )
        return Match(failure, signature, against=f"no run ended so under {run}")
    context = failure.context.get(signature)
    in_log = not context or bool(re.search(context, hints.context))
    all_known = f"{hints.context}\n{hints.asked}"
    bears_out = in_log or bool(context and re.search(context, all_known))
    modes = {mode for _, mode in everywhere}
    needs_mode = modes == {"reentrant"}
    shown = bool(hints.strategies) and (bool(asked) or not (hints.modes or needs_mode))
    same = mechanism(failure, signature)
    bears_out = bears_out and bool(context or not same)
    if same and not bears_out and re.search(same.context, all_known):
        return Match(failure, signature, LIKELY, where=there, mechanism=same.text)
    if not bears_out:
        return Match(failure, signature, against=SHARED)
    sure = there and shown and in_log and not nearby.gone(failure, signature, there, hints.versions)
    return Match(failure, signature, CERTAIN if sure else LIKELY, where=there)


def settling(match: Match, hints: Hints) -> list[str]:
    """The options, of axes that aren't known, of which some value makes an answer certain or rules it out, if perhaps
    only beside another; a checkpointing mode that has no part in a failure does neither."""
    unknown = frozenset[str]()
    named = [hints.strategies] if hints.strategies else [unknown, *(frozenset([n]) for n in strategies.names())]
    modes = [hints.modes] if hints.modes else [unknown, *(frozenset([mode]) for mode in CHECKPOINTING)]

    def open_with(name: frozenset[str], mode: frozenset[str]) -> bool:
        return _weigh(match.failure, match.signature, replace(hints, strategies=name, modes=mode)).sure == LIKELY

    still = [[open_with(name, mode) for mode in modes] for name in named]
    settles = {
        "--strategy": any(first and not all(others) for first, *others in zip(*still, strict=True)),
        "--checkpointing": any(first and not all(others) for first, *others in still),
    }
    return [option for option, does in settles.items() if does]


def _later(failure: Failure, signature: str, finding: str, hints: Hints) -> Match:
    """How sure the words of a process are that loads what a run left: what is known of it says nothing of that run."""
    context = failure.context.get(signature)
    if context and not re.search(context, hints.context):
        return Match(failure, finding, against=SHARED, later=True)
    return Match(failure, finding, LIKELY, where=known.places(failure, finding), later=True)


@functools.cache
def _modes(failure: Failure, signature: str) -> frozenset[str]:
    """The checkpointing modes that variants which end with these words were run in, whatever they did there."""
    told = {cell: {signature} & {signed} for cell, (_, signed) in known.outcomes(failure).items()}
    told |= {
        Cell.parse(name): {f"raises {signature}"} & {*did}
        for name, did in known.over_time().cells.items()
        if name.startswith(f"{failure.name}/")
    }
    shown = {cell.variant for cell in told if told[cell]}
    shown |= {
        Cell.parse(name).variant
        for entry in known.recorded()
        if (entry["failure"], entry["signature"]) == (failure.name, signature)
        for names in entry["stacks"].values()
        for name in names
    }
    run = {cell.checkpointing for cell in told if cell.variant in shown}
    return frozenset(run | {mode for _, mode in known.places(failure, signature)})


def mechanism(failure: Failure, signature: str) -> Mechanism | None:
    """What happens to any model with a signature's words, where that is known: the failure's own, or another's."""
    owner, _, name = failure.shares.get(signature, f"{failure.name}/{signature}").partition("/")
    return failures()[owner].mechanism.get(name)


def _several(names: Iterable[str], order: Sequence[str]) -> str:
    return " or ".join(sorted(names, key=order.index))


def happens(match: Match) -> list[str]:
    """Where the failure ends with these words on today's stack; in other words, if that is so where the log is from."""
    told = known.outcomes(match.failure)
    cells = [cell for cell in told if cell.broken]
    same = [cell for cell in cells if told[cell][1] == match.signature]
    found = report.places(same, cells)
    if match.where.isdisjoint((cell.strategy, cell.checkpointing) for cell in same):
        shown = known.outcomes(match.failure, known.shown_on(match.failure))
        others: dict[str, list[Cell]] = {}
        for cell in known.in_other_words(match.failure, match.signature, match.where, shown):
            if cell.broken:
                others.setdefault(report.named(*told[cell]), []).append(cell)
        found += [f"as {name} under {place}" for name, own in others.items() for place in report.places(own, cells)]
    return found


def commands(match: Match) -> list[str]:
    """What reproduces the failure: in the place that is known of the run, and as it was reported."""
    cell, date = known.cell_for(match.failure, match.signature, match.where)
    own = [report.command(cell.id, date)] if cell else []
    return own + ([f"make reproduce FAILURE={match.failure.name}"] if match.failure.reported else [])
