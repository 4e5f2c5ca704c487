"""The verb: reads logs, prints the answer, and returns whether a failure is named."""

import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.console import printed
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import NEEDED
from faultline.base.text import STDIN, matches, plain
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, check
from faultline.diagnose import lines, messages, signs, view
from faultline.diagnose.diagnosis import NOT_THERE, Details, Diagnosis, details, diagnose
from faultline.diagnose.events import Event
from faultline.diagnose.prose import NearMatch, only_with
from faultline.diagnose.silent import WarningLine
from faultline.observations import ambiguity, measured, remedies
from faultline.observations.matching import Hints, Match
from faultline.stacks import requests

NOT_NAMED: dict[str, object] = dict.fromkeys(
    ("failure", "sure", "signature", "title", "mechanism", "fixed", "measured"), ""
)
NO_LISTS: dict[str, object] = dict.fromkeys(("claims", "happens", "reproduce", "records"), ())
GIVEN = "the given text"  # in the place of a file's name
_NAMED = re.compile(r"[/\\]|\.[A-Za-z]\w{0,7}$")  # a path, or a file's extension
_CHINESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")  # which is written without blanks
_SEEN = re.compile(r"\b(nan|inf|loss(es)?|gradients?|weights?|ranks?|hangs?|hanging|stuck|freezes?|diverges?)\b", re.I)


@dataclass(frozen=True, repr=False)
class DiagnoseResult:
    """The failure that a log shows, or that it shows none which the catalogue has.

    `str` is the answer of `faultline diagnose`, as it is written to a file.

    - `diagnosis`: what was decided: its `match`, or the `several` that it may be, the `cause` in the log, what is known
      of the run (`hints`), ...
    - `details`: what recorded runs know of it: what helps, where it happens, how to repeat it
    """

    diagnosis: Diagnosis
    details: Details

    @property
    def answer(self) -> str:
        """``named``, ``one of several`` or ``not in the catalogue``."""
        return self.diagnosis.answer

    @property
    def failure(self) -> str:
        """The name of the failure; empty if none is named."""
        return self.diagnosis.failure

    @property
    def sure(self) -> str:
        """``certain`` or ``likely``; empty if no failure is named."""
        return self.diagnosis.match.sure if self.diagnosis.match else ""

    def as_json(self) -> dict[str, object]:
        """The answer of ``--json``; docs/diagnose.md has the keys."""
        diagnosis, details = self.diagnosis, self.details
        match, cause, hints, near = diagnosis.match, diagnosis.cause, diagnosis.hints, details.near
        unnamed = NOT_NAMED | NO_LISTS | _together(diagnosis, details)
        return {
            "answer": diagnosis.answer,
            **(_failure_keys(match, details) if match else unnamed),
            "several": [_possible(each) for each in diagnosis.several],
            "candidates": [_candidate(each) for each in diagnosis.by_words],
            "error": cause.text if cause else "",
            "search": diagnosis.search,
            "cause": _event_keys(cause) if cause else None,
            "followed": [_event_keys(event) for event in diagnosis.events.events if event is not cause],
            "silence": vars(diagnosis.silence) if diagnosis.silence else None,
            "same_losses": vars(diagnosis.same) if diagnosis.same else None,
            "warned": [_warned(warned) for warned in diagnosis.warned],
            "alike": [
                {"failure": m.failure.name, "signature": m.signature, "against": m.against} for m in diagnosis.alike
            ],
            "seen": [{"cell": cell.id, "stack": measured.releases(row)} for cell, row in details.seen],
            "strategies": sorted(hints.strategies, key=strategies.names().index),
            "checkpointing": sorted(hints.modes, key=CHECKPOINTING.index),
            "versions": hints.versions,
            "then": {"date": near[0].name, "versions": dict(near[0].versions), "outcomes": near[1]} if near else {},
        }

    def show(self, console: Console) -> None:
        view.show(console, self.diagnosis, self.details)

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        return f"DiagnoseResult({self.failure or self.answer!r}, sure={self.sure!r})"


def _failure_keys(match: Match, details: Details) -> Mapping[str, object]:
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


def _together(diagnosis: Diagnosis, details: Details) -> dict[str, object]:
    """The keys of several failures together: their mechanism, if they share one, and what helps against each."""
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


def _candidate(candidate: NearMatch) -> Mapping[str, object]:
    failure, cell = candidate.failure, candidate.cell
    return {
        "failure": failure.name,
        "title": failure.title,
        "nearness": round(candidate.nearness, 2),
        "words": candidate.words,
        "symptom": candidate.symptom.text,
        "distinguished_by": only_with(failure),
        "remedy": candidate.remedy,
        "shown_by": cell.id if cell else "",
    }


def _warned(warned: WarningLine) -> Mapping[str, object]:
    return {key: value for key, value in vars(warned).items() if key != "strategies"}


