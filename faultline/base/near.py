"""The names that somebody may have meant who gave one that doesn't exist."""

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

# What people call it, and what it is called here.
ALIASES = {"gpu": "cuda", "nvidia": "cuda", "deepspeed": "zero*", "deepspeedzero": "zero*", "fullshard": "fsdp1-full"}
MOST = 5
CUTOFF = 0.55  # below it, difflib takes `nope` for `single`


def near(name: str, known: Sequence[str]) -> list[str]:
    """The known names that are most like a name, the likeliest first; none where nothing is like it.

    First what differs by case and punctuation only, then what the name is an alias of, then what begins with it, has it
    or is a part of it, then what is spelt alike.
    """
    wanted = _plain(name)
    plain = {each: _plain(each) for each in known}
    if same := [each for each in known if plain[each] == wanted]:
        return same
    alias = ALIASES.get(wanted, "")
    if any(fnmatchcase(each, alias) for each in known):
        return [alias]
    if len(wanted) > 1:
        begins = [each for each in known if plain[each].startswith(wanted)]
        has = [each for each in known if wanted in plain[each]]
        within = [each for each in known if len(plain[each]) > 2 and plain[each] in wanted]
        if some := begins or has or within:
            return some[:MOST]
    return difflib.get_close_matches(name, known, n=3, cutoff=CUTOFF)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
