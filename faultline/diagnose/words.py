"""Words that a line must have for some patterns to match it: whole logs are searched for them, since that is fast."""

import re
from collections.abc import Iterable

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
    """The pattern of the words of which every line with one of the patterns has one."""
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