def _event_keys(event: Event) -> Mapping[str, object]:
    return {
        "kind": event.kind,
        "error": event.text,
        "file": event.file,
        "line": event.number,
        "named_in_line": event.last,
        "rank": event.rank,
        "follows": event.follows,
    }


@dataclass(frozen=True)
class DiagnoseRequest:
    """The logs to read (none: standard input), or the `text` of one, what is known of their run, and whether the answer
    is JSON."""

    logs: tuple[str, ...] = ()
    strategy: str = ""
    checkpointing: str = ""
    stack: str = ""
    json: bool = False
    text: str = ""


def run(request: DiagnoseRequest) -> int:
    """Print the answer to a log: exit code 0 if it is a failure of the catalogue, or one of several, and 1 if not.

    Raises UsageError where there is no log.
    """
    if not request.logs and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no log given: `faultline diagnose train.log`, or `cat train.log | faultline diagnose`")
    if any(not word.strip() and not os.path.exists(word) for word in request.logs):
        raise UsageError(f"{GIVEN} is empty")
    result = answer(replace(request, text=pasted(request.logs)))
    if request.json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        result.show(Console())
    return EXIT_UNEXPECTED if result.diagnosis.answer == NOT_THERE else EXIT_AS_EXPECTED


def answer(request: DiagnoseRequest) -> DiagnoseResult:
    """Read logs to their end; raises UsageError for one that can't be read, for empty ones, and for unknown names."""
    logs = request.logs or (STDIN,)
    options = hints(request)
    binary: list[str] = []
    if request.text:
        logs, content = (GIVEN,), io.BytesIO(request.text.encode("utf-8", "replace"))
        diagnosis = diagnose(lambda wanted: lines.lines(GIVEN, content, wanted, binary), options)
    else:
        diagnosis = diagnose(lambda wanted: lines.read(logs, wanted, binary), options)
    if diagnosis.empty:
        names = ["standard input" if name == STDIN else plain(name) for name in logs]
        raise UsageError(f"{' and '.join(names)} {'is' if len(logs) == 1 else 'are'} empty")
    if binary and not diagnosis.cause:
        raise UsageError(f"{plain(binary[0])} is not text; unpack it, if it is packed with anything but gzip")
    return DiagnoseResult(diagnosis, details(diagnosis))


def pasted(words: Sequence[str]) -> str:
    """The text that was given in place of files, else nothing.

    No word of it is a file, and it has blanks and an error's type with a colon, which no mistyped name has, the
    words of an error that the catalogue has, or those of a sentence.
    """
    text = " ".join(words)
    if any(os.path.exists(word) for word in words):
        return ""
    if " " not in text.strip():
        return text if _CHINESE.search(text) and _sentence([text]) else ""
    shown = (
        signs.TRACEBACK in text or any(map(signs.error_within, text.splitlines())) or messages.typed(text) is not None
    )
    return text if shown or _sentence(words) else ""


def _sentence(words: Sequence[str]) -> bool:
    """Whether words are a sentence and no names of files: several in one argument, or many arguments without a path."""
    apart = len(words) > 1 and any(map(_NAMED.search, words))
    text = " ".join(words)
    symptom = len(words) == 1 and len(text.split()) == 2 and _SEEN.search(text)  # "NaN loss", and not "my log"
    long = len(text.split()) >= 3 or symptom or _CHINESE.search(text)
    return bool(long) and not apart and not _NAMED.search(words[-1].strip())


def hints(request: DiagnoseRequest) -> Hints:
    """The hints that the options give; raises UsageError for unknown names."""
    selection = Selection.parse(strategy=request.strategy, checkpointing=request.checkpointing)
    check(failures(), selection)
    return Hints(
        frozenset(name for name in strategies.names() if matches(name, selection.strategy)),
        frozenset(mode for mode in CHECKPOINTING if matches(mode, selection.checkpointing)),
        _versions(request.stack),
    )


def _versions(stack: str) -> dict[str, str]:
    """The versions that a stack names: a file of stacks/, a month of the timeline, or requirements with ==."""
    if not stack:
        return {}
    dated = {each.month: each.versions for each in measured.months()}
    if stack in dated:
        return dict(dated[stack])
    asked = requests.parse(stack)
    if asked.asof and len(asked.requirements) == len(NEEDED) and stack not in requests.named():
        raise UsageError(f"nothing was measured as of {stack}; there is {', '.join(dated)}")
    if asked.here:
        return measured.pinned()
    pins = {pin[1]: pin[2] for word in asked.requirements if (pin := re.fullmatch(r"([\w.-]+)==([\w.+!]+)", word))}
    if not pins:
        raise UsageError(f"{stack!r} names no version; write trl==0.15.2, for example")
    return pins
