"""What a log shows of its run: the strategy, the checkpointing mode, the versions."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from faultline import strategies
from faultline.base.text import matches
from faultline.cells.cell import CHECKPOINTING
from faultline.diagnose.lines import Line
from faultline.diagnose.words import patterns, texts
from faultline.observations.matching import Hints
from faultline.strategies.naming import asked_for, table, within, words

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
_USUAL = (
    "Checkpoint|checkpoint|reentrant|requires_grad|torch|Torch|transformers|Transformers|"
    "trl|TRL|accelerate|Accelerate|peft|PEFT|Peft"
)
_NAME = re.compile(r"\b(py)?(torch|transformers|trl|peft|accelerate|deepspeed)\b(?!/)", re.IGNORECASE)
_VERSION = re.compile(
    r"(?:_version)?[`'\"\])]{0,2}(?: info| version)?[ .=:@\"'v]{1,60}(?:version=)?(\d{1,3}\.\d{1,3}(?:\.\w{1,8}){0,3})"
)


@functools.cache
def settings() -> bytes:
    """The pattern of what a line of interest has, in any of the usual spellings.

    Each alternative begins with a letter, which is what makes the search fast: so does every pattern here that is
    looked for in whole logs.
    """
    return "|".join((_USUAL, *words(), *texts())).encode()


@functools.cache
def _settings() -> re.Pattern[str]:
    return re.compile(settings().decode())


@functools.cache
def _line() -> re.Pattern[str]:
    """The pattern of lines that may show something of the run."""
    named = (pattern.pattern for pattern, _ in (*table("MESSAGES", "SETTINGS", "ENGINE"), *MODES))
    return re.compile("|".join((*named, r"DistributedDataParallel\(", *patterns())))


class Collector:
    """Collects the lines of a log that show something of its run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.versions: dict[str, str] = {}
        self._left = ENOUGH

    @property
    def full(self) -> bool:
        """Whether no line can add anything any more."""
        return self._left <= 0

    def take(self, line: Line) -> None:
        text = line.text[:2000]
        if self.full or not _settings().search(text):
            return
        self._left -= 1
        if len(self.lines) < MOST and _line().search(text):
            self.lines.append(text[:500])
        for name in _NAME.finditer(text):
            if version := _VERSION.match(text, name.end(), name.end() + 130):
                self.versions[name[2].lower()] = version[1]

    def hints(self, error: str) -> Hints:
        """What the lines and an error's text with its traceback show of the run; a traceback outranks settings."""
        traceback = error.splitlines()
        # Frames and messages show what ran; settings show what was asked for, which need not be what ran.
        ran = _first(table("MESSAGES", "FRAMES"), traceback) or _first(table("MESSAGES"), self.lines)
        asked = asked_for(self.lines)
        if not ran or (asked and within(asked, ran)):
            ran = asked
        modes = _first(MODES, traceback) or _first(MODES, self.lines)
        names = frozenset(name for name in strategies.names() if ran and matches(name, ran))
        context = "\n".join((*traceback, *self.lines))
        return Hints(names, frozenset(mode for mode in CHECKPOINTING if mode in modes), self.versions, context)


def _first(table: Iterable[tuple[re.Pattern[str], tuple[str, ...]]], texts: Sequence[str]) -> tuple[str, ...]:
    """The names of the first pattern of a table that any of the texts has; none if there is none."""
    for pattern, names in table:
        if any(pattern.search(text) for text in texts):
            return names
    return ()
