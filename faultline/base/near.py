"""The names that somebody may have meant who gave one that doesn't exist."""

import difflib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

MOST = 5
CUTOFF = 0.55  # below it, difflib takes `nope` for `single`
FEW, OF_FEW = 4, 0.75  # letters, and the cutoff of names with no more: `seen` is no slip for `server`
SHORTEST, SHORT = 3, 7  # letters; torch and torchx are two names, where only letters that changed places are a slip
NONE: Mapping[str, str] = MappingProxyType({})


def near(name: str, known: Sequence[str], aliases: Mapping[str, str] = NONE) -> list[str]:
    """The known names that are most like a name, the likeliest first; none where nothing is like it.

    First what differs by case and punctuation only, then what the name is an alias of, then what begins with it, has it
    or is a part of it, then what it is but for a letter, then what is spelt
    alike. Aliases are small letters and digits.
    """
    wanted = plain(name)
    plainly = {each: plain(each) for each in known}
    if same := [each for each in known if plainly[each] == wanted]:
        return same
    if wanted in aliases:
        return [aliases[wanted]]
    if len(wanted) > 1:
        begins = [each for each in known if plainly[each].startswith(wanted)]
        has = [each for each in known if wanted in plainly[each]]
        within = [each for each in known if len(plainly[each]) > 2 and plainly[each] in wanted]
        if some := begins or has or within:
            return some[:MOST]
    if len(wanted) >= SHORTEST and (slips := [each for each in known if slip(name, [each])]):
        return slips[:MOST]
    return difflib.get_close_matches(name, known, n=3, cutoff=CUTOFF if len(wanted) > FEW else OF_FEW)


def slip(name: str, known: Sequence[str]) -> bool:
    """Whether a name is a known one but for a letter that is missing, too much, another, or in another place."""
    wanted = plain(name)
    alike = [each for each in map(plain, known) if abs(len(each) - len(wanted)) <= 1]  # a long name takes long
    return any(not _but_for_one(wanted).isdisjoint(_but_for_one(each)) for each in alike)


def _but_for_one(word: str) -> set[str]:
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def misspelt(name: str, known: Sequence[str]) -> str:
    """The known name that somebody misspelt; empty for one that may be another's, as ``x-transformers`` is."""
    written = plain(name)
    for each in () if name in known else known:
        meant = plain(each)
        swapped = len(written) > SHORTEST and sorted(written) == sorted(meant)
        if written == meant or (slip(name, [each]) and meant not in written and (swapped or len(meant) > SHORT)):
            return each
    return ""


def plain(name: str) -> str:
    """A name in small letters and digits."""
    return re.sub(r"[\W_]+", "", name.lower())
