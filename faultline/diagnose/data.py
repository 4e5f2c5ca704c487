"""The answer to a log as JSON; docs/diagnose.md has the table of its keys."""

from collections.abc import Mapping

from faultline import strategies
from faultline.cells.cell import CHECKPOINTING
from faultline.diagnose.details import Details
from faultline.diagnose.diagnosis import Diagnosis
from faultline.diagnose.events import Event
from faultline.diagnose.silent import Warned
from faultline.observations import ambiguity, measured, remedies
from faultline.observations.matching import Match

NOT_NAMED = dict.fromkeys(("failure", "sure", "signature", "title", "mechanism", "fixed", "measured"), "")
NO_LISTS = dict.fromkeys(("claims", "happens", "reproduce", "records"), ())


def as_json(diagnosis: Diagnosis, details: Details) -> dict[str, object]:
    match, cause, hints, near = diagnosis.match, diagnosis.cause, diagnosis.hints, details.near
    return {
        "answer": diagnosis.answer,
        **(_failure(match, details) if match else {**NOT_NAMED, **NO_LISTS, **_together(diagnosis, details)}),
        "several": [_possible(each) for each in diagnosis.several],
        "error": cause.text if cause else "",
        "search": diagnosis.search,
        "cause": _event(cause) if cause else None,
        "followed": [_event(event) for event in diagnosis.events.events if event is not cause],
        "silence": vars(diagnosis.silence) if diagnosis.silence else None,
        "same_losses": vars(diagnosis.same) if diagnosis.same else None,
        "warned": [_warned(warned) for warned in diagnosis.warned],
        "alike": [{"failure": m.failure.name, "signature": m.signature, "against": m.against} for m in diagnosis.alike],
        "seen": [{"cell": cell.id, "stack": measured.releases(row)} for cell, row in details.seen],
        "strategies": sorted(hints.strategies, key=strategies.names().index),
        "checkpointing": sorted(hints.modes, key=CHECKPOINTING.index),
        "versions": hints.versions,
        "then": {"date": near[0].name, "versions": dict(near[0].versions), "outcomes": near[1]} if near else {},
    }


def _failure(match: Match, details: Details) -> Mapping[str, object]:
    """The keys of the failure that is named: what it is, what helps, where it happens."""
    failure = match.failure
    return {
        "failure": failure.name,
        "sure": match.sure,
        "signature": match.signature,
        "title": failure.title,
        "mechanism": match.mechanism,
        "claims": [remedies.as_json(fate) for fate in details.fates],
        "measured": details.fates[0].scope if details.fates else "",
        "happens": details.happens,
        "fixed": failure.until,
        "reproduce": details.commands,
        "records": failure.records,
    }


def _together(diagnosis: Diagnosis, details: Details) -> Mapping[str, object]:
    """What is known of several failures together: their mechanism, if they share one, and what helps against each."""
    claims = [remedies.as_json(fate) for fate in details.fates]
    return {"mechanism": next((each.mechanism for each in diagnosis.several), ""), "claims": claims}


def _possible(match: Match) -> Mapping[str, object]:
    return {
        "failure": match.failure.name,
        "signature": match.signature,
        "distinguished_by": match.distinguished_by,
        "runs": ambiguity.runs(match),
        "upgrade": [release for _, release, _ in ambiguity.upgrades(match)],
    }


def _warned(warned: Warned) -> Mapping[str, object]:
    return {key: value for key, value in vars(warned).items() if key != "strategies"}


def _event(event: Event) -> Mapping[str, object]:
    return {
        "kind": event.kind,
        "error": event.text,
        "file": event.file,
        "line": event.number,
        "named_in_line": event.last,
        "rank": event.rank,
        "follows": event.follows,
    }
