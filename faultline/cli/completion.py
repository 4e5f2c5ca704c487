"""What a shell offers for a half-typed word: a function for each kind of value, and the script that asks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.completion import CompletionContext

    from faultline.base.axes import Axis

Complete = Callable[["CompletionContext"], Iterable[str]]
Shell = Literal["bash", "zsh", "fish"]


def one(names: Callable[[], Iterable[str]]) -> Complete:
    """Offers names, with descriptions in a mapping; they are read when the shell asks, so none is ever out of date."""
    return lambda context: names()


def several(names: Callable[[], Iterable[str]]) -> Complete:
    """Offers names for the last place of a list with commas."""

    def offered(context: CompletionContext) -> list[str]:
        before, comma, _ = context.incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name not in before.split(",")]

    return offered


def failures() -> Mapping[str, str]:
    from faultline.catalogue import loading

    return {name: failure.title for name, failure in loading.failures().items()}


def variants() -> Iterable[str]:
    from faultline.catalogue import loading

    return dict.fromkeys(variant.name for failure in loading.failures().values() for variant in failure.variants)


def values(axis: Axis) -> Callable[[], Iterable[str]]:
    """Finds the values of an axis."""

    def offered() -> Iterable[str]:
        from faultline.cells import cell

        return map(str, cell.known_values(axis))

    return offered


def cells() -> Iterable[str]:
    from faultline.catalogue import loading
    from faultline.cells import selection

    return (cell.id for cell in selection.select(loading.failures(), selection.Selection()))


def stacks() -> Iterable[str]:
    from faultline.stacks import requests

    return list(requests.named())  # without the files, which a shell would show as descriptions


def explained() -> Mapping[str, str]:
    from faultline.explain.vocabulary import vocabulary

    words = {word: entries[0].kind for word, entries in vocabulary().items() if " " not in word}
    return {**failures(), **words}


def packages() -> Iterable[str]:
    from faultline.base.packages import NEEDED

    return NEEDED


def script(top: App, shell: Shell) -> str:
    """The completion script of a shell, which runs the program that is being typed: one in a clone, or on the path."""
    text = top.generate_completion(shell=shell)
    if shell == "zsh":  # which loads it from a folder of completions; here it is sourced
        return f"{text}\ncompdef _cyclopts_faultline faultline"
    if shell == "bash":  # readline itself knows folders, and blanks in names; a comma needs no backslash
        text = re.sub(r"COMPREPLY=\( \$\(compgen -f .*", "COMPREPLY=()", text)
        text = text.replace("""printf -v _q '%q' "$_x";""", """printf -v _q '%q' "$_x"; _q=${_q//\\\\,/,};""")
        return f"{text}complete -o default -F _faultline faultline"
    return text
