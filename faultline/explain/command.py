"""The verb: looks a word up, and prints what pages and records say of it."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from faultline.base.console import write_beside, write_line
from faultline.base.errors import EXIT_AS_EXPECTED, unknown
from faultline.base.text import here, similar_names, small_letters
from faultline.catalogue.loading import failure_named, failures
from faultline.explain.vocabulary import Word, vocabulary

WIDEST = 16  # characters of a name that a text stands beside; longer ones stand above it


def show_word(console: Console, words: Sequence[Word]) -> None:
    """Print the meaning of a word, once for each of its kinds."""
    for number, word in enumerate(words):
        if number:
            write_line(console)
        write_line(console, Text(word.name, "bold").append(f"  {word.kind}", "not bold dim"))
        write_beside(console, "", word.text, 0)
        width = max((len(name) for name, _ in word.facts if len(name) <= WIDEST), default=0) + 2
        for name, text in word.facts:
            if len(name) <= WIDEST:
                write_beside(console, name, text, width)
            else:
                write_line(console, f"  {name}", "dim")
                write_beside(console, "", text, 2)
        if word.command:
            write_line(console, f"  Next: {here(word.command)}")


def show_all(console: Console, words: Mapping[str, Iterable[Word]]) -> None:
    """The words that can be explained, by their kinds."""
    kinds: dict[str, list[str]] = {}
    for name, entries in words.items():
        for word in entries:
            kinds.setdefault(word.kind, []).append(name)
    for kind, names in kinds.items():
        write_line(console, kind, "bold")
        write_beside(console, "", ", ".join(names), 0)
    write_line(console)
    write_line(console, f"One of them: {here('faultline show WORD')}")


def run(text: str) -> int:
    """Print what a word means, or without one which words there are; raises UsageError for what is neither a word nor a
    failure, with the nearest of either."""
    known = vocabulary()
    if not text:
        show_all(Console(), known)
        return EXIT_AS_EXPECTED
    begins = text not in known and any(name.startswith(text) for name in failures())
    word = "" if begins else meant(text, known)
    if word:
        show_word(Console(), known[word])
        return EXIT_AS_EXPECTED
    if begins or similar_names(text, [*failures()]):
        failure_named(text)  # which names those failures
    raise unknown("failure or word", text, [*known])


def meant(text: str, known: Collection[str]) -> str:
    """The word that a text is, however it is written, also behind its outcome, as results have it: ``raises
    (no-grad-fn)``; empty for none."""
    behind = re.fullmatch(r"\w+(?::| \(| )([\w-]+)\)?", text)
    for name in (text, behind[1] if behind else text):
        alike = [word for word in known if small_letters(word) == small_letters(name)]
        if alike:
            return name if name in alike else alike[0]
    return ""
