"""The signs in one line of a log: an error, a signal, a rank, a time; and the words by which such lines are found."""

import datetime
import re
from collections.abc import Iterable

from faultline.base.traces import signal_name

SHORTEST = 3  # letters of a text that is rare enough to search for
GROUP, SIGN = 0xE000, 0xF000  # the first of the characters that stand for groups, and for signs with a backslash

_CLASS = r"\[\^?\]?[^]]*\]"
_EITHER = r"\[\w\w\]"  # most often a letter in both cases
_MAY_LACK = r"(?:[?*]|\{0[\d,]*\})"
# What leaves the text open: what may be missing (but for one letter), a class, ``\d`` and the like, a count.
_OPEN = re.compile(rf"(?:{_CLASS}|\\.){_MAY_LACK}|[^()|](?!\?){_MAY_LACK}|(?!{_EITHER}){_CLASS}|\\.|\{{[\d,]*\}}")
_GROUP = re.compile(rf"\((\?:|\?P<\w+>|\?<?[=!]|)([^()]*)\)({_MAY_LACK}?)")
_TEXT = re.compile(rf"(?:{_EITHER}|\w(?!\?))(?:{_EITHER}|[\w ,/\"'=:`\uf000-\uf0ff-]\??)*")
_LETTER = re.compile(rf"(?:{_EITHER}|\w)(?!\?)")


def needed(patterns: Iterable[str]) -> str:
    """The pattern of words: every line that one of the patterns matches has one of them."""
    return "|".join(sorted({word for pattern in patterns for word in _words(pattern)}))


def _words(pattern: str) -> list[str]:
    """The longest text of each alternative of a pattern; the pattern itself if one has none."""
    groups: list[str] = []

    def set_aside(group: re.Match[str]) -> str:
        kind, inside, may_lack = group.groups()
        groups.append("" if may_lack or kind.endswith(("=", "!")) else inside)
        return chr(GROUP + len(groups) - 1)

    def texts(part: str) -> list[str]:
        """The longest text outside of groups, else those of the first group that has one in each alternative."""
        every: list[str] = []
        for alternative in part.split("|"):
            longest = max(_TEXT.findall(alternative), key=_letters, default="")
            inside = (texts(groups[ord(sign) - GROUP]) for sign in alternative if GROUP <= ord(sign) < SIGN)
            every += [longest] if _letters(longest) >= SHORTEST else next(filter(all, inside), [""])
        return every

    text = _OPEN.sub("\0", re.sub(r"\\(\W)", lambda sign: chr(SIGN + ord(sign[1])), pattern))
    while _GROUP.search(text):
        text = _GROUP.sub(set_aside, text)
    words = [word for text in texts(text) for word in _spelled(text)]
    return words if all(words) else [pattern]


def _spelled(text: str) -> list[str]:
    """A text as a pattern that begins with a letter, which is what makes a search fast; two if there are two."""
    pattern = re.sub("[\uf000-\uf0ff]", lambda sign: re.escape(chr(ord(sign[0]) - SIGN)), text)
    return [first + pattern[4:] for first in pattern[1:3]] if pattern.startswith("[") else [pattern]


def _letters(text: str) -> int:
    return len(_LETTER.findall(text))


LONGEST = 1000  # characters of a line that are read

