"""What recorded runs know of an answer: what helps, where it happens, how to repeat it, and who else saw the error."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from faultline.catalogue import REMEDIES
from faultline.cells.cell import Cell
from faultline.diagnose.diagnosis import Diagnosis
from faultline.observations import ambiguity, history, matching, measured, remedies
from faultline.observations.matching import LIKELY, Hints, Match, Support
from faultline.observations.remedies import Fate
from faultline.observations.store import MeasuredStack, Row


@dataclass(frozen=True)
class Details:
    """What is known beside a failure, or where none is named.

    reason    why a failure is no more than likely
    fates     remedies and what became of them
    each      of several failures, the first remedy that is verified and the first that helps in places, beside those
              that help against all, with the failure's name
    happens   where the failure ends with this error today
    near      the measured stack that is nearest to the log's versions, and how many cells had which outcome there
    commands  that reproduce the failure; `export` is the cell that shows it today
    seen      recorded runs that ended with the error, of a failure that is named or one of several
    """

    reason: str = ""
    fates: Sequence[Fate] = ()
    each: Sequence[tuple[str, Fate]] = ()
    happens: Sequence[str] = ()
    near: tuple[MeasuredStack, Mapping[str, int]] | None = None
    commands: Sequence[str] = ()
    export: Cell | None = None
    seen: Sequence[tuple[Cell, Row]] = ()


def details(diagnosis: Diagnosis) -> Details:
    """What is known of an answer."""
    match, cause, hints = diagnosis.match, diagnosis.cause, diagnosis.hints
    if not match or not cause:
        names = {each.failure.name for each in diagnosis.several}
        seen = (
            [run for run in measured.runs_with_error(cause.text) if run[0].failure in names] if cause and names else []
        )
        fates = ambiguity.helps_all(diagnosis.several) if names else ()
        return Details(fates=fates, seen=seen, each=_each(diagnosis.several, {fate.claim.text for fate in fates}))
    fates = remedies.fates(match.failure, match.signature, match.where, hints.versions)
    cell, date = measured.cell_for(match.failure, match.signature, match.where)
    near = history.nearest_stack(match.failure, hints.versions)
    return Details(
        reason=_why_likely(match, hints) if match.sure == LIKELY else "",
        fates=matching.worded(fates, match.mechanism),
        happens=matching.happens(match),
        near=(near[0], history.count_outcomes(near[1], match.where)) if near else None,
        commands=matching.commands(match),
        export=None if date else cell,
        seen=measured.runs_with_error(cause.text),
    )


def _each(several: Sequence[Match], besides: Collection[str]) -> list[tuple[str, Fate]]:
    chosen = []
    for match in several:
        every = remedies.fates(match.failure, match.signature, match.where)
        fates = [fate for fate in every if fate.claim.kind in REMEDIES and fate.claim.text not in besides]
        for word in ("verified", "conditional"):
            chosen += [(match.failure.name, fate) for fate in fates if fate.word == word][:1]
    return chosen


def _why_likely(match: Match, hints: Hints) -> str:
    """Why an answer is no more than likely, and the option that would decide it."""
    if match.mechanism:
        return "the error shows the mechanism; the log doesn't show whether it is this failure's model"
    if match.only_if:
        return f"if {match.only_if}, which this log doesn't show"
    if match.later:
        return "such a run left the checkpoint that is loaded here; this log doesn't show that run's strategy"
    if history.disappeared(match.failure, match.signature, match.where, hints.versions):
        return "our runs ended with this error, but none with your versions or the nearest that were measured"
    if matching.support(match.failure, match.signature, hints) is Support.OPTIONS:
        return "only your options point to this failure: other mistakes raise this error too"
    if hints.modes and hints.modes.isdisjoint(mode for _, mode in match.where):
        return "nothing excludes it; it was measured in another checkpointing mode, and the mode plays no part here"
    options = " and ".join(matching.settling(match, hints)) if match.where else ""
    return f"nothing excludes it; add {options} to decide it" if options else "nothing excludes it"
