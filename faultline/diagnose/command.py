"""The verb: reads logs, prints the answer, and returns whether a failure is named."""

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline import strategies
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import NEEDED
from faultline.base.text import STDIN, matches, plain
from faultline.catalogue.loading import failures
from faultline.cells.cell import CHECKPOINTING
from faultline.cells.selection import Selection, check
from faultline.diagnose import alone, lines, signs
from faultline.diagnose.details import details
from faultline.diagnose.diagnosis import NOT_THERE, diagnose
from faultline.diagnose.result import DiagnoseResult
from faultline.observations import measured
from faultline.observations.matching import Hints
from faultline.stacks import requests

GIVEN = "the given text"  # in the place of a file's name
_NAMED = re.compile(r"[/\\]|\.[A-Za-z]\w{0,7}$")  # a path, or a file's extension
_CHINESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")  # which is written without blanks


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
    shown = signs.TRACEBACK in text or any(map(signs.error_within, text.splitlines())) or alone.typed(text) is not None
    return text if shown or _sentence(words) else ""


def _sentence(words: Sequence[str]) -> bool:
    """Whether words are a sentence and no names of files: several in one argument, or many arguments without a path."""
    apart = len(words) > 1 and any(map(_NAMED.search, words))
    text = " ".join(words)
    long = len(text.split()) >= 3 or _CHINESE.search(text)
    return bool(long) and not apart and not _NAMED.search(words[-1].strip())


def hints(request: DiagnoseRequest) -> Hints:
    """What the options say of the run; raises UsageError for unknown names."""
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
