"""The traces of a run in its log: the strategy, the checkpointing mode, the versions."""

import functools
import re
from collections.abc import Iterable, Sequence

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.text import matches
from faultline.catalogue.loading import failures
from faultline.diagnose.lines import Line
from faultline.diagnose.signs import TRIED, needed
from faultline.observations.matching import Hints
from faultline.strategies.naming import asked_for, messages, requests, traces, within

MOST = 400  # lines that are remembered for what they show
ENOUGH = 20_000  # lines that are searched for versions

# The pattern of a line, and the checkpointing modes that it leaves.
MODES = (
    (re.compile(r"use_reentrant['\"]?[=: ]{1,3}True|requires_grad=True\. Gradients will be None"), ("reentrant",)),
    (re.compile(r"use_reentrant['\"]?[=: ]{1,3}False"), ("non-reentrant",)),
    (re.compile(r"checkpoint(?:ing)?\.py\", line \d{1,6}, in backward"), ("reentrant",)),
    (
        re.compile(r"checkpoint\.py\", line \d{1,6}, in (?:unpack_hook|recompute_fn|check_recomputed)"),
        ("non-reentrant",),
    ),
    (re.compile(r"gradient_checkpointing['\"]?[=: ]{1,3}False"), ("off",)),
    (
        re.compile(
            r"gradient_checkpointing['\"]?[=: ]{1,3}True|incompatible with gradient checkpointing|"
            r"gradient_checkpointing_enable|torch\.utils\.checkpoint|utils/checkpoint\.py|--gradient_checkpointing"
        ),
        ("reentrant", "non-reentrant"),
    ),
)
_NAME = re.compile(
    r"\b(?:[Pp]y)?([Tt]orch|[Tt]ransformers|trl|TRL|[Pp]eft|PEFT|[Aa]ccelerate|[Dd]eep[Ss]peed|DEEPSPEED)\b(?!/)"
)
_VERSION = re.compile(
    r"(?:_version)?[`'\"\])]{0,2}(?: info| version)?[ .=:@\"'v]{1,60}(?:version=)?(\d{1,3}\.\d{1,3}(?:\.\w{1,8}){0,3})"
)


@functools.cache
def _words() -> str:
    """The pattern of the words that a line has which may show something of the run."""
    return needed((*patterns(), _NAME.pattern))


@functools.cache
def _of_run() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The pattern of lines that may show something of the run, behind that of their words, which is faster."""
    return re.compile(_words()), re.compile("|".join(patterns()))


def patterns() -> tuple[str, ...]:
    """The patterns by which strategies, modes and failures are known. What spans lines is about an error's own
    traceback."""
    tables = [table for f in failures().values() for table in (f.recognition.error, f.recognition.mechanism)]
    conditions = [condition for table in tables for each in table.values() for condition in each.any_of]
    errors = [error for f in failures().values() for error in f.recognition.error.values()]
    conditions += [each for error in errors for each in error.may_be]
    recognised = {pattern for condition in conditions for pattern in (*condition.present, *condition.absent)}
    named = (pattern.pattern for pattern, _ in (*messages(), *requests(), *MODES))
    return (
        *named,
        *sorted({term for error in errors for term in error.terms}),
        r"DistributedDataParallel\(",
        *sorted(each for each in recognised if r"\n" not in each),
    )


class Collector:
    """Collects the lines of a log that show something of its run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.versions: dict[str, str] = {}
        self._left = ENOUGH

    @property
    def words(self) -> str:
        """The pattern of the lines that can still add anything."""
        return _words() if self._left > 0 else ""

    def take(self, line: Line) -> None:
        text = line.text[:2000]
        usual, of_run = _of_run()
        if self._left <= 0 or not usual.search(text):
            return
        self._left -= 1
        if len(self.lines) < MOST and of_run.search(text):
            self.lines.append(text[:500])
        for name in _NAME.finditer(text):
            if version := _VERSION.match(text, name.end(), name.end() + 130):
                self.versions[name[1].lower()] = version[1]

    def hints(self, error: str) -> Hints:
        """The strategy, mode and versions that lines and an error with its traceback show; a traceback outranks
        settings."""
        traceback = error.splitlines()
        # Frames and messages show what ran; settings show what was asked for, which need not be what ran.
        ran = _first_match(traces(), traceback) or _first_match(messages(), self.lines)
        asked = asked_for(self.lines)
        if not ran or (asked and within(asked, ran)):
            ran = asked
        ran_with, stated = ([TRIED.sub("", text) for text in texts] for texts in (traceback, self.lines))
        modes = _first_match(MODES, ran_with) or _first_match(MODES, stated)
        names = frozenset(name for name in strategies.names() if ran and matches(name, ran))
        context = "\n".join((*traceback, *self.lines))
        return Hints(names, frozenset(mode for mode in CHECKPOINTING if mode in modes), self.versions, context)


def _first_match(table: Iterable[tuple[re.Pattern[str], tuple[str, ...]]], texts: Sequence[str]) -> tuple[str, ...]:
    """The names of the first pattern of a table that any of the texts has; none if there is none."""
    for pattern, names in table:
        if any(pattern.search(text) for text in texts):
            return names
    return ()