TRACEBACK = "Traceback (most recent call last)"
PROGRESS = re.compile(r"'loss': |\"loss\": ")
WHAT = re.compile(r"what\(\): *(.*)")
THROWN = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
FRAME = re.compile(r' *File "[^"]{1,400}", line \d{1,6}')
RAISED_IN = re.compile(r"^ *(?:During handling of the above exception|The above exception was the direct cause)")
SUMMARY = re.compile(r"(?P<key>time|rank) +: (?P<value>[\w:.+-]{1,40})")
WATCHDOG = re.compile(r"[Ww]atchdog caught")
ROOT = "Root Cause"
# What a page puts behind an error's line when it is copied: tags, and the heads of an issue's form.
_HEADS = "System Info|Environment|Reproduction|Expected [Bb]ehavior|Who can help|Additional context|To Reproduce"
FURNITURE = re.compile(
    r"(?<![a-z]>)(?<!\s)(?:\s*</?[a-z]{1,10}>)++\s*\Z|"  # from the first of them: from each, it would take for ever
    rf"(?<=[^\s#])(?:#{{1,6}} ?)?(?:{_HEADS})(?=[^a-z\s]|[A-Z]|\Z)[^\n]*"
)
_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*")
_NAMED_LIKE_ERRORS = ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Failed", "Timeout", "Warning")
_LEVELS = ("DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL")
_CODE = re.compile(r"exit ?code *(?:[:=] *)?-(\d{1,2})\b|return code *= *-(\d{1,2})\b|\b[Ss]ignal (\d{1,2}) \(SIG")
_SIGNAL = re.compile(r"Signals\.(SIG[A-Z]{2,6})|closing signal (SIG[A-Z]{2,6})|^Received (SIG[A-Z]{2,6})")
_SHELL = re.compile(r"(?:^|\d |python3? ?)(Killed|Aborted|Segmentation fault|Bus error)(?:\s|$)")
_SHELL_SIGNALS = {"Killed": "SIGKILL", "Aborted": "SIGABRT", "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS"}
_OUT_OF_MEMORY = re.compile(r"Out of memory: Kill|oom[-_]kill|OOMKilled")
_FATAL = re.compile(r"Fatal Python error: (.*)")
# What nearly all lines of a log lack, and with it anything of an error; in JSON a colour may be within a word.
ERRORS = needed(
    [
        *(re.escape(TRACEBACK), ROOT, "Error", "Exception", r"\\u001b"),
        *("time :", "time  ", "rank :", "rank  "),  # SUMMARY, whose words alone are in many lines
        *(each.pattern for each in (WHAT, THROWN, FRAME, RAISED_IN, WATCHDOG)),
        *(each.pattern for each in (_CODE, _SIGNAL, _SHELL, _OUT_OF_MEMORY, _FATAL)),
    ]
)
MATTERS = re.compile(f"{ERRORS}|{PROGRESS.pattern}")
_CODE_OF_SOURCE = re.compile(r"\b(?:except|raise) [\w.]*$")
# What somebody tried isn't what the log's run had.
TRIED = re.compile(r"\b(?:I|[Ww]e)(?:'ve| have)?(?: also| already)? tried\b(?:(?![.!?;] ).)*")
_LAST_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*$")
LABEL = re.compile(r"(?<![\w.])Error: (?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )")  # of a report's field
_RANK = re.compile(r"\b[Rr]ank[ =:](\d{1,5})\b")


def ended(text: str) -> str:
    """The signal that ended a process, as shells, kernels and launchers word it; empty where a line has none."""
    text = text[:LONGEST]
    if match := _SIGNAL.search(text):
        return match[1] or match[2] or match[3]
    if match := _CODE.search(text):
        return signal_name(int(match[1] or match[2] or match[3]))
    if match := _SHELL.search(text):
        return _SHELL_SIGNALS[match[1]]
    if match := _FATAL.search(text):
        return _SHELL_SIGNALS.get(match[1].strip(), "SIGABRT")
    return "SIGKILL" if _OUT_OF_MEMORY.search(text) else ""


def rank(text: str) -> int | None:
    """The rank that a message names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def moment(time: str) -> float | None:
    """The seconds of a time with its date; UTC is taken for what names no zone, and None for what has no date."""
    try:
        when = datetime.datetime.fromisoformat(time.strip(" []|:-").replace("/", "-").replace("_", "T"))
        return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def final(text: str, frames: bool) -> tuple[str, str] | None:
    """Type and message of the line that ends a traceback; without frames only a type that is named like errors."""
    kind, colon, message = text.partition(":")
    if len(kind) > 200 or not _TYPE.fullmatch(kind) or kind in _LEVELS or message[:1] not in ("", " "):
        return None
    if kind.endswith(_NAMED_LIKE_ERRORS) and not kind.endswith("Warning"):
        return kind, message.strip()
    progress_bar = re.match(r" +\d{1,3}%", message)
    if frames and colon and not progress_bar and kind.rpartition(".")[2][1:2].islower():
        return kind, message.strip()
    return None


def error_within(text: str) -> tuple[str, str] | None:
    """Type and message of an error in a line without a traceback: ``Type: message``, or as Python's repr."""
    text = LABEL.sub("", text[: 4 * LONGEST])
    if "Exception ignored in" in text:
        return None
    for word in ("Error:", "Exception:", "Error :", "Error('", 'Error("'):
        at = text.find(word)
        name = at + len(word.rstrip(" :('\""))
        before = text[max(0, name - 120) : name]
        if at < 0 or _CODE_OF_SOURCE.search(before):
            continue
        match, message = _LAST_NAME.search(before), text[at + len(word) :]
        if match and word[-1] in "'\"":
            return match[0], message.strip().removesuffix(")").rstrip("'\"")
        if match and message[:1] in ("", " "):
            return match[0], message.strip()
    return None
