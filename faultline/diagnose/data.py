"""The answer to a log as JSON; docs/diagnose.md has the table of its keys."""

from collections.abc import Mapping

from faultline import strategies
from faultline.cells.cell import CHECKPOINTING
from faultline.diagnose.diagnosis import Diagnosis
from faultline.diagnose.events import Event
from faultline.diagnose.silent import silent_failures
from faultline.observations import measured, remedies
from faultline.observations.matching import Match, commands, happens, worded

NOT_NAMED = dict.fromkeys(("sure", "signature", "title", "mechanism", "fixed", "measured"), "")
NO_LISTS = dict.fromkeys(("claims", "happens", "reproduce", "records"), ())


def as_json(diagnosis: Diagnosis) -> dict[str, object]:
    match, cause, hints, silence = diagnosis.match, diagnosis.cause, diagnosis.hints, diagnosis.silence
    either = (match, *diagnosis.either) if match and diagnosis.either else ()
    seen, near = measured.seen(cause.text) if cause else (), diagnosis.near
    return {
        "answer": diagnosis.answer,
        **(_failure(match, hints.versions) if match else {**NOT_NAMED, **NO_LISTS}),
        "either": [{"failure": m.failure.name, "distinguished_by": m.distinguished_by} for m in either],
        "error": cause.text if cause else "",
        "search": diagnosis.search,
        "cause": _event(cause) if cause else None,
        "followed": [_event(event) for event in diagnosis.events.events if event is not cause],
        "silence": vars(silence) | {"failures": silent_failures(silence, hints)} if silence else None,
        "warned": [vars(warned) for warned in diagnosis.warned],
        "alike": [{"failure": m.failure.name, "signature": m.signature, "against": m.against} for m in diagnosis.alike],
        "seen": [{"cell": cell.id, "stack": measured.releases(row)} for cell, row in seen],
        "strategies": sorted(hints.strategies, key=strategies.names().index),
        "checkpointing": sorted(hints.modes, key=CHECKPOINTING.index),
        "versions": hints.versions,
        "then": {"date": near[0].name, "versions": dict(near[0].versions), "outcomes": near[1]} if near else {},
    }


def _failure(match: Match, versions: Mapping[str, str]) -> Mapping[str, object]:
    """The keys of the failure that is named: what it is, what helps, where it happens."""
    failure = match.failure
    fates, scope = remedies.fates(failure, match.signature, match.where, versions)
    return {
        "sure": match.sure,
        "signature": match.signature,
        "title": failure.title,
        "mechanism": match.mechanism,
        "claims": [remedies.as_json(fate) for fate in worded(fates, match.mechanism)],
        "measured": scope,
        "happens": happens(match),
        "fixed": failure.until,
        "reproduce": commands(match),
        "records": failure.records,
    }


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
