"""Text made safe and short to show, and the names that somebody may have meant."""

import difflib
import fnmatch
import functools
import math
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from faultline.base.paths import INSTALLED, ROOT

MOST_SIMILAR = 5
CUTOFF = 0.55  # below it, difflib takes `nope` for `single`
FEW, OF_FEW = 4, 0.75  # letters, and the cutoff of names with no more: `seen` is no slip for `server`
SHORTEST, SHORT = 3, 7  # letters; torch and torchx are two names, where only letters that changed places are a slip
NO_ALIASES: Mapping[str, str] = MappingProxyType({})


@functools.lru_cache(100_000)  # a cell has few values on each axis, and is asked for each rule and claim
def matches(value: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


LINE = 120  # characters of a line of Python
STDIN = "-"
LONGEST = 1000  # characters of an error that is printed in one line

# Sequences that move a terminal's cursor or set its title; then what is left of them and of binary output,
# characters that XML forbids, and marks that show a text in another order than it has.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNDECODED = re.compile(r"[\ud800-\udfff]")
_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_FORBIDDEN = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def plain(text: object) -> str:
    """A text without escape sequences and characters that terminals or XML take for something else; a byte of a file's
    name that is no text is shown as one that can't be read."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    text = _UNDECODED.sub("\N{REPLACEMENT CHARACTER}", text)
    return _FORBIDDEN.sub("", _BREAKS.sub("\n", _ESCAPES.sub("", text)))


def one_line(text: object) -> str:
    return " ".join(plain(text).split())


def cut(text: object, most: int) -> str:
    """A text in one line of so many characters at most: whole words and an ellipsis where there is more of it. Only a
    word that is half of the line is cut itself."""
    line = one_line(text)
    if len(line) <= most:
        return line
    whole = line[:most].rpartition(" ")[0]
    return (whole if len(whole) >= most // 2 else line[: most - 1]) + "…"


def here(command: str) -> str:
    """A command of faultline as it can be typed in the current folder."""
    file = ROOT / "bin" / "faultline"
    if INSTALLED or Path(shutil.which("faultline") or "").resolve() == file:
        return command
    program = "bin/faultline" if Path.cwd() == ROOT else shlex.quote(str(file))
    return re.sub(r"\Afaultline\b", lambda _: program, command)


def listing(words: Sequence[str], joined: str = "and") -> str:
    """Words as a sentence has them: ``ddp, zero2 and fsdp2``."""
    *first, last = words
    return f"{', '.join(first)} {joined} {last}" if first else last


def percent(share: float | str) -> str:
    """A share of two significant digits: ``210 %``; what is not finite comes as its text."""
    if isinstance(share, str) or not math.isfinite(share):
        return str(share)
    return f"{float(f'{100 * share:.2g}'):.10g} %"


def short_link(url: str) -> str:
    """A link in a few characters: ``trl#2719``, or the address's host."""
    if issue := re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+).*", url):
        return f"{issue[1]}#{issue[2]}"
    return url.removeprefix("https://").partition("/")[0]


def count(number: int, noun: str) -> str:
    """A number of things: ``1 cell``, ``2 cells``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def statements(name: str, content: Mapping[str, object]) -> list[str]:
    """Statements that make a dictionary of that name, each with as many keys as fit on a line."""
    made: list[str] = []
    items: dict[str, object] = {}
    for key, value in content.items():
        if items and len(f"{name} |= { {**items, key: value} }") > LINE:
            made.append(f"{name} {'|' if made else ''}= {items}")
            items = {}
        items[key] = value
    return [*made, f"{name} {'|' if made else ''}= {items}"]


def similar_names(name: str, known: Sequence[str], aliases: Mapping[str, str] = NO_ALIASES) -> list[str]:
    """The known names that somebody may have meant, the likeliest first; none where nothing is like it.

    First what differs by case and punctuation only, then what the name is an alias of, then what begins with it, has it
    or is a part of it, then what it is but for a letter, then what is spelt alike. An alias has small letters and
    digits.
    """
    wanted = small_letters(name)
    plainly = {each: small_letters(each) for each in known}
    if same := [each for each in known if plainly[each] == wanted]:
        return same
    if wanted in aliases:
        return [aliases[wanted]]
    if len(wanted) > 1:
        begins = [each for each in known if plainly[each].startswith(wanted)]
        has = [each for each in known if wanted in plainly[each]]
        within = [each for each in known if len(plainly[each]) > 2 and plainly[each] in wanted]
        if some := begins or has or within:
            return some[:MOST_SIMILAR]
    if len(wanted) >= SHORTEST and (slips := [each for each in known if is_slip(name, [each])]):
        return slips[:MOST_SIMILAR]
    return difflib.get_close_matches(name, known, n=3, cutoff=CUTOFF if len(wanted) > FEW else OF_FEW)


def is_slip(name: str, known: Sequence[str]) -> bool:
    """Whether a name is a known one but for a letter that is missing, too much, another, or in another place."""
    wanted = small_letters(name)
    alike = [each for each in map(small_letters, known) if abs(len(each) - len(wanted)) <= 1]  # a long name takes long
    return any(not _but_for_one(wanted).isdisjoint(_but_for_one(each)) for each in alike)


def _but_for_one(word: str) -> set[str]:
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def misspelt(name: str, known: Sequence[str]) -> str:
    """The known name that somebody misspelt; empty for one that may be another's, as ``x-transformers`` is."""
    written = small_letters(name)
    for each in () if name in known else known:
        meant = small_letters(each)
        swapped = len(written) > SHORTEST and sorted(written) == sorted(meant)
        if written == meant or (is_slip(name, [each]) and meant not in written and (swapped or len(meant) > SHORT)):
            return each
    return ""


def small_letters(name: str) -> str:
    """A name in small letters and digits."""
    return re.sub(r"[\W_]+", "", name.lower())
