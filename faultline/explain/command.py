"""The verb: looks a word up, and prints what pages and records say of it."""

import re
from collections.abc import Collection, Sequence

from rich.console import Console

from faultline.base.errors import EXIT_AS_EXPECTED, unknown
from faultline.base.text import small_letters
from faultline.explain import view
from faultline.explain.vocabulary import vocabulary


def run(words: Sequence[str]) -> int:
    """Print what a word means, or without one which words there are; raises UsageError for an unknown one."""
    known = vocabulary()
    if words:
        view.show(Console(), known[meant(" ".join(words), known)])
    else:
        view.everything(Console(), known)
    return EXIT_AS_EXPECTED


def meant(text: str, known: Collection[str]) -> str:
    """The word that a text is, however it is written, also behind its outcome, as results have it: ``raises
    (no-grad-fn)``."""
    behind = re.fullmatch(r"\w+(?::| \(| )([\w-]+)\)?", text)
    for name in (text, behind[1] if behind else text):
        alike = [word for word in known if small_letters(word) == small_letters(name)]
        if alike:
            return name if name in alike else alike[0]
    raise unknown("word", text, [*known])
